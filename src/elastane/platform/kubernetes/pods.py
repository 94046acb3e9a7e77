"""The pods of a job, as plain manifests: one builder for all who make them, so that a node is the same by any hand."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from elastane.model.environment import (
    ENV_CERTIFICATE,
    ENV_JOB_UID,
    ENV_MASTER,
    ENV_METRICS,
    ENV_NAMESPACE,
    ENV_NODE,
    ENV_ROLE,
    ENV_TOKEN,
)
from elastane.model.errors import InvalidInput
from elastane.model.job_spec import API_VERSION, ElasticJob
from elastane.model.node import Node, NodeResource, NodeType
from elastane.model.pod_template import PodTemplate
from elastane.model.quantity import Memory
from elastane.platform.local.registry import STATE_ENV

_PREFIX = API_VERSION.partition("/")[0]
LABEL_JOB = f"{_PREFIX}/job"
LABEL_ROLE = f"{_PREFIX}/role"
LABEL_INDEX = f"{_PREFIX}/index"
ANNOTATION_SLOT = f"{_PREFIX}/slot"
ANNOTATION_RESTARTS = f"{_PREFIX}/restarts"
ANNOTATION_RELAUNCHES = f"{_PREFIX}/relaunches"

MASTER_PORT = 7070
METRICS_PORT, METRICS_PORT_NAME = 7071, "metrics"
"""Where masters and parameter servers serve their metrics, over plain HTTP."""
SECRET_FOLDER = "/etc/elastane"  # noqa: S105  # where secrets are, not one
STATE_FOLDER = "/var/lib/elastane"
KEY_TOKEN, KEY_CERTIFICATE, KEY_KEY, KEY_JOB = "token", "tls.crt", "tls.key", "job.json"
"""The keys of a job's Secret."""

_SECRET_VOLUME, _STATE_VOLUME = "elastane-secret", "elastane-state"
_WORKERS_OWN = frozenset(
    {"args", "command", "lifecycle", "livenessProbe", "ports", "readinessProbe", "resources", "startupProbe"}
)
"""What a worker's container has for its own sake, and a master that is made from its template has not."""

Manifest = dict[str, Any]


@dataclass(frozen=True)
class JobOwner:
    """The ElasticJob that owns a job's pods, and where its master is reached: HOST:PORT."""

    name: str
    namespace: str
    uid: str
    master_address: str

    @property
    def master_name(self) -> str:
        """The name of the master's pod, and of its Secret, Service and ServiceAccount."""
        return f"{self.name}-{NodeType.MASTER}"

    @property
    def reference(self) -> Manifest:
        """What everything that goes with the job has in its `ownerReferences`."""
        return {
            "apiVersion": API_VERSION,
            "kind": "ElasticJob",
            "name": self.name,
            "uid": self.uid,
            "controller": True,
            "blockOwnerDeletion": True,
        }

    def owns(self, resource: Mapping[str, Any]) -> bool:
        """Whether a resource is of this job, and not of another that had its name before."""
        references = resource["metadata"].get("ownerReferences", ())
        return any(reference["uid"] == self.uid for reference in references)


def nodes_selector(job: str) -> str:
    """The label selector of a job's pods, without its master's."""
    return f"{LABEL_JOB}={job},{LABEL_ROLE}!={NodeType.MASTER}"


def interpreter(command: Sequence[str]) -> str:
    """The Python that a template's command runs, which is the one that has elastane; else the image's python3."""
    first = command[0] if command else ""
    return first if PurePosixPath(first).name.startswith("python") else "python3"


