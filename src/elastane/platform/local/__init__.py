"""Nodes as processes of this machine.

The launcher (`elastane run`) starts two processes: the master, and an agent that owns the nodes. The agent is the
parent of every node, writes their logs, enforces their limits and tells why each ended; it ends them all when the
launcher is gone, however it went. It imports neither gRPC nor any framework, so that it starts fast and can fork.
"""
