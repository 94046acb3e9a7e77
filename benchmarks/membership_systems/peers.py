"""Installs the peers, in an environment of their own beside the build."""

from __future__ import annotations

import subprocess
import sys
import venv
from pathlib import Path

from benchmarks.membership_systems.processes import ROOT

_TORCH = "torch==2.13.0"  # The version that elastane is developed with, so that all train with the same one.
_TORCHFT = "torchft-nightly"
# torchft names PyTorch without a version: it comes without what it needs, and that comes by itself.
_TORCHFT_NEEDS = ("opentelemetry-api", "opentelemetry-sdk", "opentelemetry-exporter-otlp-proto-http")
_FOLDER = ROOT / "build" / "peers"


class PeerUnavailable(Exception):
    """A peer could not be installed, and the benchmark goes on without it."""


def installed(peer: str) -> Path:
    """The folder of a peer's commands, once it is installed; raises PeerUnavailable."""
    commands = _FOLDER / "bin"
    if not (commands / "pip").exists():
        try:
            venv.create(_FOLDER, with_pip=True)
        except (OSError, subprocess.CalledProcessError) as error:
            raise PeerUnavailable(f"no environment in {_FOLDER}: {error}") from None
    _install("torch", _TORCH)
    _install("numpy", "numpy")
    if peer == "torchft":
        _install("torchft", "--no-deps", _TORCHFT)
        _install("opentelemetry.exporter.otlp.proto.http", *_TORCHFT_NEEDS)
    return commands


def version_of(distribution: str, python: str | Path = sys.executable) -> str:
    """The version that is installed for a Python."""
    code = f"import importlib.metadata; print(importlib.metadata.version('{distribution}'))"
    return subprocess.run([str(python), "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def _install(module: str, *words: str) -> None:
    python = str(_FOLDER / "bin" / "python")
    find = f"import importlib.util, sys; sys.exit(importlib.util.find_spec('{module}') is None)"
    if subprocess.run([python, "-c", find], capture_output=True, check=False).returncode == 0:
        return
    print(f"installing {' '.join(words)}", file=sys.stderr)
    command = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise PeerUnavailable(f"pip install {' '.join(words)}: {done.stderr.strip()[-300:]}")
