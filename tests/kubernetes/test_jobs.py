"""Jobs of real pods, to whom everything happens that happens on a cluster: they end Complete, every sample once."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.ps_training_script import BATCH
from tests.kubernetes.cluster.lifecycle import Cluster
from tests.kubernetes.host_pods import REPOSITORY
from tests.kubernetes.operator_process import OperatorProcess
from tests.kubernetes.running_job import STEP_S, RunningJob, template
from tests.kubernetes.waiting import eventually

pytestmark = pytest.mark.timeout(420)

COUNTED = str(REPOSITORY / "tests/soak/counted_training.py")
RECOMMENDER = str(REPOSITORY / "tests/integration/ps_training_script.py")
SCALE_PLAN, JOB_RESOURCE = "elastic.iml.github.io/v1alpha1", "elastic.easydl.org/v1alpha1"
SAMPLES = 16_000


@pytest.fixture
def calm(tmp_path: Path) -> Path:
    """The file at whose sight the script stops to take its time."""
    return tmp_path / "calm"


@pytest.fixture
def job(cluster: Cluster, operator: OperatorProcess, namespace: str, calm: Path) -> Iterator[RunningJob]:
    """Two workers that train together, slowly."""
    command = (
        COUNTED,
        *(f"--samples={SAMPLES}", "--epochs=1", "--batch-size=4", "--global-batch-size=8"),
        *("--step-ms=60", f"--calm={calm}"),
    )
    worker = {
        "replicas": 2,
        "maxReplicas": 4,
        "restartCount": 3,
        "template": template(*command, folder=calm.parent),
    }
    spec = {"distributionStrategy": "ring-allreduce", "worker": worker, "checkReplicas": True}
    job = RunningJob.apply(cluster, namespace, "reduce", spec)
    yield job
    job.kubectl("delete", "elasticjob", "reduce", "--wait=false")


def _ends_well(job: RunningJob, calm: Path) -> None:
    calm.touch()
    conditions = job.until_ended()
    assert "Complete" in conditions, (conditions, job.kubectl("describe", "elasticjob", job.name))
    said = [line for line in job.printed("worker").splitlines() if line.startswith("wrong counts")]
    assert said, "no worker came to the end"
    assert all(line.startswith("wrong counts: 0,") for line in said), said


def test_a_job_is_scaled_in_three_ways_and_no_process_that_stays_is_another(
    job: RunningJob, calm: Path, operator: OperatorProcess
) -> None:
    job.until_world(2)
    first = job.identities("worker")
    assert set(first) == {"reduce-worker-0", "reduce-worker-1"}

    assert "3 workers" in job.elastane("scale", "reduce", "--workers", "3")
    job.until_world(3)

    labels = {"elasticjob-name": "reduce", "scale-type": "manual"}
    replicas = {"ownerJob": "reduce", "replicaResourceSpecs": {"worker": {"replicas": 2}}}
    job.until_plan_done(job.create(SCALE_PLAN, "ScalePlan", replicas, name="by-plan", labels=labels))
    job.until_world(2)

    wanted = {"selector": {"name": "reduce"}, "worker": {"replicas": 3, "resource": {"cpu": 0.25, "memory": 1024}}}
    job.until_plan_done(job.create(JOB_RESOURCE, "JobResource", wanted, name="by-resource"))
    job.until_world(3)
    newest = max(job.pods("worker"), key=lambda pod: int(pod["metadata"]["name"].rpartition("-")[2]))
    assert newest["spec"]["containers"][0]["resources"]["limits"] == {"cpu": "250m", "memory": "1Gi"}

    now = job.identities("worker")
    assert {name: now[name] for name in first} == first
    _ends_well(job, calm)


def test_a_job_survives_the_loss_of_pods_master_operator_and_api_server(
    job: RunningJob, calm: Path, operator: OperatorProcess, cluster: Cluster
) -> None:
    job.until_world(2)
    job.kubectl("delete", "pod", "reduce-worker-1", "--wait=false")
    eventually(lambda: "reduce-worker-2" in job.running("worker"), STEP_S, "the deleted worker's successor")
    job.until_world(2)

    eviction = {"apiVersion": "policy/v1beta1", "kind": "Eviction", "metadata": {"name": "reduce-worker-2"}}
    path = f"/api/v1/namespaces/{job.namespace}/pods/reduce-worker-2/eviction"
    cluster.kubectl("create", f"--raw={path}", "--filename=-", input=json.dumps(eviction))
    eventually(lambda: "reduce-worker-3" in job.running("worker"), STEP_S, "the evicted worker's successor")
    job.until_world(2)

    stays = job.identities("worker")
    master = job.identities("master")
    job.kubectl("delete", "pod", "reduce-master", "--grace-period=0", "--force")
    eventually(lambda: job.identities("master") not in ({}, master), STEP_S, "another master")
    job.until_world(2)

    operator.kill()
    operator.start()
    cluster.restart_apiserver()
    job.until_world(2)
    assert job.identities("worker") == stays

    _ends_well(job, calm)
    status = job.seen()["status"]
    assert status["masterRestarts"] == 1
    assert status["restarts"] == {"counted": 0, "ignored": 2}


def test_a_worker_that_runs_out_of_memory_comes_back_with_twice_as_much(
    cluster: Cluster, operator: OperatorProcess, namespace: str, tmp_path: Path
) -> None:
    greedy = (
        "import elastane, pathlib\n"
        "with elastane.join() as job:\n"
        f"    had = pathlib.Path('{tmp_path}/greedy')\n"
        "    if not had.exists():\n"
        "        had.touch(); held = b'x' * (400 << 20)\n"
        "    for _ in job.batches(range(100), batch_size=10): pass\n"
    )
    worker = {"resource": {"memory": "256Mi"}, "template": template("-c", greedy, folder=tmp_path)}
    job = RunningJob.apply(cluster, namespace, "greedy", {"distributionStrategy": "none", "worker": worker})
    assert "Complete" in job.until_ended()
    memory = {
        pod["metadata"]["name"]: pod["spec"]["containers"][0]["resources"]["limits"]["memory"]
        for pod in job.pods("worker")
    }
    assert memory == {"greedy-worker-0": "256Mi", "greedy-worker-1": "512Mi"}
    assert job.seen()["status"]["restarts"] == {"counted": 1, "ignored": 0}


def test_a_user_s_error_is_in_the_job_s_status(cluster: Cluster, operator: OperatorProcess, namespace: str) -> None:
    broken = "import elastane\nwith elastane.join() as job: raise ValueError('no such column: price')"
    worker = {"restartCount": 0, "template": template("-c", broken)}
    job = RunningJob.apply(cluster, namespace, "broken", {"distributionStrategy": "none", "worker": worker})
    assert "Failed" in job.until_ended()
    (failed,) = [found for found in job.seen()["status"]["conditions"] if found["type"] == "Failed"]
    assert "no such column: price" in failed["message"]


def test_servers_come_go_and_move_as_pods_that_the_operator_makes(
    cluster: Cluster, operator: OperatorProcess, namespace: str, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    worker = {
        "replicas": 2,
        "template": template(RECOMMENDER, f"--samples={SAMPLES}", f"--until={go}", folder=tmp_path),
    }
    spec = {
        "distributionStrategy": "parameter_server",
        "scaler": "elastic-job",
        "parameterServer": {"restartCount": 3, "buckets": 64},
        "worker": worker,
    }
    job = RunningJob.apply(cluster, namespace, "rows", spec)
    eventually(lambda: job.committed() > 0, STEP_S, "samples")

    wanted = {
        "selector": {"name": "rows"},
        "parameter_server": {"replicas": 2},
        "resource_updation": [{"name": "rows-ps-0", "resource": {"memory": 2048}}],
    }
    job.until_plan_done(job.create(JOB_RESOURCE, "JobResource", wanted, name="servers"))
    eventually(lambda: job.running("ps") == {"rows-ps-1", "rows-ps-2"}, STEP_S, "other servers")
    eventually(lambda: job.status().servers.settled, STEP_S, "all rows in place")
    before = job.committed()
    eventually(lambda: job.committed() > before, STEP_S, "more samples")

    go.touch()
    assert "Complete" in job.until_ended()
    told = re.findall(r"^made (\d+) right ([\d.]+)$", job.printed("worker"), re.MULTILINE)
    assert sum(int(batches) for batches, _ in told) * BATCH == SAMPLES
    assert min(float(right) for _, right in told) > 0.8


def test_a_coordinator_has_the_workers_that_are_pods(
    cluster: Cluster, operator: OperatorProcess, namespace: str, tmp_path: Path
) -> None:
    go, script = tmp_path / "go", tmp_path / "train.py"
    script.write_text(
        "import pathlib, socket\n"
        "from elastane.coordinator import ClusterCoordinator\n"
        "ran_on = set()\n"
        "with ClusterCoordinator() as coordinator:\n"
        f"    while not pathlib.Path('{go}').exists():\n"
        "        values = [coordinator.schedule(socket.gethostname) for _ in range(20)]\n"
        "        coordinator.join()\n"
        "        ran_on |= set(coordinator.fetch(values))\n"
        f"        pathlib.Path('{tmp_path}/ran-on').write_text(' '.join(sorted(ran_on)))\n"
    )
    worker = {"maxReplicas": 3, "template": template("-m", "elastane", "coordinate", str(script), folder=tmp_path)}
    spec = {"distributionStrategy": "parameter_server", "worker": worker}
    job = RunningJob.apply(cluster, namespace, "closures", spec)

    def ran_on() -> set[str]:
        told = tmp_path / "ran-on"
        return set(told.read_text().split()) if told.exists() else set()

    eventually(lambda: ran_on() == {"closures-worker-0"}, STEP_S, "closures on the chief's own worker")
    job.elastane("scale", "closures", "--workers", "2")
    eventually(lambda: "closures-worker-1" in ran_on(), STEP_S, "closures on the second")
    job.kubectl("delete", "pod", "closures-worker-1", "--grace-period=0", "--force")
    eventually(lambda: "closures-worker-2" in ran_on(), STEP_S, "closures on the one in its place")
    go.touch()
    assert "Complete" in job.until_ended()
