"""Bringing the cluster up, and ending it."""

import fcntl
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

from tests.kubernetes.cluster import components
from tests.kubernetes.cluster.build import build, check_machine, is_built
from tests.kubernetes.cluster.credentials import Credentials
from tests.kubernetes.cluster.errors import ClusterError, KubectlFailed
from tests.kubernetes.cluster.layout import (
    CGROUP,
    CGROUP_MOUNTS,
    HOST_ADDRESS,
    LINK,
    LINK_PREFIX,
    NODE_ADDRESS,
    NODE_NAME,
    PODS,
    SERVICES,
    Layout,
)
from tests.kubernetes.cluster.sandbox import Sandbox
from tests.kubernetes.waiting import eventually

# What containerd, the kubelet and CNI write at fixed places; in the sandbox these are folders of the cluster's own.
_PRIVATE_FOLDERS = ("/run/containerd", "/var/lib/cni", "/var/log/containers", "/var/log/pods")


class Cluster:
    """The one-node cluster of this machine; whoever makes this object finds the one that is up."""

    def __init__(self, layout: Layout | None = None) -> None:
        self.layout = layout or Layout.default()
        self._sandbox = Sandbox(self.layout.run, self.layout.logs)
        self._started = self.layout.run / "started"
        self._connected = self.layout.run / "connected"

    @property
    def kubeconfig(self) -> Path:
        """The administrator's kubeconfig."""
        return self.layout.kubeconfig

    @property
    def is_up(self) -> bool:
        """Whether it lives and was started as a whole."""
        return self._sandbox.is_up and self._started.exists()

    def kubectl(self, *arguments: str, input: str | None = None) -> str:
        """What kubectl prints; raises `KubectlFailed` with what it says on an error."""
        done = subprocess.run(
            ["kubectl", f"--kubeconfig={self.kubeconfig}", *arguments],
            input=input,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise KubectlFailed(f"kubectl {' '.join(arguments)}: {done.stderr.strip()}")
        return done.stdout

    def build(self) -> None:
        """Install and compile what is missing; raises `ClusterError` where that is impossible."""
        check_machine()
        with self._locked():
            build(self.layout)

    def up(self) -> None:
        """Start it and wait for its node, unless it is up; raises `ClusterError` or `NotInTime` where that fails."""
        check_machine()
        if not is_built(self.layout):
            raise ClusterError("the cluster is not built: run `python -m tests.kubernetes.cluster build`")
        with self._locked():
            if self.is_up:
                return
            self._clear()
            self.layout.logs.mkdir(parents=True)
            Credentials(self.layout).write()
            try:
                self._start()
            except BaseException:
                # Its logs stay until the next start.
                self._end()
                raise
            self._started.touch()

    def down(self) -> None:
        """End it, with all its pods, at once."""
        with self._locked():
            self._clear()

    def add_hollow_nodes(self, count: int) -> None:
        """Add nodes that run no containers, beside those there are, and wait for them."""
        numbers = range(1, 1 + count + len(list(self.layout.run.glob("hollow-*.pid"))))
        new = [number for number in numbers if not (self.layout.run / f"hollow-{number}.pid").exists()]
        (self.layout.run / "hollow").mkdir(exist_ok=True)
        for number in new:
            name = components.hollow_name(number)
            Credentials(self.layout).write_user(name, f"system:node:{name}", "system:nodes")
            self._sandbox.start_process(name, components.hollow_node(self.layout, number))
        for number in new:
            self._wait_for_node(components.hollow_name(number))

    def stop_apiserver(self) -> None:
        """End the API server; what is stored stays."""
        self._sandbox.end_process("kube-apiserver", patience_s=5)

    def start_apiserver(self) -> None:
        """Start the API server that was stopped, as it was, and wait until it serves."""
        self._sandbox.start_process("kube-apiserver", components.apiserver(self.layout))
        self._wait_for_apiserver()

    def restart_apiserver(self) -> None:
        """Stop the API server and start it again."""
        self.stop_apiserver()
        self.start_apiserver()

    def _start(self) -> None:
        layout = self.layout
        self._sandbox.start()
        self._separate_folders()
        self._connect()
        self._make_cgroups()
        self._sandbox.start_process("etcd", components.etcd(layout))
        self._sandbox.start_process("kube-apiserver", components.apiserver(layout))
        self._sandbox.start_process("containerd", components.containerd(layout))
        eventually(layout.containerd_socket.exists, 20, "the start of containerd")
        for image in ("pause", "python"):
            self._sandbox.call(
                *("ctr", "--address", str(layout.containerd_socket), "--namespace", "k8s.io"),
                *("images", "import", layout.image(image)),
            )
        self._wait_for_apiserver()
        self._sandbox.start_process("kube-controller-manager", components.controller_manager(layout))
        self._sandbox.start_process("kube-scheduler", components.scheduler(layout))
        self._sandbox.start_process("kubelet", components.kubelet(layout))
        self._sandbox.start_process("kube-proxy", components.proxy(layout))
        self._wait_for_node(NODE_NAME)

    def _separate_folders(self) -> None:
        for place in _PRIVATE_FOLDERS:
            own = self.layout.run / "private" / place.lstrip("/")
            own.mkdir(parents=True)
            Path(place).mkdir(parents=True, exist_ok=True)
            self._sandbox.call("mount", "--bind", str(own), place)

    def _make_cgroups(self) -> None:
        for folder in _cgroups():
            folder.mkdir(exist_ok=True)
            # A set of no processors admits no process: take the parent's.
            for name in ("cpuset.cpus", "cpuset.mems"):
                if (folder / name).exists():
                    (folder / name).write_text((folder.parent / name).read_text())

    def _connect(self) -> None:
        """Join the sandbox to the machine, so that both reach each other, and the machine reaches pods and services."""
        _ip("link", "add", LINK, "type", "veth", "peer", "name", "machine0", "netns", str(self._sandbox.pid))
        self._connected.touch()
        _ip("address", "add", f"{HOST_ADDRESS}/{LINK_PREFIX}", "dev", LINK)
        _ip("link", "set", LINK, "up")
        inside = self._sandbox.call
        inside("ip", "link", "set", "lo", "up")
        inside("ip", "address", "add", f"{NODE_ADDRESS}/{LINK_PREFIX}", "dev", "machine0")
        inside("ip", "link", "set", "machine0", "up")
        # No route leads further than the machine: who looks for a cloud's services learns at once that none is there.
        inside("sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward")
        for network in (PODS, SERVICES):
            _ip("route", "add", network, "via", NODE_ADDRESS)

    def _wait_for_apiserver(self) -> None:
        eventually(lambda: self.kubectl("get", "--raw", "/readyz"), 60, f"the API server (see {self.layout.logs})")

    def _wait_for_node(self, name: str) -> None:
        path = '{.status.conditions[?(@.type=="Ready")].status}'
        command = ("get", "node", name, f"--output=jsonpath={path}")
        eventually(lambda: self.kubectl(*command) == "True", 60, f"node {name} (see {self.layout.logs})")

    def _end(self) -> None:
        """End what runs, and take away what it leaves on the machine."""
        self._sandbox.end()
        # What another cluster on this machine made is left alone.
        if self._connected.exists():
            # The link goes with the last process, and cgroups can be removed only then.
            eventually(lambda: not Path("/sys/class/net", LINK).exists(), 20, f"the end of the link {LINK}")
            for cgroup in CGROUP_MOUNTS.glob(f"*/{CGROUP}"):
                eventually(partial(_remove_cgroup, cgroup), 20, f"the removal of {cgroup}")
            self._connected.unlink()

    def _clear(self) -> None:
        """End it, and forget it."""
        self._end()
        if self.layout.run.exists():
            shutil.rmtree(self.layout.run)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Keep others from building, starting or ending it meanwhile."""
        self.layout.cache.mkdir(parents=True, exist_ok=True)
        with self.layout.lock.open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield


def _cgroups() -> list[Path]:
    """The cluster's cgroup in each hierarchy of cgroup v1."""
    hierarchies = [path for path in CGROUP_MOUNTS.iterdir() if path.is_dir() and not path.is_symlink()]
    return [path / CGROUP for path in hierarchies if path.is_mount() and path.name != "unified"]


def _remove_cgroup(cgroup: Path) -> bool:
    """Remove a cgroup and those in it; false as long as processes are in them."""
    for folder, _, _ in os.walk(cgroup, topdown=False):
        with suppress(OSError):
            Path(folder).rmdir()
    return not cgroup.exists()


def _ip(*arguments: str) -> None:
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise ClusterError(f"ip {' '.join(arguments[:3])} failed (is another cluster up?): {done.stderr.strip()}")
