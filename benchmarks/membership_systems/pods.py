"""elastane in pods of the tests' cluster: the same script, master and requests, and an operator beside them."""

from __future__ import annotations

import secrets
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from tests.kubernetes.cluster.lifecycle import Cluster
from tests.kubernetes.host_pods import PYTHON
from tests.kubernetes.installation import install
from tests.kubernetes.running_job import RunningJob, template
from tests.kubernetes.waiting import eventually

from benchmarks.membership_systems.processes import ROOT, Family
from benchmarks.membership_systems.systems import WORKERS
from elastane.rpc.control_client import ControlClient

START_TIMEOUT_S = 60.0


class ElastanePods:
    """A System whose workers are pods."""

    def __init__(self, family: Family, folder: Path, parameters: int) -> None:
        self._family = family
        self._folder = folder
        self._parameters = parameters
        self._cluster = Cluster()
        self._job = RunningJob(self._cluster, f"membership-{secrets.token_hex(2)}", "bench")
        self.victim = f"{self._job.name}-worker-{WORKERS - 1}"

    def start(self, workers: int) -> None:
        self._cluster.up()
        install(self._cluster)
        namespace = self._job.namespace
        self._cluster.kubectl("create", "namespace", namespace)
        options = ("--namespace", namespace, "--lease-namespace", namespace)
        command = [PYTHON, "-m", "elastane", "operator", *options]
        self._family.start("operator", command, KUBECONFIG=str(self._cluster.kubeconfig))
        script = (str(Path(__file__).with_name("train_elastane.py")), "--parameters", str(self._parameters))
        pod = template(
            *(*script, "--steps-folder", str(self._folder)),
            folder=self._folder,
            env=[{"name": "OMP_NUM_THREADS", "value": "1"}],
            workingDir=str(ROOT),
        )
        worker = {"minReplicas": 2, "maxReplicas": WORKERS, "replicas": workers, "restartCount": 0, "template": pod}
        RunningJob.apply(self._cluster, namespace, self._job.name, {"worker": worker})
        eventually(self._job.status, START_TIMEOUT_S, "the master answers")

    def join(self) -> float:
        return self._ask(lambda client: client.scale(WORKERS))

    def drain(self) -> float:
        return self._ask(lambda client: client.drain(self.victim))

    def crash(self, pid: int) -> float:
        del pid  # It is that of a process in its pod.
        moment = time.time()
        self._job.kubectl("delete", "pod", self.victim, "--grace-period=0", "--force", "--wait=false")
        return moment

    def end(self) -> None:
        pods = ("delete", "elasticjob,pods", "--all", "--grace-period=1", f"--namespace={self._job.namespace}")
        self._cluster.kubectl(*pods)
        self._cluster.kubectl("delete", "namespace", self._job.namespace, "--wait=false")

    def _ask(self, request: Callable[[ControlClient], Awaitable[None]]) -> float:
        async def send(client: ControlClient) -> float:
            await client.status()
            moment = time.time()
            await request(client)
            return moment

        return self._job.ask(send)
