"""What all documents share: strict keys, quantities, and one line for each field at fault.

A document is the plain form of a resource (dictionaries, lists, text, numbers), from a file or the Kubernetes API.
"""

from __future__ import annotations

import math
import re
from decimal import Decimal
from typing import Annotated, Any, TypeVar, get_args

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    ValidationError,
    WithJsonSchema,
    model_validator,
)
from pydantic.alias_generators import to_camel
from pydantic_core import ErrorDetails, PydanticCustomError

from elastane.model.errors import InvalidInput, InvalidJobSpec
from elastane.model.ids import MAX_NAME_LENGTH, NAME_PATTERN, JobName, job_name
from elastane.model.node import NodeResource
from elastane.model.quantity import Memory

MOST_CORES = 4096
_CORES = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,30})?)(m?)")


class Document(BaseModel):
    """Frozen, camelCase outside, and strict about keys that it does not know."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        alias_generator=to_camel,
        arbitrary_types_allowed=True,
        use_attribute_docstrings=True,
    )


class Resource(Document):
    """A whole document, with its version, kind and metadata. What an API server adds to it is read over."""

    @model_validator(mode="before")
    @classmethod
    def _without_status(cls, document: object) -> object:
        if isinstance(document, dict):
            return {key: value for key, value in document.items() if key != "status"}
        return document

    def document(self) -> dict[str, Any]:
        """The plain document that is read back to an equal one; fields that have their default are left out."""
        version, kind = (type(self).model_fields[name].default for name in ("api_version", "kind"))
        dumped = self.model_dump(mode="json", by_alias=True, exclude_defaults=True)
        return {"apiVersion": version, "kind": kind, **dumped}


def _memory(value: object) -> Memory:
    if isinstance(value, Memory):
        return value
    try:
        return Memory.parse(value)  # type: ignore[arg-type]  # parse() itself refuses what is neither str nor int
    except InvalidInput as error:
        raise quantity_error(str(error)) from None


def _cores(value: object) -> object:
    """Kubernetes' ways to write cores: 2, 0.5, "0.5" and "500m"."""
    allowed = 'write a number such as 2 or 0.5, or thousandths such as "500m"'
    if isinstance(value, str):
        match = _CORES.fullmatch(value)
        if match is None:
            raise quantity_error(f'"{value}" is not a number of cores; {allowed}')
        return float(Decimal(match[1]) / (1000 if match[2] else 1))
    if isinstance(value, bool):
        raise quantity_error(f"{value} is not a number of cores; {allowed}")
    return value


def _plain_cores(value: float) -> float | int:
    return int(value) if value.is_integer() else value


def _name(value: object) -> JobName:
    try:
        return job_name(str(value))
    except InvalidInput as error:
        raise quantity_error(str(error).removeprefix("name: ")) from None


MemoryField = Annotated[
    Memory,
    BeforeValidator(_memory),
    PlainSerializer(str),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "integer", "minimum": 1},
                {"type": "string", "pattern": r"^[0-9]{1,18}((\.[0-9]{1,30})?(k|M|G|T|Ki|Mi|Gi|Ti))?$"},
            ]
        }
    ),
]
CoresField = Annotated[
    float,
    BeforeValidator(_cores),
    Field(gt=0, le=MOST_CORES),
    PlainSerializer(_plain_cores),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "number", "exclusiveMinimum": 0, "maximum": MOST_CORES},
                {"type": "string", "pattern": rf"^{_CORES.pattern.replace('?:', '')}$"},
            ]
        }
    ),
]
JobNameField = Annotated[
    JobName,
    BeforeValidator(_name),
    WithJsonSchema({"type": "string", "maxLength": MAX_NAME_LENGTH, "pattern": f"^{NAME_PATTERN}$"}),
]
Seconds = Annotated[float, Field(gt=0, le=10**7, allow_inf_nan=False)]
Flag = Annotated[bool, Field(strict=True)]


