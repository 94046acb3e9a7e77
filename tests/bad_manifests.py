"""Manifests that an API server refuses by the resources' schemas: each is a good one with one thing wrong."""

from __future__ import annotations

import copy
import re
from dataclasses import dataclass
from typing import Any

from elastane.model.cluster_documents import load_job_resource, load_scale_plan
from elastane.model.job_spec import load_job

LOADERS = {"ElasticJob": load_job, "ScalePlan": load_scale_plan, "JobResource": load_job_resource}

_CONTAINER = {"name": "main", "image": "train:1", "command": ["python", "train.py"]}
_TEMPLATE = "spec.worker.template.spec.containers"


def good_manifest(kind: str) -> dict[str, Any]:
    """A manifest with a bit of everything that can be wrong."""
    specs: dict[str, dict[str, Any]] = {
        "ElasticJob": {
            "distributionStrategy": "parameter_server",
            "parameterServer": {"restartCount": 3},
            "worker": {
                "replicas": 2,
                "resource": {"cpu": 0.5, "memory": "256Mi", "disk": 8192, "gpu": 0},
                "template": {"spec": {"containers": [_CONTAINER, {"name": "beside", "image": "log:1"}]}},
            },
        },
        "ScalePlan": {"ownerJob": "ctr", "replicaResourceSpecs": {"ps": _change(), "worker": _change()}},
        "JobResource": {"selector": {"name": "ctr"}, "worker": _change(), "parameter_server": _change()},
    }
    group = "elastic.easydl.org" if kind == "JobResource" else "elastic.iml.github.io"
    manifest = {"apiVersion": f"{group}/v1alpha1", "kind": kind, "metadata": {"name": "ctr"}, "spec": specs[kind]}
    return copy.deepcopy(manifest)


def _change() -> dict[str, Any]:
    return {"replicas": 2, "resource": {"cpu": "500m", "memory": 256}}


@dataclass(frozen=True)
class BadManifest:
    """One thing that is wrong: the place, what stands there (None: nothing), and the place that a refusal names."""

    kind: str
    path: str
    value: Any
    named: str = ""

    def __str__(self) -> str:
        return f"{self.kind} {self.path}={str(self.value)[:40]}"

    @property
    def place(self) -> str:
        """What a refusal names."""
        return self.named or self.path

    @property
    def place_of_any(self) -> str:
        """The same for an API server that does not say which one of several it is."""
        return re.sub(r"\[\d+\]", "", self.place)

    def manifest(self) -> dict[str, Any]:
        made = good_manifest(self.kind)
        *parents, last = self.path.split(".")
        at = made
        for parent in parents:
            at = at.setdefault(parent, {})
        if self.value is None:
            del at[last]
        else:
            at[last] = self.value
        return made


