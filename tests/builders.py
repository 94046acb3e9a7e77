"""Builders of the things that many tests need."""

from __future__ import annotations

from typing import Any

from elastane.model.dataset import DatasetSpec
from elastane.model.ids import DatasetName
from elastane.model.job_spec import ElasticJob, load_job


def job_document(**worker: Any) -> dict[str, Any]:
    """A job document with one container; keywords are keys of `spec.worker`."""
    template = {"spec": {"containers": [{"command": ["train"]}]}}
    return {"metadata": {"name": "ctr"}, "spec": {"worker": {"template": template, **worker}}}


def make_job(**worker: Any) -> ElasticJob:
    return load_job(job_document(**worker))


def make_dataset(size: int | None = 100, *, shard_size: int = 10, name: str = "d", **more: Any) -> DatasetSpec:
    return DatasetSpec(DatasetName(name), shard_size=shard_size, size=size, **more)
