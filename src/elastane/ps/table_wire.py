"""A table's description on the wire: JSON, checked by the noun itself."""

from __future__ import annotations

import json

from elastane.model.errors import InvalidInput, MalformedMessage
from elastane.model.ps import TableSpec
from elastane.ps.frames import Buffer


def write_table(spec: TableSpec) -> bytes:
    """The body of a DEFINE."""
    return json.dumps(spec.to_plain()).encode()


def read_table(body: Buffer) -> TableSpec:
    """The table in a DEFINE. Raises MalformedMessage."""
    try:
        plain = json.loads(bytes(body))
        if not isinstance(plain, dict):
            raise MalformedMessage("the description of a table is not an object")
        return TableSpec.from_plain(plain)
    except (ValueError, InvalidInput, RecursionError) as error:
        raise MalformedMessage(f"not the description of a table: {error}") from None