class ResourceSpec(Document):
    """What one node of a role may use; absent means that there is no limit beside the platform's own."""

    cpu: CoresField | None = None
    """Cores: 2, 0.5, "0.5" or "500m"."""
    memory: MemoryField | None = None
    """Memory: a quantity such as 256Mi or 1.5Gi; a plain integer is MiB."""
    disk: MemoryField | None = None
    """Space on the node's own disk, written as memory is. It has no effect on a local job."""
    gpu: Annotated[int, Field(strict=True, ge=0, le=64)] = 0
    """How many GPUs. It has no effect on a local job."""

    def node_resource(self) -> NodeResource:
        return NodeResource(cpu=self.cpu, memory=self.memory, disk=self.disk, gpu_num=self.gpu)


class Metadata(Document):
    """Name, labels and annotations. What else an API server writes there is read over."""

    model_config = ConfigDict(extra="ignore")

    name: str
    """The name, which no other of its kind has in its namespace."""
    labels: dict[str, str] = {}
    """Labels; they have no effect on a local job."""
    annotations: dict[str, str] = {}
    """Annotations; they have no effect on a local job."""


class JobMetadata(Metadata):
    """The metadata of a job; its nodes' names begin with its name."""

    name: JobNameField
    """The job's name."""


_Loaded = TypeVar("_Loaded", bound=Document)


def load(kind: type[_Loaded], document: object) -> _Loaded:
    """Validate a plain document; raise InvalidJobSpec with one line for each field at fault."""
    try:
        return kind.model_validate(document)
    except ValidationError as error:
        problems = [p for p in error.errors(include_url=False) if p["type"] != "default_factory_not_called"]
        raise InvalidJobSpec(tuple(_line(kind, problem) for problem in problems)) from None


def field_error(field: str, text: str) -> PydanticCustomError:
    """What a validator of a whole document raises about one of its fields, by its key."""
    return PydanticCustomError("field", "{text}", {"text": text, "field": field})


def quantity_error(text: str) -> PydanticCustomError:
    """What a validator of one field raises; the text has the value, and what is allowed."""
    return PydanticCustomError("quantity", "{text}", {"text": text})


def _line(kind: type[Document], problem: ErrorDetails) -> str:
    loc = list(problem["loc"])
    fault, value, context = problem["type"], problem["input"], problem.get("ctx", {})
    if fault == "field":
        return f"{_path([*loc, context['field']])}: {problem['msg']}"
    if fault == "extra_forbidden":
        return f"{_path(loc)}: unknown key; allowed: {', '.join(_keys_at(kind, loc[:-1]))}"
    if fault == "missing":
        return f"{_path(loc)}: missing"
    if fault in ("enum", "literal_error"):
        return f'{_path(loc)}: "{value}" is not known; allowed: {context["expected"]}'
    if fault == "quantity":
        return f"{_path(loc)}: {problem['msg']}"
    shown = f'"{value}"' if isinstance(value, str | int | float) and not _is_nan(value) else type(value).__name__
    reason = problem["msg"].replace("tuple", "list")  # Nobody writes tuples in a document.
    return f"{_path(loc)}: {shown} cannot be used; {reason[0].lower()}{reason[1:]}"


def _is_nan(value: object) -> bool:
    return isinstance(value, float) and math.isnan(value)


def _path(loc: list[int | str]) -> str:
    text = ""
    for part in loc:
        text += f"[{part}]" if isinstance(part, int) else f".{part}"
    return text.lstrip(".") or "document"


def _keys_at(kind: type[Document], loc: list[int | str]) -> list[str]:
    """The keys that a document knows at `loc`; every place that forbids others is reached by keys and indices."""
    model: Any = kind
    for part in loc:
        if isinstance(part, str):
            model = _model_in(next(field.annotation for field in model.model_fields.values() if field.alias == part))
    return [field.alias or name for name, field in model.model_fields.items()]


def _model_in(annotation: Any) -> Any:
    """The model that an annotation is about: of an optional one or of many, that one."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for part in get_args(annotation) if (found := _model_in(part)) is not None), None)
