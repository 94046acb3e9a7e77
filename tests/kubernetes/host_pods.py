"""Pods that run this machine's Python: an image that is empty, with the machine's folders in it, read-only.

No image with PyTorch need be built, and a pod runs the very code of this repository.
"""

import copy
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.kubernetes.cluster.layout import PYTHON_IMAGE, Layout

REPOSITORY = Path(__file__).resolve().parents[2]
PYTHON = str(REPOSITORY / ".venv/bin/python")

_NUMBA_CACHE = "/var/cache/numba"
_ENVIRONMENT = {
    "PATH": f"{REPOSITORY}/.venv/bin:/usr/local/bin:/usr/bin:/bin",
    "HOME": "/tmp",  # noqa: S108 - the pod's own
    "USER": "root",  # there is no /etc/passwd to ask
    "PYTHONDONTWRITEBYTECODE": "1",
    "NUMBA_CACHE_DIR": _NUMBA_CACHE,
}


def with_host_python(template: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of a pod or pod template, whose containers can run `PYTHON` and import what the repository's can.

    What a container says of its own (an image, a variable) stays. `/tmp` is the pod's and can be written.
    """
    result = copy.deepcopy(dict(template))
    spec: dict[str, Any] = result.setdefault("spec", {})
    paths = _machine_folders()
    volumes = [{"name": f"host-{index}", "hostPath": {"path": path}} for index, path in enumerate(paths)]
    mounts = [{"name": f"host-{index}", "mountPath": path, "readOnly": True} for index, path in enumerate(paths)]
    # What one pod compiles, the next need not compile again.
    numba = {"path": str(Layout.default().pod_cache), "type": "DirectoryOrCreate"}
    volumes += [{"name": "host-tmp", "emptyDir": {}}, {"name": "host-numba", "hostPath": numba}]
    mounts += [{"name": "host-tmp", "mountPath": "/tmp"}, {"name": "host-numba", "mountPath": _NUMBA_CACHE}]  # noqa: S108
    spec["volumes"] = [*spec.get("volumes", []), *volumes]
    for container in [*spec.get("initContainers", []), *spec["containers"]]:
        container.setdefault("image", PYTHON_IMAGE)
        container.setdefault("imagePullPolicy", "Never")
        container["volumeMounts"] = [*container.get("volumeMounts", []), *mounts]
        environment = container.get("env", [])
        named = {variable["name"] for variable in environment}
        added = [{"name": name, "value": value} for name, value in _ENVIRONMENT.items() if name not in named]
        container["env"] = [*environment, *added]
    return result


def _machine_folders() -> list[str]:
    """The folders that Python needs, none of them inside another."""
    folders = {Path("/usr"), Path(sys.base_prefix), REPOSITORY}
    return sorted(str(folder) for folder in folders if not folders & set(folder.parents))
