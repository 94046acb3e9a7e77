"""For guests: `MasterClient` lets a plain script of any framework use a job's master."""

from elastane.worker.handover import ServerSet
from elastane.worker.master_client import JoinedWorld, LeasedShard, MasterClient

__all__ = ["JoinedWorld", "LeasedShard", "MasterClient", "ServerSet"]
