"""What a cluster needs before an operator outside of it can work."""

from elastane.operator.install import installation
from elastane.operator.manifest_text import as_yaml
from tests.kubernetes.cluster.lifecycle import Cluster


def install(cluster: Cluster) -> None:
    """Apply all that `elastane install` prints, but for the operator's own pods."""
    kept = [document for document in installation() if document["kind"] != "Deployment"]
    cluster.kubectl("apply", "--filename=-", input=as_yaml(kept))
    names = [f"crd/{each['metadata']['name']}" for each in kept if each["kind"] == "CustomResourceDefinition"]
    cluster.kubectl("wait", "--for=condition=Established", "--timeout=30s", *names)
