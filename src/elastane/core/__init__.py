"""The rules: pure state machines, an event in, decisions out.

Nothing here does I/O, starts a thread or reads a clock: time comes in as `now`, in seconds of one monotonic clock. So
every rule is tested without sleeping, by hypothesis state machines under `tests/property`.
"""
