"""Inside a training process, free of frameworks: the stream to the master, and the shards it brings.

The training thread never waits for the master in steady state: leases are fetched ahead by the stream's own thread, and
commits are sent without waiting for an answer.
"""
