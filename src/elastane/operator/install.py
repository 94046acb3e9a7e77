"""What a cluster needs for elastic jobs: the definitions, the operator, and the rights of both it and the masters."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from elastane import __version__
from elastane.model.environment import ENV_NAMESPACE
from elastane.model.errors import InvalidInput
from elastane.operator.crds import custom_resource_definitions

Manifest = dict[str, Any]

NAMESPACE = "elastane-system"
IMAGE = f"elastane:{__version__}"
OPERATOR = "elastane-operator"
"""The name of the operator's Deployment, ServiceAccount, Lease and roles."""
MASTER_ROLE = "elastane-master"
"""The ClusterRole that the operator binds to a job's master, in the job's namespace."""
HEALTH_PORT = 8080
HEALTH_PATH = "/healthz"

ELASTIC = "elastic.iml.github.io"
EASYDL = "elastic.easydl.org"
RBAC = "rbac.authorization.k8s.io"


class Rule(NamedTuple):
    """Verbs that are allowed on resources of an API group, or on those of them that are named."""

    group: str
    resources: tuple[str, ...]
    verbs: tuple[str, ...]
    names: tuple[str, ...] = ()

    def manifest(self) -> Manifest:
        made: Manifest = {"apiGroups": [self.group], "resources": list(self.resources), "verbs": list(self.verbs)}
        return made | ({"resourceNames": list(self.names)} if self.names else {})


OPERATOR_RULES = (
    Rule(ELASTIC, ("elasticjobs",), ("get", "list", "watch", "delete")),
    Rule(ELASTIC, ("scaleplans",), ("list", "watch")),
    Rule(EASYDL, ("jobresources",), ("list", "watch")),
    Rule(ELASTIC, ("elasticjobs/status", "scaleplans/status"), ("patch",)),
    Rule(EASYDL, ("jobresources/status",), ("patch",)),
    # Where the API server checks it, who makes a resource whose owner waits for it must be allowed to let it wait.
    Rule(ELASTIC, ("elasticjobs/finalizers",), ("update",)),
    Rule("", ("pods",), ("get", "list", "watch", "create", "delete")),
    Rule("", ("secrets",), ("get", "create", "patch")),
    Rule("", ("services", "serviceaccounts"), ("get", "create")),
    Rule(RBAC, ("rolebindings",), ("get", "create")),
    Rule(RBAC, ("clusterroles",), ("bind",), (MASTER_ROLE,)),
    Rule("", ("events",), ("create",)),
)
"""What the operator may do in every namespace."""

OPERATOR_OWN_RULES = (Rule("coordination.k8s.io", ("leases",), ("get", "create", "update")),)
"""What the operator may do in its own namespace: elect the one of its replicas that leads."""

MASTER_RULES = (
    Rule("", ("pods",), ("list", "watch", "create", "delete")),
    Rule(ELASTIC, ("scaleplans",), ("create",)),
    # As for the operator: the pods that a master makes have the job as an owner that waits for them.
    Rule(ELASTIC, ("elasticjobs/finalizers",), ("update",)),
)
"""What a job's master may do, in the job's namespace."""

VALUES: Mapping[str, Any] = {
    "image": IMAGE,
    "imagePullPolicy": "IfNotPresent",
    "replicas": 2,
    "resources": {"requests": {"cpu": "100m", "memory": "256Mi"}, "limits": {"memory": "1Gi"}},
    "nodeSelector": {},
    "tolerations": [],
}
"""What can be chosen for the operator's pods, by the names that the Helm chart has for it, and what is chosen else."""


def installation(image: str = IMAGE, namespace: str = NAMESPACE) -> list[Manifest]:
    """All manifests, in the order in which they can be applied. Raises InvalidInput."""
    if not re.fullmatch(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", namespace):
        raise InvalidInput(
            f'namespace: "{namespace}" is not a namespace; use at most 63 lower-case letters, digits and dashes'
        )
    if not re.fullmatch(r"[^\s]+", image):
        raise InvalidInput(f'image: "{image}" is not an image; write one such as {IMAGE}')
    return [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}},
        *custom_resource_definitions().values(),
        *operator_manifests(namespace, {**VALUES, "image": image}),
    ]


def operator_manifests(namespace: str, values: Mapping[str, Any]) -> list[Manifest]:
    """The operator in a namespace that is there, and the rights."""
    return [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": _metadata(OPERATOR, namespace)},
        _role("ClusterRole", _metadata(OPERATOR), OPERATOR_RULES),
        _role("ClusterRole", _metadata(MASTER_ROLE), MASTER_RULES),
        _role("Role", _metadata(OPERATOR, namespace), OPERATOR_OWN_RULES),
        _binding("ClusterRoleBinding", "ClusterRole", _metadata(OPERATOR), namespace),
        _binding("RoleBinding", "Role", _metadata(OPERATOR, namespace), namespace),
        _deployment(namespace, values),
    ]


def _metadata(name: str, namespace: str | None = None) -> Manifest:
    where = {} if namespace is None else {"namespace": namespace}
    return {"name": name, **where, "labels": {"app.kubernetes.io/name": "elastane"}}


def _role(kind: str, metadata: Manifest, rules: tuple[Rule, ...]) -> Manifest:
    return {
        "apiVersion": f"{RBAC}/v1",
        "kind": kind,
        "metadata": metadata,
        "rules": [rule.manifest() for rule in rules],
    }


def _binding(kind: str, role: str, metadata: Manifest, namespace: str) -> Manifest:
    return {
        "apiVersion": f"{RBAC}/v1",
        "kind": kind,
        "metadata": metadata,
        "roleRef": {"apiGroup": RBAC, "kind": role, "name": OPERATOR},
        "subjects": [{"kind": "ServiceAccount", "name": OPERATOR, "namespace": namespace}],
    }


def _deployment(namespace: str, values: Mapping[str, Any]) -> Manifest:
    labels = {"app.kubernetes.io/name": "elastane", "app.kubernetes.io/component": "operator"}
    probe = {"httpGet": {"path": HEALTH_PATH, "port": "health"}}
    container = {
        "name": "operator",
        "image": values["image"],
        "imagePullPolicy": values["imagePullPolicy"],
        "command": ["elastane", "operator", f"--health-port={HEALTH_PORT}"],
        "env": [{"name": ENV_NAMESPACE, "valueFrom": {"fieldRef": {"fieldPath": "metadata.namespace"}}}],
        "ports": [{"name": "health", "containerPort": HEALTH_PORT}],
        "livenessProbe": {**probe, "initialDelaySeconds": 10, "periodSeconds": 10, "failureThreshold": 6},
        "readinessProbe": {**probe, "periodSeconds": 5},
        "resources": values["resources"],
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": True,
        },
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }
    annotations = {
        "prometheus.io/scrape": "true",
        "prometheus.io/port": str(HEALTH_PORT),
        "prometheus.io/path": "/metrics",
    }
    spread = {
        "maxSkew": 1,
        "topologyKey": "kubernetes.io/hostname",
        "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {"matchLabels": labels},
    }
    pod = {
        "serviceAccountName": OPERATOR,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": 65532,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "topologySpreadConstraints": [spread],
        "nodeSelector": values["nodeSelector"],
        "tolerations": values["tolerations"],
        "containers": [container],
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": _metadata(OPERATOR, namespace),
        "spec": {
            "replicas": values["replicas"],
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels, "annotations": annotations}, "spec": pod},
        },
    }
