"""The parts of `benchmarks.sizing`: jobs whose true speed is known, policies that size them, and the replay of both."""
