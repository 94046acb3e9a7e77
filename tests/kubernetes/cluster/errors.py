"""What can go wrong with the cluster itself."""

from tests.kubernetes.waiting import NotYet


class ClusterError(Exception):
    """The cluster cannot be built or started here; the text says why in one line."""


class KubectlFailed(ClusterError, NotYet):
    """kubectl exited with an error; the text is what it said. A check that waits may ask again."""