def node_pod(job: ElasticJob, node: Node, owner: JobOwner) -> Manifest:
    """The pod of a node. It is the same whenever it is built for the same node. Raises InvalidInput without a template.

    Its template is its role's own, or else the worker's. The first container is the node's.
    """
    template, is_own = _template(job, node.type)
    pod = _pod(job, template, owner, node.name, node.type, node.id)
    pod["metadata"]["annotations"] |= {
        ANNOTATION_SLOT: str(node.slot),
        ANNOTATION_RESTARTS: str(node.restarts),
        ANNOTATION_RELAUNCHES: str(node.relaunches),
    }
    spec = pod["spec"]
    spec["restartPolicy"] = "Never"
    grace_s = math.ceil(job.spec.termination_grace_period_seconds)
    spec["terminationGracePeriodSeconds"] = max(grace_s, spec.get("terminationGracePeriodSeconds", 0))
    if "serviceAccountName" not in spec:
        spec.setdefault("automountServiceAccountToken", False)
    env = [
        _variable(ENV_MASTER, owner.master_address),
        _secret_variable(ENV_TOKEN, owner, KEY_TOKEN),
        _secret_variable(ENV_CERTIFICATE, owner, KEY_CERTIFICATE),
        _variable(ENV_NODE, node.name),
        _variable(ENV_ROLE, node.type),
    ]
    for container in spec["containers"]:
        container["env"] = _with_variables(container.get("env", []), env)
        container.setdefault("terminationMessagePolicy", "FallbackToLogsOnError")
    its_own = spec["containers"][0]
    if node.type is NodeType.PS and not (is_own and its_own.get("command")):
        its_own["command"] = [interpreter(its_own.get("command", ())), "-P", "-m", "elastane.ps"]
        its_own.pop("args", None)
    if node.type is NodeType.PS:
        _serve_metrics(pod)
    _set_resources(its_own, node.resource)
    return pod


def master_pod(job: ElasticJob, owner: JobOwner) -> Manifest:
    """The pod of the job's master, whose address is that of its Service. Raises InvalidInput without a template.

    It is restarted until the job has ended, with its journal.
    """
    template, is_own = _template(job, NodeType.MASTER)
    pod = _pod(job, template, owner, owner.master_name, NodeType.MASTER, 0)
    spec = pod["spec"]
    python = interpreter(spec["containers"][0].get("command", ()))
    if not is_own:
        # What else runs beside a worker, or before it, is there for its sake, and would keep the pod from ending.
        first = spec["containers"][0]
        spec["containers"] = [{key: value for key, value in first.items() if key not in _WORKERS_OWN}]
        for key in ("activeDeadlineSeconds", "initContainers", "terminationGracePeriodSeconds"):
            spec.pop(key, None)
    spec.pop("serviceAccount", None)
    spec |= {
        "restartPolicy": "OnFailure",
        "serviceAccountName": owner.master_name,
        "automountServiceAccountToken": True,
        "volumes": [
            *spec.get("volumes", ()),
            {"name": _SECRET_VOLUME, "secret": {"secretName": owner.master_name}},
        ],
    }
    container = spec["containers"][0]
    mounts = [
        *container.get("volumeMounts", ()),
        {"name": _SECRET_VOLUME, "mountPath": SECRET_FOLDER, "readOnly": True},
    ]
    if not any(mount["mountPath"] == STATE_FOLDER for mount in mounts):
        # A template may have a volume there that outlives the pod, or that the nodes see, too.
        spec["volumes"].append({"name": _STATE_VOLUME, "emptyDir": {}})
        mounts.append({"name": _STATE_VOLUME, "mountPath": STATE_FOLDER})
    container.pop("args", None)
    container |= {
        "command": [python, "-P", "-m", "elastane.master.pod"],
        "env": _with_variables(
            container.get("env", []),
            [
                _variable(ENV_MASTER, owner.master_address),
                _variable(ENV_JOB_UID, owner.uid),
                _variable(ENV_NAMESPACE, owner.namespace),
                _variable(STATE_ENV, STATE_FOLDER),
            ],
        ),
        "volumeMounts": mounts,
        "readinessProbe": {"tcpSocket": {"port": MASTER_PORT}, "periodSeconds": 2},
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }
    _serve_metrics(pod)
    _set_resources(container, job.spec.master.resource.node_resource())
    return pod


def _serve_metrics(pod: Manifest) -> None:
    """Let the first container serve metrics, at a port that is named, and say so to who looks for such pods.

    A template may have a port of that name, which is then the one, or want nobody to look.
    """
    container, annotations = pod["spec"]["containers"][0], pod["metadata"]["annotations"]
    ports = container.setdefault("ports", [])
    number = next((port["containerPort"] for port in ports if port.get("name") == METRICS_PORT_NAME), None)
    if number is None:
        number = METRICS_PORT
        ports.append({"name": METRICS_PORT_NAME, "containerPort": number})
    container["env"] = _with_variables(container["env"], [_variable(ENV_METRICS, f"0.0.0.0:{number}")])
    annotations.setdefault("prometheus.io/scrape", "true")
    annotations |= {"prometheus.io/port": str(number), "prometheus.io/path": "/metrics"}


