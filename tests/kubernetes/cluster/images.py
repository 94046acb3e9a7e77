"""The two images of the cluster, made from nothing: no registry is needed."""

import hashlib
import io
import json
import platform
import subprocess
import tarfile
import tempfile
from pathlib import Path

from tests.kubernetes.cluster.errors import ClusterError
from tests.kubernetes.cluster.layout import PAUSE_IMAGE, PYTHON_IMAGE

_PAUSE = """
#include <signal.h>
#include <unistd.h>
static void end(int signal) { (void)signal; _exit(0); }
int main(void) { signal(SIGTERM, end); signal(SIGINT, end); for (;;) pause(); }
"""

_FOLDERS = (
    *("dev", "etc", "home", "mnt", "opt", "proc", "root", "run", "sys", "tmp", "usr"),
    *("var", "var/cache", "var/lib", "var/tmp"),
)
_LINKS = {name: f"usr/{name}" for name in ("bin", "lib", "lib64", "sbin")}


def make_images(folder: Path) -> None:
    """Write `pause.tar`, which holds a pod's namespaces, and `python.tar`, an empty root for the machine's Python."""
    folder.mkdir(parents=True)
    _write_image(folder / "pause.tar", PAUSE_IMAGE, _pause_layer(), ["/pause"])
    _write_image(folder / "python.tar", PYTHON_IMAGE, _root_layer(), ["/usr/bin/env"])


def _pause_layer() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "pause"
        command = ["gcc", "-static", "-O2", "-x", "c", "-o", str(program), "-"]
        done = subprocess.run(command, input=_PAUSE, capture_output=True, text=True, check=False)
        if done.returncode:
            raise ClusterError(f"gcc failed: {done.stderr.strip()}")
        return _tar([(_entry("pause", tarfile.REGTYPE, 0o755), program.read_bytes())])


def _root_layer() -> bytes:
    entries = [_entry(name, tarfile.DIRTYPE, 0o1777 if name.endswith("tmp") else 0o755) for name in _FOLDERS]
    for name, target in _LINKS.items():
        link = _entry(name, tarfile.SYMTYPE, 0o777)
        link.linkname = target
        entries.append(link)
    return _tar([(entry, b"") for entry in entries])


def _write_image(path: Path, name: str, layer: bytes, entrypoint: list[str]) -> None:
    """Write an archive in the format of `docker save`."""
    config = {
        "architecture": {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine()),
        "os": "linux",
        "config": {"Entrypoint": entrypoint, "Env": ["PATH=/usr/local/bin:/usr/bin:/bin"]},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(layer).hexdigest()}"]},
    }
    described = json.dumps(config).encode()
    digest = hashlib.sha256(described).hexdigest()
    manifest = [{"Config": f"{digest}.json", "RepoTags": [name], "Layers": ["layer.tar"]}]
    files = {f"{digest}.json": described, "layer.tar": layer, "manifest.json": json.dumps(manifest).encode()}
    path.write_bytes(_tar([(_entry(file, tarfile.REGTYPE, 0o644), data) for file, data in files.items()]))


def _entry(name: str, kind: bytes, mode: int) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(name)
    entry.type, entry.mode = kind, mode
    return entry


def _tar(entries: list[tuple[tarfile.TarInfo, bytes]]) -> bytes:
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        for entry, data in entries:
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))
    return archive.getvalue()
