"""The commands on jobs in a real cluster: what they create, show and delete, and what they say when it is refused."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.kubernetes.cluster.lifecycle import Cluster
from tests.kubernetes.host_pods import PYTHON, REPOSITORY, with_host_python
from tests.kubernetes.operator_process import OperatorProcess
from tests.kubernetes.waiting import NotYet, eventually

COUNTING_SCRIPT = str(REPOSITORY / "tests/integration/counting_script.py")
TIMEOUT_S = 100


class Commands:
    """The `elastane` command in a namespace of a cluster."""

    def __init__(self, cluster: Cluster, namespace: str, folder: Path) -> None:
        self.cluster = cluster
        self.namespace = namespace
        self.folder = folder
        self.env = {**os.environ, "KUBECONFIG": str(cluster.kubeconfig)}

    def words(self, command: str, *words: str) -> list[str]:
        return [sys.executable, "-m", "elastane", command, "--kubernetes", f"--namespace={self.namespace}", *words]

    def __call__(self, command: str, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.words(command, *words), env=self.env, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )

    @contextlib.contextmanager
    def start(self, command: str, *words: str) -> Iterator[subprocess.Popen[str]]:
        """Start a command; it does not outlive the test."""
        pipe = subprocess.PIPE
        with subprocess.Popen(
            self.words(command, *words), env=self.env, stdout=pipe, stderr=pipe, text=True
        ) as process:
            try:
                yield process
            finally:
                process.kill()

    def status(self, job: str = "tiny") -> dict[str, Any]:
        done = self("status", job, "--json")
        assert done.returncode == 0, done.stderr
        status: dict[str, Any] = json.loads(done.stdout)
        return status

    def write(self, document: dict[str, Any]) -> str:
        file = self.folder / "job.yaml"
        file.write_text(yaml.safe_dump(document))
        return str(file)

    def kubectl(self, *words: str, input: str | None = None) -> str:
        return self.cluster.kubectl(f"--namespace={self.namespace}", *words, input=input)


@pytest.fixture
def elastane(cluster: Cluster, installed: None, namespace: str, tmp_path: Path) -> Commands:
    return Commands(cluster, namespace, tmp_path)


def job_document(*arguments: str, **spec: Any) -> dict[str, Any]:
    """A job of the counting script."""
    container = {"name": "main", "command": [PYTHON, COUNTING_SCRIPT, *arguments], "workingDir": str(REPOSITORY)}
    template = with_host_python({"spec": {"containers": [{**container, "env": [_variable("PYTHONPATH")]}]}})
    return {
        "apiVersion": "elastic.iml.github.io/v1alpha1",
        "kind": "ElasticJob",
        "metadata": {"name": "tiny"},
        "spec": {"worker": {"replicas": 2, "maxReplicas": 4, "template": template}, **spec},
    }


def idle_document() -> dict[str, Any]:
    """A job that has no pods, whether an operator runs or not."""
    return job_document(suspend=True)


def one_error(done: subprocess.CompletedProcess[str], code: int = 1) -> str:
    """The one line of a command that was refused."""
    assert done.returncode == code, done.stdout + done.stderr
    (line,) = done.stderr.splitlines()
    return line


def _variable(name: str) -> dict[str, str]:
    return {"name": name, "value": f"{REPOSITORY / 'src'}:{REPOSITORY}"}


def test_a_job_is_created_as_it_is_written_and_is_listed_and_shown(elastane: Commands) -> None:
    document = idle_document()
    done = elastane("submit", elastane.write(document))
    assert done.returncode == 0, done.stderr
    where = f"--kubernetes --namespace {elastane.namespace} tiny"
    assert done.stdout.splitlines() == [
        f"tiny: created in namespace {elastane.namespace}",
        f"see it:      elastane status {where}",
        f"read a log:  elastane logs {where} master",
        f"end it:      elastane delete {where}",
    ]
    created = json.loads(elastane.kubectl("get", "elasticjob", "tiny", "--output=json"))
    assert created["spec"] == document["spec"]

    assert elastane("jobs").stdout.splitlines()[1].split()[0] == "tiny"
    (listed,) = json.loads(elastane("jobs", "--json").stdout)
    assert (listed["job"], listed["namespace"]) == ("tiny", elastane.namespace)
    assert listed["state"] in ("Pending", "Suspended")
    assert elastane.status()["nodes"] == []
    assert elastane("status", "tiny").stdout.startswith(f"tiny: {elastane.status()['state']}, ")


def test_a_name_is_used_once(elastane: Commands) -> None:
    file = elastane.write(idle_document())
    assert elastane("submit", file).returncode == 0
    assert one_error(elastane("submit", file)).startswith(
        f'error: job "tiny" is already in namespace "{elastane.namespace}"; `elastane delete '
    )


def test_each_field_that_the_schema_refuses_has_its_line(elastane: Commands) -> None:
    document = idle_document()
    document["metadata"]["name"] = "9th"
    del document["spec"]["worker"]["template"]["spec"]["containers"][0]["image"]
    done = elastane("submit", elastane.write(document))
    assert done.returncode == 2
    assert [line.split(": ")[1] for line in sorted(done.stderr.splitlines())] == [
        "metadata.name",
        "spec.worker.template.spec.containers.image",
    ]
    assert elastane("jobs").stdout == f"there are no jobs in namespace {elastane.namespace}\n"


def test_each_field_that_no_job_may_have_has_its_line_and_nothing_is_created(elastane: Commands) -> None:
    document = idle_document()
    document["spec"]["worker"] |= {"replica": 3, "minReplicas": 5}
    done = elastane("submit", elastane.write(document))
    assert done.returncode == 2
    assert done.stderr.startswith("error: spec.worker.replica: unknown key; allowed: ")
    assert json.loads(elastane("jobs", "--json").stdout) == []


@pytest.mark.parametrize(
    "words", [("status", "tiny"), ("logs", "tiny", "master"), ("scale", "tiny", "--workers=2"), ("delete", "tiny")]
)
def test_a_job_that_is_not_there_is_said_in_one_line(elastane: Commands, words: tuple[str, ...]) -> None:
    expected = f'error: job "tiny" is not in namespace "{elastane.namespace}"; there are none'
    assert one_error(elastane(*words)) == expected


def test_a_namespace_that_is_not_there_is_said_in_one_line(elastane: Commands) -> None:
    elastane.namespace = "nowhere"
    refused = one_error(elastane("submit", elastane.write(idle_document())))
    assert refused == 'error: the cluster refused it: namespaces "nowhere" not found'


def test_who_has_no_rights_is_told_so_in_one_line(elastane: Commands) -> None:
    config = yaml.safe_load(elastane.cluster.kubeconfig.read_text())
    secret = elastane.kubectl("get", "serviceaccount", "default", "--output=jsonpath={.secrets[0].name}")
    held = json.loads(elastane.kubectl("get", "secret", secret, "--output=json"))["data"]["token"]
    token = subprocess.run(["base64", "--decode"], input=held, capture_output=True, text=True, check=True).stdout
    config["users"] = [{"name": user["name"], "user": {"token": token}} for user in config["users"]]
    (elastane.folder / "config").write_text(yaml.safe_dump(config))
    elastane.env["KUBECONFIG"] = str(elastane.folder / "config")
    for words in (("jobs",), ("status", "tiny"), ("submit", elastane.write(idle_document()))):
        refused = one_error(elastane(*words))
        assert refused.startswith("error: the cluster refused it: elasticjobs.elastic.iml.github.io ")
        assert "is forbidden" in refused


def test_a_nodes_log_is_read_by_its_short_or_full_name(elastane: Commands) -> None:
    # An operator leaves the pods of a job alone whose spec no schema, but the operator itself refuses.
    document = job_document()
    document["spec"]["worker"] |= {"minReplicas": 5, "maxReplicas": 3}
    elastane.kubectl("create", "--filename=-", input=json.dumps(document))
    uid = elastane.kubectl("get", "elasticjob", "tiny", "--output=jsonpath={.metadata.uid}")
    _create_pod(elastane, uid, "import time; print('one'); print('two', flush=True)")
    eventually(lambda: elastane.status()["nodes"][0]["status"] == "succeeded", 60, "the pod's end")
    (node,) = elastane.status()["nodes"]
    assert (node["name"], node["role"], node["restarts"]) == ("tiny-worker-0", "worker", 2)
    assert "worker-0  worker  succeeded  2" in elastane("status", "tiny").stdout
    for name in ("worker-0", "tiny-worker-0"):
        assert elastane("logs", "tiny", name).stdout == "one\ntwo\n"
    assert elastane("logs", "tiny", "worker-0", "--tail=1", "--follow").stdout == "two\n"
    assert elastane("logs", "tiny", "worker-0", "--tail=0").stdout == ""
    refused = one_error(elastane("logs", "tiny", "worker-1"), 2)
    assert refused == 'error: node: job "tiny" has no pod "worker-1"; there are worker-0'


def test_delete_takes_the_pods_too_and_waits_for_them(elastane: Commands) -> None:
    assert elastane("submit", elastane.write(idle_document())).returncode == 0
    uid = elastane.kubectl("get", "elasticjob", "tiny", "--output=jsonpath={.metadata.uid}")
    _create_pod(elastane, uid, "import time; time.sleep(600)")
    done = elastane("delete", "tiny")
    assert done.stdout.splitlines() == ["tiny: deleting", "tiny: deleted"], done.stderr
    assert elastane.kubectl("get", "elasticjobs,pods", "--output=name") == ""


def test_a_suspended_job_refuses_a_plan_in_its_own_words(operator: OperatorProcess, elastane: Commands) -> None:
    assert elastane("submit", elastane.write(idle_document())).returncode == 0
    eventually(lambda: elastane.status()["state"] == "Suspended", 30, "the job is suspended")
    assert one_error(elastane("scale", "tiny", "--workers=3")) == 'error: job "tiny" is suspended'
    (plan,) = json.loads(elastane.kubectl("get", "scaleplans", "--output=json"))["items"]
    assert plan["metadata"]["labels"] == {"elasticjob-name": "tiny", "scale-type": "manual"}
    assert plan["spec"] == {"ownerJob": "tiny", "replicaResourceSpecs": {"worker": {"replicas": 3}}}


def test_a_job_that_fails_is_waited_for_and_its_reason_told(operator: OperatorProcess, elastane: Commands) -> None:
    document = job_document("--samples=1000000", activeDeadlineSeconds=1)
    done = elastane("submit", "--wait", elastane.write(document))
    assert done.returncode == 1, done.stdout
    assert done.stderr == "error: DeadlineExceeded: the job did not end within 1 s\n"
    assert "Failed (DeadlineExceeded: the job did not end within 1 s)" in done.stdout


@pytest.mark.timeout(240)
def test_a_job_is_scaled_drained_and_waited_for_by_commands(operator: OperatorProcess, elastane: Commands) -> None:
    file = elastane.write(job_document("--samples=100000", "--batch-size=10", "--step-ms=10"))
    with elastane.start("submit", "--wait", file) as submitted:
        eventually(_runs(elastane, "worker-0", "worker-1"), 60, "two workers run")
        assert elastane("scale", "tiny", "--workers=3").stdout == "tiny: 3 workers\n"
        eventually(_runs(elastane, "worker-2"), 60, "a third worker runs")
        refused = one_error(elastane("scale", "tiny", "--workers=5"))
        assert refused == 'error: workers: 5 is above max 4 in job "tiny"'
        drained = elastane("drain", "tiny", "worker-0")
        assert drained.stdout == "tiny: worker-0 is leaving\n", drained.stderr
        assert "job_started" in elastane("logs", "tiny", "master").stdout
        out, errors = submitted.communicate(timeout=TIMEOUT_S)
    assert submitted.returncode == 0, out + errors
    assert "Running (" in out
    assert "Complete (" in out.splitlines()[-1]
    assert elastane.status()["state"] == "Complete"


@pytest.mark.timeout(240)
def test_a_running_job_is_deleted_at_once(operator: OperatorProcess, elastane: Commands) -> None:
    assert elastane("submit", elastane.write(job_document("--samples=1000000"))).returncode == 0
    eventually(_runs(elastane, "worker-0", "worker-1"), 60, "two workers run")
    deleted = elastane("delete", "--at-once", "tiny")
    assert deleted.stdout.splitlines() == ["tiny: killing", "tiny: deleted"], deleted.stderr
    assert elastane.kubectl("get", "elasticjobs,pods", "--output=name") == ""


def _create_pod(elastane: Commands, job_uid: str, script: str) -> None:
    """A pod as the job's master would make it, that runs something else."""
    owner = {"apiVersion": "elastic.iml.github.io/v1alpha1", "kind": "ElasticJob", "name": "tiny", "uid": job_uid}
    labels = {"job": "tiny", "role": "worker", "index": "0"}
    metadata = {
        "name": "tiny-worker-0",
        "labels": {f"elastic.iml.github.io/{key}": value for key, value in labels.items()},
        "annotations": {"elastic.iml.github.io/restarts": "2"},
        "ownerReferences": [{**owner, "controller": True, "blockOwnerDeletion": True}],
    }
    spec = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 1,
        "containers": [{"name": "main", "command": [PYTHON, "-c", script]}],
    }
    pod = with_host_python({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
    elastane.kubectl("create", "--filename=-", input=json.dumps(pod))


def _runs(elastane: Commands, *nodes: str) -> Callable[[], bool]:
    def check() -> bool:
        done = elastane("status", "tiny", "--json")
        if done.returncode:
            raise NotYet(done.stderr)
        found = {node["name"]: node["status"] for node in json.loads(done.stdout)["nodes"]}
        return all(found.get(f"tiny-{node}") == "running" for node in nodes)

    return check
