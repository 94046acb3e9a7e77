"""The job master, one per job: `master.py` wires the components, each in a file of its own.

Everything runs on one event loop, and each piece of state has one owner, so nothing is locked. The rules are in
`core`; here are the timers, streams and files around them.
"""
