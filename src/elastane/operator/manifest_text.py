"""Manifests as YAML text."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import yaml


class _Plain(yaml.SafeDumper):
    """Writes what occurs twice in full both times; anchors help no reader of a manifest."""

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002  # of nothing
        return True

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:  # noqa: ARG002  # lists too
        super().increase_indent(flow, False)


def as_yaml(documents: Iterable[dict[str, Any]]) -> str:
    """The documents one after the other, each begun by `---`."""
    return yaml.dump_all(documents, Dumper=_Plain, sort_keys=False, width=120, explicit_start=True, allow_unicode=True)
