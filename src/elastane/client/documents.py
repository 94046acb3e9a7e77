"""The document of a job that is submitted: read from a file, given a name, and put into a namespace."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from elastane.model.errors import InvalidInput
from elastane.model.job_spec import ElasticJob, load_job

Submitted = ElasticJob | dict[str, Any] | str | os.PathLike[str]
"""A job, its document, or the file that has the document."""


def job_and_document(given: Submitted, name: str | None) -> tuple[ElasticJob, dict[str, Any]]:
    """The job, and the words that it was described in; with `name` in place of its own.

    Raises InvalidInput for a file that cannot be read, InvalidJobSpec for a document that is no job.
    """
    document: Any = given
    if isinstance(given, ElasticJob):
        document = given.document()
    elif isinstance(given, str | os.PathLike):
        document = read_document(os.fspath(given))
    if name is not None and isinstance(document, dict):
        metadata = document.get("metadata") or {}
        if isinstance(metadata, dict):
            document = {**document, "metadata": {**metadata, "name": name}}
    return load_job(document), document


def read_document(file: str) -> Any:
    """The one plain document in a file, YAML or JSON, `-` for standard input; raises InvalidInput."""
    name = "standard input" if file == "-" else f'"{file}"'
    try:
        text = sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(f"file: {name} cannot be read: {getattr(error, 'strerror', None) or error}") from None
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        if file.endswith(".json"):
            raise InvalidInput(f"file: {name} is not JSON: {error}") from None
    try:
        import yaml  # Only here: local jobs do without it.
    except ImportError:
        raise InvalidInput(
            f"file: {name} is not JSON, and YAML is not installed; pip install 'elastane[kubernetes]'"
        ) from None
    try:
        documents = [found for found in yaml.safe_load_all(text) if found is not None]
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise InvalidInput(f"file: {name} is not YAML: {' '.join(str(error).split())}") from None
    if len(documents) != 1:
        raise InvalidInput(f"file: {name} holds {len(documents)} documents; it must be one, an ElasticJob")
    return documents[0]


def namespace_in(document: Mapping[str, Any]) -> str | None:
    """The namespace that a job's document names, if any; raises InvalidInput for what is no name."""
    written = document["metadata"].get("namespace")
    if written is not None and not isinstance(written, str):
        raise InvalidInput(f"metadata.namespace: {written!r} is not a name")
    return written or None


def for_cluster(job: ElasticJob, document: Mapping[str, Any], namespace: str) -> dict[str, Any]:
    """What is created: the user's own words, in that namespace."""
    return {
        "apiVersion": job.api_version,
        "kind": job.kind,
        "metadata": {**document["metadata"], "namespace": namespace},
        "spec": document["spec"],
    }
