"""Debian's packages, and what they lack: the control plane and the kubelet, compiled from Debian's source package."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.kubernetes.cluster.errors import ClusterError
from tests.kubernetes.cluster.images import make_images
from tests.kubernetes.cluster.layout import CGROUP_MOUNTS, Layout

COMPONENTS = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kube-proxy", "kubemark")

_RUN_PACKAGES = (
    "conntrack",
    "containerd",
    "containernetworking-plugins",
    "etcd-server",
    "iproute2",
    "iptables",
    "runc",
)
_BUILD_PACKAGES = ("dpkg-dev", "gcc", "golang-github-modern-go-reflect2-dev", "golang-go", "libc6-dev")

# The packages below staging/src/k8s.io whose types the API server describes.
_DESCRIBED = (
    *("api", "apiextensions-apiserver", "apimachinery", "apiserver", "client-go", "cloud-provider", "component-base"),
    *("kube-aggregator", "kube-controller-manager", "kube-proxy", "kube-scheduler", "kubelet", "metrics"),
)
_OPENAPI_TAG = re.compile(r"^// *\+k8s:openapi-gen=", re.MULTILINE)


def check_machine() -> None:
    """Raise `ClusterError` where this machine cannot run the cluster."""
    if sys.platform != "linux" or os.geteuid() != 0:
        raise ClusterError("the cluster needs root on Linux: it makes namespaces, cgroups and mounts")
    if not (CGROUP_MOUNTS / "memory").is_dir():
        raise ClusterError(f"the cluster needs cgroup v1: there is no {CGROUP_MOUNTS}/memory")


def is_built(layout: Layout) -> bool:
    """Whether it was compiled, as a whole."""
    return layout.built.is_dir()


def build(layout: Layout) -> None:
    """Install the packages that are missing, and compile unless that was done.

    Raises `ClusterError` where that is impossible or fails.
    """
    kubectl = () if shutil.which("kubectl") else ("kubernetes-client",)
    _install(*_RUN_PACKAGES, *kubectl)
    if is_built(layout):
        return
    _install(*_BUILD_PACKAGES)
    # A build that was interrupted leaves only this folder, which is never taken for a whole one.
    work = layout.cache / "building"
    shutil.rmtree(work, ignore_errors=True)
    source = work / "go/src/k8s.io/kubernetes"
    version = _fetch_source(work, source)
    _compile(source, work, work / "built/bin", version)
    make_images(work / "built/images")
    (work / "built").rename(layout.built)
    shutil.rmtree(work)
    _say(f"Kubernetes {version} is built in {layout.built}")


def _install(*packages: str) -> None:
    found = _run(
        ["dpkg-query", "--show", "--showformat=${Package} ${db:Status-Status}\n", *packages], check=False
    ).splitlines()
    missing = [package for package in packages if f"{package} installed" not in found]
    if not missing:
        return
    _say(f"installing {', '.join(missing)}")
    environment = {"DEBIAN_FRONTEND": "noninteractive"}
    _run(["apt-get", "update", "-qq"], environment=environment)
    _run(["apt-get", "install", "-qq", "-y", "--no-install-recommends", *missing], environment=environment)


def _fetch_source(work: Path, source: Path) -> str:
    """Put Debian's source of Kubernetes 1.20 into `source`; returns its version."""
    # The machine's own settings of apt stay as they are: these lists are read only here.
    parts, lists, download = work / "apt/parts", work / "apt/lists", work / "download"
    for folder in (parts, lists / "partial", download, source):
        folder.mkdir(parents=True)
    _write_source_lists(parts)
    apt = ["apt-get", "-qq", "-o", f"Dir::State::Lists={lists}", "-o", "Dir::Etc::SourceList=/dev/null"]
    apt += ["-o", f"Dir::Etc::SourceParts={parts}", "-o", "APT::Sandbox::User=root"]
    _say("fetching the source of Kubernetes")
    _run([*apt, "update"])
    _run([*apt, "source", "--download-only", "kubernetes"], cwd=download)
    for archive in download.glob("kubernetes_*.orig.tar.gz"):
        # "1.20.5+really1.20.2" is Debian's way to go back to an older one.
        match = re.search(r"(1\.20\.\d+)\.orig\.tar\.gz$", archive.name)
        if match:
            _run(["tar", "-xzf", str(archive), "-C", str(source), "--strip-components=1"])
            return match[1]
    raise ClusterError(f"apt has no source of Kubernetes 1.20: {sorted(path.name for path in download.iterdir())}")