def _template(job: ElasticJob, role: NodeType) -> tuple[PodTemplate, bool]:
    """A role's template, and whether it is its own. Raises InvalidInput if there is none."""
    spec = job.spec
    own = {
        NodeType.MASTER: spec.master.template,
        NodeType.PS: None if spec.ps is None else spec.ps.template,
        NodeType.EVALUATOR: None if spec.evaluator is None else spec.evaluator.template,
        NodeType.WORKER: spec.worker.template,
    }[role]
    if own is not None:
        return own, True
    if spec.worker.template is None:
        raise InvalidInput(f'job "{job.name}" has no template for its {role}: its workers are started by others')
    return spec.worker.template, False


def _pod(job: ElasticJob, template: PodTemplate, owner: JobOwner, name: str, role: NodeType, index: int) -> Manifest:
    """What is the same for the pods of all roles."""
    # What the template does not say is left to Kubernetes; what it says is the job's, and is not to be changed here.
    plain = copy.deepcopy(template.model_dump(mode="json", exclude_unset=True))
    metadata, spec = plain.get("metadata", {}), plain["spec"]
    if job.spec.priority_class_name is not None:
        spec.setdefault("priorityClassName", job.spec.priority_class_name)
    if job.spec.scheduler_name is not None:
        spec.setdefault("schedulerName", job.spec.scheduler_name)
    # Without this every Service of the namespace adds variables to every pod.
    spec.setdefault("enableServiceLinks", False)
    for container, dumped in zip(template.spec.containers, spec["containers"], strict=True):
        dumped.setdefault("name", container.name)
    labels = {LABEL_JOB: job.name, LABEL_ROLE: role.value, LABEL_INDEX: str(index)}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": owner.namespace,
            "labels": {**(metadata.get("labels") or {}), **labels},
            "annotations": dict(metadata.get("annotations") or {}),
            "ownerReferences": [owner.reference],
        },
        "spec": spec,
    }


def _set_resources(container: Manifest, resource: NodeResource) -> None:
    """Give a container what its node is to have; of what the node says nothing, the template's stays."""
    amounts = {}
    if resource.cpu is not None:
        amounts["cpu"] = f"{max(1, round(resource.cpu * 1000))}m"
    if resource.memory is not None:
        amounts["memory"] = _quantity(resource.memory)
    if resource.disk is not None:
        amounts["ephemeral-storage"] = _quantity(resource.disk)
    devices = {"nvidia.com/gpu": str(resource.gpu_num)} if resource.gpu_num else {}
    if amounts or devices:
        before = container.get("resources") or {}
        limits = {**(before.get("limits") or {}), **amounts, **devices}
        requests = {**(before.get("requests") or {}), **amounts}
        for device in devices:
            requests.pop(device, None)  # It must be the same as the limit, and is, if nothing is said.
        container["resources"] = {**before, "limits": limits, "requests": requests}


def _quantity(memory: Memory) -> str:
    return str(memory.bytes) if memory.bytes % 2**10 else str(memory)


def _variable(name: str, value: str) -> Manifest:
    return {"name": name, "value": str(value)}


def _secret_variable(name: str, owner: JobOwner, key: str) -> Manifest:
    return {"name": name, "valueFrom": {"secretKeyRef": {"name": owner.master_name, "key": key}}}


def _with_variables(given: Sequence[Manifest], ours: Sequence[Manifest]) -> list[Manifest]:
    """Ours, which a template cannot change, and then its own, which may refer to ours."""
    names = {variable["name"] for variable in ours}
    unbuffered = {} if any(variable["name"] == "PYTHONUNBUFFERED" for variable in given) else {"PYTHONUNBUFFERED": "1"}
    return [
        *copy.deepcopy(list(ours)),
        *(_variable(name, value) for name, value in unbuffered.items()),
        *(variable for variable in given if variable["name"] not in names),
    ]
