"""The three custom resource definitions, generated from the documents' models.

What a schema can say, the API server refuses when a manifest is applied; the rest the operator reports as a condition.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from elastane.model.cluster_documents import SCALE_TYPE_LABEL, JobResource, ScalePlanDocument
from elastane.model.documents import Document
from elastane.model.ids import MAX_NAME_LENGTH
from elastane.model.job_spec import ElasticJob
from elastane.model.status_documents import ElasticJobStatus, PlanStatus

_ANY = "x-kubernetes-preserve-unknown-fields"
_INT_OR_STRING = "x-kubernetes-int-or-string"
_SERVICE_NAME = "^[a-z]([a-z0-9-]*[a-z0-9])?$"
"""A job's name begins with a letter on Kubernetes: its master's Service is named after it."""

_KEPT = (
    "type",
    "description",
    "format",
    "enum",
    "pattern",
    "minLength",
    "maxLength",
    "minItems",
    "maxItems",
    "minimum",
    "maximum",
    "required",
)

Schema = dict[str, Any]


@dataclass(frozen=True)
class _Column:
    """A column of `kubectl get`; those of a `priority` above 0 are shown by `-o wide` alone."""

    name: str
    path: str
    type: str = "string"
    priority: int = 0
    description: str = ""

    def manifest(self) -> Schema:
        made = {"name": self.name, "type": self.type, "jsonPath": self.path}
        if self.description:
            made["description"] = self.description
        return made | ({"priority": self.priority} if self.priority else {})


@dataclass(frozen=True)
class _Kind:
    """One resource: its document, what the operator says about it, its names, and how it is listed."""

    document: type[Document]
    status: type[Document]
    plural: str
    short: str
    columns: tuple[_Column, ...]
    adapt: Callable[[Schema], None] = lambda _schema: None
    """Adds to the schema what holds on Kubernetes alone."""

    @property
    def group_and_version(self) -> tuple[str, str]:
        group, version = str(self.document.model_fields["api_version"].default).split("/")
        return group, version


def _as_pods(schema: Schema) -> None:
    """A job on Kubernetes is made of pods: containers have images, a Service has the job's name."""
    name = {"type": "string", "maxLength": MAX_NAME_LENGTH, "pattern": _SERVICE_NAME}
    schema["properties"]["metadata"] = {"type": "object", "properties": {"name": name}}
    roles = schema["properties"]["spec"]["properties"]
    for role in ("worker", "parameterServer", "evaluator", "master"):
        containers = roles[role]["properties"]["template"]["properties"]["spec"]["properties"]["containers"]
        container = containers["items"]
        container["properties"]["image"] = {"type": "string", "minLength": 1, "description": "The container's image."}
        container["required"] = ["image"]
        if role == "worker":
            # One of them has a command. That it is the first no schema can say, so the operator does.
            containers["not"] = {"items": {"not": {"required": ["command"]}}}
    roles["worker"]["anyOf"] = [{"required": ["template"]}, {"required": ["guests"]}]


_AGE = _Column("Age", ".metadata.creationTimestamp", "date")
_STATE = _Column("State", ".status.phase")
_MESSAGE = _Column("Message", ".status.message", priority=1)

_KINDS = (
    _Kind(
        JobResource,
        PlanStatus,
        "jobresources",
        "jr",
        (
            _Column("Job", ".spec.selector.name"),
            _Column("Workers", ".spec.worker.replicas", "integer"),
            _Column("PS", ".spec.parameter_server.replicas", "integer"),
            _STATE,
            _AGE,
            _MESSAGE,
        ),
    ),
    _Kind(
        ElasticJob,
        ElasticJobStatus,
        "elasticjobs",
        "ej",
        (
            _STATE,
            _Column("Workers", ".status.replicaStatuses.worker.active", "integer", description="Workers that run."),
            _Column("PS", ".status.replicaStatuses.ps.active", "integer", description="Parameter servers that run."),
            _Column("Restarts", ".status.restarts.counted", "integer", description="Relaunches that were counted."),
            _AGE,
            _Column("Strategy", ".spec.distributionStrategy", priority=1),
            _Column("Reason", ".status.reason", priority=1),
        ),
        _as_pods,
    ),
    _Kind(
        ScalePlanDocument,
        PlanStatus,
        "scaleplans",
        "sp",
        (
            _Column("Job", ".spec.ownerJob"),
            _Column("Type", rf".metadata.labels.{SCALE_TYPE_LABEL}"),
            _STATE,
            _AGE,
            _MESSAGE,
        ),
    ),
)


