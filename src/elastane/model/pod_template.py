"""Pod templates, as Kubernetes writes them: what a node runs, and what else its pod has."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, model_validator

from elastane.model.documents import field_error


class _KubernetesPart(BaseModel):
    """A part of the pod template: keys beyond those named here belong to Kubernetes and pass through as they are."""

    model_config = ConfigDict(frozen=True, extra="allow", use_attribute_docstrings=True)


class EnvVar(_KubernetesPart):
    """One variable of a container's environment."""

    name: str
    """The variable's name."""
    value: str = ""
    """Its value; Kubernetes also knows `valueFrom`."""


class Container(_KubernetesPart):
    """One container; the first of a template is the node."""

    name: str = "main"
    """The container's name in its pod."""
    command: Annotated[tuple[str, ...], Field(min_length=1)] = ()
    """What it runs. The first container of a worker needs one; another may run what its image says."""
    args: tuple[str, ...] = ()
    """Words that are added to the command."""
    env: tuple[EnvVar, ...] = ()
    """Variables beside those that elastane sets."""


class PodSpec(_KubernetesPart):
    """The spec of a pod."""

    containers: Annotated[tuple[Container, ...], Field(json_schema_extra={"minItems": 1})]
    """The containers. A local job takes the command, arguments and environment of the first."""

    @model_validator(mode="after")
    def _has_a_container(self) -> PodSpec:
        if not self.containers:
            raise field_error("containers", "at least one is needed")
        return self


class PodTemplate(_KubernetesPart):
    """A pod template. A local job takes the command, arguments and environment of its first container."""

    metadata: dict[str, Any] = {}
    """Labels and annotations of the pods."""
    spec: PodSpec
    """The spec of the pods."""

    @property
    def node(self) -> Container:
        """The container that is the node; the others stand beside it."""
        return self.spec.containers[0]
