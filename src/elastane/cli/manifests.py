"""`elastane crds` and `elastane install`: print what a Kubernetes cluster needs, for `kubectl apply -f -`."""

from __future__ import annotations

import importlib.util
from typing import Annotated

import typer

from elastane.model.errors import InvalidInput


def crds() -> None:
    """Print the definitions of ElasticJob, ScalePlan and JobResource, for kubectl apply -f -."""
    _check_installed("crds")
    from elastane.operator.crds import custom_resource_definitions
    from elastane.operator.manifest_text import as_yaml

    print(as_yaml(custom_resource_definitions().values()), end="")


def install(
    image: Annotated[
        str | None,
        typer.Option(help="The image of the operator; by default elastane:VERSION.", show_default=False),
    ] = None,
    namespace: Annotated[str, typer.Option(help="The namespace of the operator, which is made.")] = "elastane-system",
) -> None:
    """Print all that a cluster needs for elastic jobs, for kubectl apply -f -.

    That is the definitions, the operator with its rights, and the rights of the jobs' masters.
    """
    _check_installed("install")
    from elastane.operator.install import IMAGE, installation
    from elastane.operator.manifest_text import as_yaml

    print(as_yaml(installation(IMAGE if image is None else image, namespace)), end="")


def _check_installed(command: str) -> None:
    if importlib.util.find_spec("yaml") is None:
        raise InvalidInput(f"{command}: yaml is not installed; install elastane[kubernetes]")
