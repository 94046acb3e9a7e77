"""The Brain: remembers every job, and answers a job that asks for its size from those like it.

`store` is the database, and with its tables and migrations the only place that knows SQL; `advisor` says which runs are
like another and what follows from them, without I/O; `app` serves both. Nothing in here is imported by a job: a master
speaks to the Brain over the wire, and goes on without it.
"""
