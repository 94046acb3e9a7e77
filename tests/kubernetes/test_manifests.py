"""What the API server takes and refuses: examples as they stand, and manifests with one thing wrong."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from elastane.operator.install import (
    MASTER_ROLE,
    MASTER_RULES,
    NAMESPACE,
    OPERATOR,
    OPERATOR_OWN_RULES,
    OPERATOR_RULES,
    Rule,
)
from tests.bad_manifests import BAD_MANIFESTS, BAD_ON_KUBERNETES, LOADERS, BadManifest, good_manifest
from tests.kubernetes.cluster.errors import KubectlFailed
from tests.kubernetes.cluster.lifecycle import Cluster
from tests.kubernetes.host_pods import REPOSITORY

EXAMPLES = sorted((REPOSITORY / "examples/kubernetes").glob("*.yaml"))


def _try(cluster: Cluster, namespace: str, manifest: dict[str, Any]) -> dict[str, Any]:
    """What the API server would store."""
    words = ("create", "--dry-run=server", "--validate=false", "--output=json", f"--namespace={namespace}")
    stored: dict[str, Any] = json.loads(cluster.kubectl(*words, "--filename=-", input=json.dumps(manifest)))
    return stored


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: file.name)
def test_examples_are_taken_and_read_back(cluster: Cluster, installed: None, namespace: str, file: Path) -> None:
    manifest = yaml.safe_load(file.read_text())
    stored = _try(cluster, namespace, manifest)
    assert stored["spec"] == manifest["spec"], "nothing was cut off"
    load = LOADERS[manifest["kind"]]
    assert load(stored) == load(manifest)


@pytest.mark.parametrize("kind", LOADERS)
def test_good_manifests_are_taken(cluster: Cluster, installed: None, kind: str) -> None:
    _try(cluster, "default", good_manifest(kind))


@pytest.mark.parametrize("bad", BAD_MANIFESTS + BAD_ON_KUBERNETES, ids=str)
def test_bad_manifests_are_refused_by_the_field(cluster: Cluster, installed: None, bad: BadManifest) -> None:
    with pytest.raises(KubectlFailed) as caught:
        _try(cluster, "default", bad.manifest())
    assert bad.place_of_any in str(caught.value) or bad.place in str(caught.value)


def test_an_installation_gives_the_rights_that_are_listed_and_no_others(
    cluster: Cluster, installed: None, namespace: str
) -> None:
    user = f"--as=system:serviceaccount:{NAMESPACE}:{OPERATOR}"
    for where, rules in ((NAMESPACE, OPERATOR_RULES + OPERATOR_OWN_RULES), ("default", OPERATOR_RULES)):
        listed = cluster.kubectl("auth", "can-i", "--list", f"--namespace={where}", user, "--no-headers")
        assert _ours(listed) == {_row(rule, resource) for rule in rules for resource in rule.resources}
    binding = ("create", "rolebinding", "ctr-master", f"--clusterrole={MASTER_ROLE}")
    cluster.kubectl(*binding, f"--serviceaccount={namespace}:default", f"--namespace={namespace}")
    master = f"--as=system:serviceaccount:{namespace}:default"
    listed = cluster.kubectl("auth", "can-i", "--list", f"--namespace={namespace}", master, "--no-headers")
    assert _ours(listed) == {_row(rule, resource) for rule in MASTER_RULES for resource in rule.resources}
    elsewhere = cluster.kubectl("auth", "can-i", "--list", "--namespace=default", master, "--no-headers")
    assert not _ours(elsewhere)


def _row(rule: Rule, resource: str) -> tuple[str, frozenset[str]]:
    kind, slash, part = resource.partition("/")
    return f"{kind}.{rule.group}".rstrip(".") + slash + part, frozenset(rule.verbs)


def _ours(listed: str) -> set[tuple[str, frozenset[str]]]:
    """The rows of a list of rights, without those that every service account has."""
    rows = set()
    for line in listed.splitlines():
        resource, rest = line.split(maxsplit=1)
        if not resource.startswith(("[", "selfsubject")):
            rows.add((resource, frozenset(rest.rpartition("[")[2].rstrip("]").split())))
    return rows
