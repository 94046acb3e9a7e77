"""The cluster, and what most tests need of it."""

import base64
import json
import os
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from elastane.operator.install import NAMESPACE, OPERATOR
from tests.kubernetes.cluster.lifecycle import Cluster
from tests.kubernetes.installation import install
from tests.kubernetes.operator_process import OperatorProcess
from tests.kubernetes.waiting import eventually


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """The cluster; one that was not up is taken down at the end, unless ELASTANE_KEEP_CLUSTER=1."""
    cluster = Cluster()
    found = cluster.is_up
    cluster.up()
    yield cluster
    if not found and os.environ.get("ELASTANE_KEEP_CLUSTER") != "1":
        cluster.down()


@pytest.fixture
def namespace(cluster: Cluster) -> Iterator[str]:
    """The name of an empty namespace of the test's own."""
    name = f"test-{uuid.uuid4().hex[:8]}"
    cluster.kubectl("create", "namespace", name)
    # Pods are refused before it is there.
    get = ("get", "serviceaccount", "default", f"--namespace={name}", "--output=jsonpath={.secrets[*].name}")
    eventually(lambda: cluster.kubectl(*get), 20, f"the service account of {name}")
    yield name
    cluster.kubectl("delete", "namespace", name, "--wait=false")


@pytest.fixture(scope="session")
def installed(cluster: Cluster) -> None:
    """All that `elastane install` brings, but for the operator's own pods: the tests start it themselves."""
    install(cluster)


@pytest.fixture(scope="session")
def operator_session(
    cluster: Cluster, installed: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[OperatorProcess]:
    """The one operator of all tests. It has the rights that the installation gives it, and no more."""
    folder = tmp_path_factory.mktemp("operator")
    kubeconfig = _kubeconfig_of(cluster, NAMESPACE, OPERATOR, folder / "kubeconfig")
    operator = OperatorProcess(kubeconfig, folder, ["--lease-namespace", NAMESPACE, "--lease-seconds", "4"])
    yield operator
    operator.stop()


@pytest.fixture
def operator(operator_session: OperatorProcess) -> OperatorProcess:
    """An operator that runs and leads, whatever the test before did to it."""
    operator_session.ensure_started()
    return operator_session


@pytest.fixture
def no_operator(operator_session: OperatorProcess) -> None:
    """Nobody but the test makes pods."""
    operator_session.stop()


def _kubeconfig_of(cluster: Cluster, namespace: str, account: str, path: Path) -> Path:
    """Write the kubeconfig of a service account."""

    def secret() -> str:
        get = ("get", "serviceaccount", account, f"--namespace={namespace}", "--output=jsonpath={.secrets[0].name}")
        return cluster.kubectl(*get)

    name = eventually(secret, 20, f"the token of {account}")
    found = json.loads(cluster.kubectl("get", "secret", name, f"--namespace={namespace}", "--output=json"))
    config = json.loads(cluster.kubectl("config", "view", "--raw", "--output=json"))
    config["users"][0]["user"] = {"token": base64.b64decode(found["data"]["token"]).decode()}
    path.write_text(json.dumps(config))
    return path
