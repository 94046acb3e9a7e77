"""The client: what a program asks of jobs, here or in a cluster. The commands stand on it.

`Client` is the whole of it; what it answers is in `views`. Nothing here prints, and nothing of Kubernetes is imported
before a cluster is asked for.
"""

from elastane.client.client import Client
from elastane.client.views import (
    DatasetView,
    EvaluationView,
    JobState,
    JobView,
    NodeView,
    ServersView,
    ServerView,
    TableView,
    VersionView,
)

__all__ = [
    "Client",
    "DatasetView",
    "EvaluationView",
    "JobState",
    "JobView",
    "NodeView",
    "ServerView",
    "ServersView",
    "TableView",
    "VersionView",
]
