"""Where the cluster keeps its files, and which addresses it uses."""

import os
from dataclasses import dataclass
from pathlib import Path

NODE_NAME = "elastane"

# The link between the machine and the cluster's network.
LINK = "elastane0"
HOST_ADDRESS = "10.79.0.1"
NODE_ADDRESS = "10.79.0.2"
LINK_PREFIX = 30

PODS = "10.78.0.0/16"
SERVICES = "10.97.0.0/16"
API_SERVICE = "10.97.0.1"

API_PORT = 6443
API_URL = f"https://{NODE_ADDRESS}:{API_PORT}"
ETCD_URL = "http://127.0.0.1:2379"
ETCD_PEER_URL = "http://127.0.0.1:2380"

PAUSE_IMAGE = "docker.io/local/pause:1"
PYTHON_IMAGE = "docker.io/local/python:host"

CGROUP = "elastane"
CGROUP_MOUNTS = Path("/sys/fs/cgroup")

# What is built is taken for current as long as this number is the same: raise it when the recipe changes.
RECIPE = 1


@dataclass(frozen=True)
class Layout:
    """The folders and files of one cluster, all under `cache`."""

    cache: Path

    @classmethod
    def default(cls) -> "Layout":
        """The one that $ELASTANE_CLUSTER_CACHE names."""
        return cls(Path(os.environ.get("ELASTANE_CLUSTER_CACHE") or Path.home() / ".cache/elastane-cluster").absolute())

    @property
    def built(self) -> Path:
        """What was compiled; exists only as a whole."""
        return self.cache / f"built-{RECIPE}"

    @property
    def lock(self) -> Path:
        """Held by whoever builds, starts or ends the cluster."""
        return self.cache / "lock"

    @property
    def pod_cache(self) -> Path:
        """A folder that pods may write and that outlives them: what they compiled."""
        return self.cache / "pods"

    @property
    def run(self) -> Path:
        """Everything of the cluster that is up."""
        return self.cache / "run"

    @property
    def logs(self) -> Path:
        return self.run / "log"

    @property
    def pki(self) -> Path:
        return self.run / "pki"

    @property
    def kubeconfig(self) -> Path:
        """The administrator's."""
        return self.kubeconfig_of("admin")

    @property
    def containerd_socket(self) -> Path:
        return self.run / "containerd.sock"

    def kubeconfig_of(self, user: str) -> Path:
        return self.run / f"{user}.conf"

    def binary(self, name: str) -> str:
        """The path of a compiled component."""
        return str(self.built / "bin" / name)

    def image(self, name: str) -> str:
        """The path of an image's archive."""
        return str(self.built / "images" / f"{name}.tar")
