"""The manifests of what stands beside a job's master: its Secret, Service, ServiceAccount and RoleBinding."""

from __future__ import annotations

import base64
import json
from typing import Any

from elastane.model.job_spec import ElasticJob
from elastane.model.node import NodeType
from elastane.operator.install import MASTER_ROLE, RBAC
from elastane.operator.observed import Json
from elastane.operator.secrets import Credentials
from elastane.operator.times import stamp
from elastane.platform.kubernetes.pods import (
    KEY_CERTIFICATE,
    KEY_JOB,
    KEY_KEY,
    KEY_TOKEN,
    LABEL_JOB,
    LABEL_ROLE,
    MASTER_PORT,
    JobOwner,
    Manifest,
)

COMPONENT = "elastane-operator"


def secret(job: ElasticJob, owner: JobOwner, credentials: Credentials) -> Manifest:
    """The Secret of a job: its token, its certificate, and the job itself for the master to read."""
    texts = {
        KEY_TOKEN: credentials.token,
        KEY_CERTIFICATE: credentials.certificate,
        KEY_KEY: credentials.key,
        KEY_JOB: job_text(job),
    }
    data = {key: encoded(text) for key, text in texts.items()}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": _metadata(owner), "type": "Opaque", "data": data}


def job_text(job: ElasticJob) -> str:
    """The job as its master reads it; the same for the same job."""
    document = job.document()
    # What kubectl notes there is the whole manifest once more.
    document["metadata"] = {"name": job.name, **({"labels": job.metadata.labels} if job.metadata.labels else {})}
    return json.dumps(document, sort_keys=True)


def encoded(text: str) -> str:
    """A text as a Secret has it."""
    return base64.b64encode(text.encode()).decode()


def decoded(text: str) -> str:
    """What a Secret has, as a text."""
    return base64.b64decode(text).decode()


def service(owner: JobOwner) -> Manifest:
    """The Service of a master. Its address stays the same for all masters that the job has, one after another."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _metadata(owner),
        "spec": {
            "selector": _labels(owner),
            "ports": [{"name": "grpc", "port": MASTER_PORT, "targetPort": MASTER_PORT}],
        },
    }


def service_account(owner: JobOwner) -> Manifest:
    return {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": _metadata(owner)}


def role_binding(owner: JobOwner) -> Manifest:
    """The rights of a master, in its namespace alone."""
    return {
        "apiVersion": f"{RBAC}/v1",
        "kind": "RoleBinding",
        "metadata": _metadata(owner),
        "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": MASTER_ROLE},
        "subjects": [{"kind": "ServiceAccount", "name": owner.master_name, "namespace": owner.namespace}],
    }


def event(job: Json, name: str, reason: str, message: str, *, warning: bool, now: float) -> Manifest:
    """One thing that happened to a job, as `kubectl describe` shows it."""
    metadata: dict[str, Any] = job["metadata"]
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": name, "namespace": metadata["namespace"]},
        "involvedObject": {
            "apiVersion": job["apiVersion"],
            "kind": job["kind"],
            "name": metadata["name"],
            "namespace": metadata["namespace"],
            "uid": metadata["uid"],
        },
        "type": "Warning" if warning else "Normal",
        "reason": reason,
        "message": message,
        "source": {"component": COMPONENT},
        "firstTimestamp": stamp(now),
        "lastTimestamp": stamp(now),
        "count": 1,
    }


def _labels(owner: JobOwner) -> dict[str, str]:
    return {LABEL_JOB: owner.name, LABEL_ROLE: NodeType.MASTER.value}


def _metadata(owner: JobOwner) -> Manifest:
    return {
        "name": owner.master_name,
        "namespace": owner.namespace,
        "labels": _labels(owner),
        "ownerReferences": [owner.reference],
    }