BAD_MANIFESTS = (
    BadManifest("ElasticJob", "metadata.name", "a" * 51),
    BadManifest("ElasticJob", "spec", None),
    BadManifest("ElasticJob", "spec.distributionStrategy", "mesh"),
    BadManifest("ElasticJob", "spec.worker", None),
    BadManifest("ElasticJob", "spec.worker.template", None),
    BadManifest("ElasticJob", "spec.worker.template.spec", None),
    BadManifest("ElasticJob", _TEMPLATE, []),
    BadManifest("ElasticJob", _TEMPLATE, [{"name": "main", "image": "train:1"}]),
    BadManifest("ElasticJob", _TEMPLATE, [{**_CONTAINER, "command": []}], f"{_TEMPLATE}[0].command"),
    BadManifest("ElasticJob", _TEMPLATE, [{**_CONTAINER, "command": "train"}], f"{_TEMPLATE}[0].command"),
    BadManifest("ElasticJob", _TEMPLATE, [{**_CONTAINER, "env": [{"value": "1"}]}], f"{_TEMPLATE}[0].env[0].name"),
    BadManifest("ElasticJob", "spec.worker.replicas", -1),
    BadManifest("ElasticJob", "spec.worker.replicas", 0),
    BadManifest("ElasticJob", "spec.worker.replicas", 20_000),
    BadManifest("ElasticJob", "spec.worker.replicas", "2"),
    BadManifest("ElasticJob", "spec.worker.replicas", 1.5),
    BadManifest("ElasticJob", "spec.worker.minReplicas", 0),
    BadManifest("ElasticJob", "spec.worker.restartCount", -1),
    BadManifest("ElasticJob", "spec.worker.critical", "some"),
    BadManifest("ElasticJob", "spec.worker.guests", "yes"),
    BadManifest("ElasticJob", "spec.worker.resource.memory", "256Q"),
    BadManifest("ElasticJob", "spec.worker.resource.memory", "2 GB"),
    BadManifest("ElasticJob", "spec.worker.resource.memory", 0),
    BadManifest("ElasticJob", "spec.worker.resource.memory", 1.5),
    BadManifest("ElasticJob", "spec.worker.resource.disk", "-1Mi"),
    BadManifest("ElasticJob", "spec.worker.resource.cpu", "two"),
    BadManifest("ElasticJob", "spec.worker.resource.cpu", 0),
    BadManifest("ElasticJob", "spec.worker.resource.cpu", -0.5),
    BadManifest("ElasticJob", "spec.worker.resource.cpu", 5000),
    BadManifest("ElasticJob", "spec.worker.resource.cpu", {"cores": 1}),
    BadManifest("ElasticJob", "spec.worker.resource.gpu", 65),
    BadManifest("ElasticJob", "spec.parameterServer.replicas", 1001),
    BadManifest("ElasticJob", "spec.parameterServer.buckets", 0),
    BadManifest("ElasticJob", "spec.parameterServer.checkpoint", {}, "spec.parameterServer.checkpoint.folder"),
    BadManifest("ElasticJob", "spec.evaluator.replicas", 0),
    BadManifest("ElasticJob", "spec.master.restartCount", -1),
    BadManifest("ElasticJob", "spec.autoscale.windowSeconds", 1),
    BadManifest("ElasticJob", "spec.heartbeatTimeoutSeconds", 0),
    BadManifest("ElasticJob", "spec.taskTimeoutSeconds", "soon"),
    BadManifest("ElasticJob", "spec.scaler", "operator"),
    BadManifest("ElasticJob", "spec.suspend", "yes"),
    BadManifest("ElasticJob", "spec.activeDeadlineSeconds", 0),
    BadManifest("ElasticJob", "spec.ttlSecondsAfterFinished", -1),
    BadManifest("ElasticJob", "spec.backoffLimit", -1),
    BadManifest("ElasticJob", "spec.priorityClassName", "High Priority"),
    BadManifest("ElasticJob", "spec.schedulerName", ""),
    BadManifest("ScalePlan", "spec.ownerJob", None),
    BadManifest("ScalePlan", "spec.ownerJob", "Ctr"),
    BadManifest("ScalePlan", "spec.replicaResourceSpecs.worker.replicas", -1),
    BadManifest("ScalePlan", "spec.replicaResourceSpecs.ps.resource.memory", "much"),
    BadManifest("ScalePlan", "spec.createPods", [{"type": "worker", "id": 0, "slot": 0}], "spec.createPods[0].name"),
    BadManifest(
        "ScalePlan",
        "spec.createPods",
        [{"name": "ctr-master", "type": "master", "id": 0, "slot": 0}],
        "spec.createPods[0].type",
    ),
    BadManifest("ScalePlan", "spec.removePods", "ctr-worker-0"),
    BadManifest("ScalePlan", "spec.removeAtOnce", "now"),
    BadManifest("JobResource", "spec.selector", None),
    BadManifest("JobResource", "spec.selector.name", None),
    BadManifest("JobResource", "spec.worker.replicas", "four"),
    BadManifest("JobResource", "spec.parameter_server.resource.gpu", -1),
    BadManifest("JobResource", "spec.parameter_server.resource.cpu", "4 cores"),
    BadManifest("JobResource", "spec.resource_updation", [{"name": "ctr-ps-0"}], "spec.resource_updation[0].resource"),
)
"""Refused by the schema and by the document's model alike."""

BAD_ON_KUBERNETES = (
    BadManifest("ElasticJob", "metadata.name", "7ctr"),
    BadManifest("ElasticJob", _TEMPLATE, [{"name": "main", "command": ["train"]}], f"{_TEMPLATE}[0].image"),
)
"""Refused by the schema alone: a local job may have them."""