def _write_source_lists(parts: Path) -> None:
    """Write the machine's lists of Debian's packages into `parts`, as lists of Debian's source packages."""
    etc = Path("/etc/apt")
    for path in sorted(etc.glob("sources.list.d/*.sources")):
        if "debian.org" in (text := path.read_text()):
            (parts / path.name).write_text(re.sub(r"^Types:.*$", "Types: deb-src", text, flags=re.MULTILINE))
    for path in [etc / "sources.list", *sorted(etc.glob("sources.list.d/*.list"))]:
        if path.exists():
            lines = [line for line in path.read_text().splitlines() if re.match(r"deb\s.*debian\.org", line)]
            (parts / path.name).with_suffix(".list").write_text("".join(f"deb-src{line[3:]}\n" for line in lines))


def _compile(source: Path, work: Path, out: Path, version: str) -> None:
    out.mkdir(parents=True)
    # The one that comes along breaks maps when compiled by Go 1.18 or later: take Debian's own, newer one.
    reflect = "github.com/modern-go/reflect2"
    shutil.rmtree(source / "vendor" / reflect)
    shutil.copytree(Path("/usr/share/gocode/src") / reflect, source / "vendor" / reflect)
    environment = {"GO111MODULE": "off", "GOPATH": str(work / "go"), "CGO_ENABLED": "0", "GOFLAGS": ""}
    # The source package leaves the generated table of the API's types out, which the API server is compiled with.
    generator = work / "openapi-gen"
    tool = "k8s.io/kubernetes/vendor/k8s.io/kube-openapi/cmd/openapi-gen"
    _run(["go", "build", "-o", str(generator), tool], cwd=source, environment=environment)
    _run(
        [
            *(str(generator), "--input-dirs", ",".join(_described_packages(source))),
            *("--output-package", "k8s.io/kubernetes/pkg/generated/openapi"),
            *("--output-file-base", "zz_generated.openapi", "--report-filename", "/dev/null"),
            *("--go-header-file", "vendor/k8s.io/code-generator/hack/boilerplate.go.txt"),
        ],
        cwd=source,
        environment=environment,
    )
    major, minor, _ = version.split(".")
    linked = {"gitVersion": f"v{version}", "gitMajor": major, "gitMinor": minor}
    flags = ["-s", "-w"]
    for package in ("component-base/version", "client-go/pkg/version"):
        flags += [f"-X k8s.io/kubernetes/vendor/k8s.io/{package}.{name}={value}" for name, value in linked.items()]
    for number, component in enumerate(COMPONENTS, 1):
        _say(f"compiling {component} ({number} of {len(COMPONENTS)})")
        command = ["go", "build", "-trimpath", "-ldflags", " ".join(flags), "-o", str(out / component)]
        _run([*command, f"k8s.io/kubernetes/cmd/{component}"], cwd=source, environment=environment)


def _described_packages(source: Path) -> list[str]:
    """The Go packages whose types are marked for the API's description."""
    packages = set()
    staging = source / "staging/src"
    roots = [(source / "pkg", source, "k8s.io/kubernetes")]
    roots += [(staging / "k8s.io" / name, staging, "k8s.io/kubernetes/vendor") for name in _DESCRIBED]
    for root, base, prefix in roots:
        for file in root.rglob("*.go"):
            if "testdata" not in file.parts and _OPENAPI_TAG.search(file.read_text()):
                packages.add(f"{prefix}/{file.parent.relative_to(base)}")
    return sorted(packages)


def _run(
    command: Sequence[str], *, cwd: Path | None = None, environment: Mapping[str, str] | None = None, check: bool = True
) -> str:
    """The output of a command; raises `ClusterError` with the end of what it said where it fails."""
    try:
        done = subprocess.run(
            command, cwd=cwd, env={**os.environ, **(environment or {})}, capture_output=True, text=True, check=False
        )
    except FileNotFoundError:
        raise ClusterError(f"the cluster is made from Debian's packages: there is no {command[0]} here") from None
    if check and done.returncode:
        said = (done.stderr or done.stdout).strip().splitlines()[-3:]
        raise ClusterError(f"{' '.join(command[:3])} failed: {' / '.join(said)}")
    return done.stdout


def _say(text: str) -> None:
    print(f"cluster: {text}", file=sys.stderr, flush=True)
