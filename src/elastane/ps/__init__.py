"""The parameter servers: where rows live, how they are pulled and pushed, and how buckets of them move."""