def custom_resource_definitions() -> dict[str, Schema]:
    """The definitions, by the names of the files that hold them, in the order of these names."""
    return {
        f"{group}_{kind.plural}.yaml": _definition(kind)
        for kind in _KINDS
        for group, _version in (kind.group_and_version,)
    }


def _definition(kind: _Kind) -> Schema:
    group, version = kind.group_and_version
    singular = str(kind.document.model_fields["kind"].default)
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{kind.plural}.{group}"},
        "spec": {
            "group": group,
            "names": {
                "kind": singular,
                "listKind": f"{singular}List",
                "plural": kind.plural,
                "singular": singular.lower(),
                "shortNames": [kind.short],
            },
            "scope": "Namespaced",
            "versions": [
                {
                    "name": version,
                    "served": True,
                    "storage": True,
                    "schema": {"openAPIV3Schema": _resource_schema(kind)},
                    "subresources": {"status": {}},
                    "additionalPrinterColumns": [column.manifest() for column in kind.columns],
                }
            ],
        },
    }


def _resource_schema(kind: _Kind) -> Schema:
    whole = _structural_schema(kind.document)
    status = _structural_schema(kind.status)
    made = {
        "type": "object",
        "description": whole["description"],
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"type": "object"},
            "spec": whole["properties"]["spec"],
            # Who writes it knows what it says; a newer operator may say more than this schema knows.
            "status": {**status, _ANY: True},
        },
    }
    kind.adapt(made)
    return made


def _structural_schema(model: type[Document]) -> Schema:
    generated = model.model_json_schema(by_alias=True)
    return _structural(generated, generated.get("$defs", {}))


def _structural(schema: Schema, definitions: dict[str, Schema]) -> Schema:
    """What a JSON schema says, as Kubernetes wants it: every part has one type, and refers to nothing."""
    schema = _resolved(schema, definitions)
    made: Schema = {key: schema[key] for key in _KEPT if key in schema}
    if "const" in schema:
        made["enum"] = [schema["const"]]
    if "exclusiveMinimum" in schema:
        made |= {"minimum": schema["exclusiveMinimum"], "exclusiveMinimum": True}
    if "anyOf" in schema:
        made |= _of_several_types([_structural(part, definitions) for part in schema["anyOf"]])
    if _shown_default(schema):
        made["description"] = f"{made.get('description', '')} Unless given: {_shown_default(schema)}.".strip()
    if "items" in schema:
        made["items"] = _structural(schema["items"], definitions)
    if "properties" in schema:
        made["properties"] = {key: _structural(part, definitions) for key, part in schema["properties"].items()}
    others = schema.get("additionalProperties", False)
    if others is True:
        made[_ANY] = True
    elif others:
        made["additionalProperties"] = _structural(others, definitions)
    return made


def _resolved(schema: Schema, definitions: dict[str, Schema]) -> Schema:
    """The schema with what it refers to in place, after what it says itself. What may be null may be left out."""
    if "$ref" in schema:
        own = {key: value for key, value in schema.items() if key != "$ref"}
        return _resolved({**definitions[schema["$ref"].rsplit("/", 1)[1]], **own}, definitions)
    parts = [part for part in schema.get("anyOf", []) if part.get("type") != "null"]
    if len(parts) == 1:
        own = {key: value for key, value in schema.items() if key != "anyOf"}
        return _resolved({**parts[0], **own}, definitions)
    return {**schema, "anyOf": parts} if parts else schema


def _of_several_types(parts: list[Schema]) -> Schema:
    """A quantity: a number or a text. Each of its rules holds for values of one type, so they can stand together."""
    types = sorted(part["type"] for part in parts)
    rules: Schema = {}
    for part in parts:
        rules |= {key: value for key, value in part.items() if key != "type"}
    if types == ["integer", "string"]:
        return {_INT_OR_STRING: True, "anyOf": [{"type": "integer"}, {"type": "string"}], **rules}
    # Kubernetes knows no "number or string". Any value may stand here, but only as few are let through as can be.
    return {_ANY: True, "maxItems": 0, "maxProperties": 0, **rules}


def _shown_default(schema: Schema) -> str:
    default = schema.get("default")
    if isinstance(default, bool):
        return str(default).lower()
    if isinstance(default, float) and default.is_integer():
        return str(int(default))
    return str(default) if isinstance(default, int | float | str) and default != "" else ""
