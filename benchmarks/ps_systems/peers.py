"""Installs TensorFlow, in an environment of its own beside the build."""

from __future__ import annotations

import subprocess
import sys
import venv
from pathlib import Path

from benchmarks.membership_systems.processes import ROOT

_TENSORFLOW = "tensorflow-cpu==2.21.0"
_FOLDER = ROOT / "build" / "tensorflow"


class PeerUnavailable(Exception):
    """TensorFlow could not be installed, and the benchmark goes on without it."""


def tensorflow_python() -> Path:
    """The Python that has TensorFlow, once it is installed; raises PeerUnavailable."""
    python = _FOLDER / "bin" / "python"
    if not (_FOLDER / "bin" / "pip").exists():
        try:
            venv.create(_FOLDER, with_pip=True)
        except (OSError, subprocess.CalledProcessError) as error:
            raise PeerUnavailable(f"no environment in {_FOLDER}: {error}") from None
    find = "import importlib.util, sys; sys.exit(importlib.util.find_spec('tensorflow') is None)"
    if subprocess.run([str(python), "-c", find], capture_output=True, check=False).returncode != 0:
        print(f"installing {_TENSORFLOW}", file=sys.stderr)
        command = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", _TENSORFLOW]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise PeerUnavailable(f"pip install {_TENSORFLOW}: {done.stderr.strip()[-300:]}")
    return python
