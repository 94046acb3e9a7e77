"""A job of real pods, as a test sees it: by kubectl, by its master, and by what its workers print."""

from __future__ import annotations

import asyncio
import base64
import json
import subprocess
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from elastane.model.errors import ElastaneError
from elastane.platform.kubernetes.pods import LABEL_JOB, LABEL_ROLE, MASTER_PORT
from elastane.rpc.control_client import ControlClient
from elastane.rpc.protos import control_pb2 as pb
from tests.kubernetes.cluster.errors import KubectlFailed
from tests.kubernetes.cluster.lifecycle import Cluster
from tests.kubernetes.host_pods import PYTHON, REPOSITORY, with_host_python
from tests.kubernetes.waiting import NotYet, eventually

T = TypeVar("T")

STEP_S = 60.0
"""How long any one thing may take to come about."""


def template(*command: str, folder: Path | None = None, **container: Any) -> dict[str, Any]:
    """A pod template that runs this Python; `folder` of this machine is there too, and can be written."""
    its = {"name": "main", "command": [PYTHON, *command], "env": [], **container}
    its["env"] = [*its["env"], {"name": "PYTHONPATH", "value": f"{REPOSITORY}/src:{REPOSITORY}"}]
    spec: dict[str, Any] = {"containers": [its]}
    if folder is not None:
        its["volumeMounts"] = [{"name": "folder", "mountPath": str(folder)}]
        spec["volumes"] = [{"name": "folder", "hostPath": {"path": str(folder)}}]
    return with_host_python({"spec": spec})


@dataclass(frozen=True)
class RunningJob:
    """An ElasticJob that was applied."""

    cluster: Cluster
    namespace: str
    name: str

    @classmethod
    def apply(cls, cluster: Cluster, namespace: str, name: str, spec: dict[str, Any]) -> RunningJob:
        document = {
            "apiVersion": "elastic.iml.github.io/v1alpha1",
            "kind": "ElasticJob",
            "metadata": {"name": name},
            # What is deleted with the namespace of a test should not keep the machine busy for long.
            "spec": {"terminationGracePeriodSeconds": 10, **spec},
        }
        job = cls(cluster, namespace, name)
        job.kubectl("apply", "--filename=-", input=json.dumps(document))
        return job

    def kubectl(self, *arguments: str, input: str | None = None) -> str:
        return self.cluster.kubectl(*arguments, f"--namespace={self.namespace}", input=input)

    def elastane(self, *words: str) -> str:
        """What a command prints. Raises CalledProcessError."""
        command = [str(REPOSITORY / ".venv/bin/elastane"), *words, "--kubernetes", "--namespace", self.namespace]
        env = {"KUBECONFIG": str(self.cluster.kubeconfig), "PATH": "/usr/bin:/bin"}
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=STEP_S, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def create(self, api_version: str, kind: str, spec: dict[str, Any], **metadata: Any) -> str:
        """Make another resource; the answer is its kind and name, for kubectl."""
        document = {"apiVersion": api_version, "kind": kind, "metadata": metadata, "spec": spec}
        return self.kubectl("create", "--filename=-", "--output=name", input=json.dumps(document)).strip()

    def seen(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.kubectl("get", "elasticjob", self.name, "--output=json"))
        return found

    def conditions(self) -> dict[str, str]:
        """The reason of each condition that is true."""
        found = self.seen().get("status", {}).get("conditions", [])
        return {condition["type"]: condition["reason"] for condition in found if condition["status"] == "True"}

    def pods(self, role: str) -> list[dict[str, Any]]:
        """The pods of a role that are not on their way out."""
        selector = f"--selector={LABEL_JOB}={self.name},{LABEL_ROLE}={role}"
        found = json.loads(self.kubectl("get", "pods", selector, "--output=json"))["items"]
        return [pod for pod in found if "deletionTimestamp" not in pod["metadata"]]

    def running(self, role: str) -> set[str]:
        return {pod["metadata"]["name"] for pod in self.pods(role) if pod["status"]["phase"] == "Running"}

    def identities(self, role: str) -> dict[str, tuple[str, int]]:
        """What tells that a pod's process is the same: its pod's uid, and how often its container was restarted."""
        return {
            pod["metadata"]["name"]: (
                pod["metadata"]["uid"],
                sum(status["restartCount"] for status in pod["status"].get("containerStatuses", [])),
            )
            for pod in self.pods(role)
        }

    def ask(self, request: Callable[[ControlClient], Awaitable[T]]) -> T:
        """Ask the master. Raises NotYet while there is none."""

        async def asked() -> T:
            async with ControlClient(address, token, certificate) as client:
                return await request(client)

        try:
            service = json.loads(self.kubectl("get", "service", f"{self.name}-master", "--output=json"))
            secret = json.loads(self.kubectl("get", "secret", f"{self.name}-master", "--output=json"))["data"]
            address = f"{service['spec']['clusterIP']}:{MASTER_PORT}"
            token, certificate = (base64.b64decode(secret[key]).decode() for key in ("token", "tls.crt"))
            return asyncio.run(asked())
        except (ElastaneError, KubectlFailed) as error:
            raise NotYet(str(error)) from None

    def status(self) -> pb.JobStatus:
        return self.ask(lambda client: client.status())

    def committed(self) -> int:
        """How many samples are done."""
        return sum(dataset.committed for dataset in self.status().dataset)

    def until_world(self, size: int) -> pb.JobStatus:
        """Wait until so many workers train together, and have made steps so."""

        def stepped(beyond: int) -> pb.JobStatus:
            status = self.status()
            found = (status.world_size, status.workers_wanted, status.steps)
            assert found[:2] == (size, size), found
            assert status.steps > beyond, found
            return status

        settled = eventually(lambda: stepped(0), STEP_S, f"a world of {size} in {self.name}")
        return eventually(lambda: stepped(settled.steps), STEP_S, f"steps of {size} workers")

    def until_ended(self, timeout_s: float = 120.0) -> dict[str, str]:
        """Wait for the job's end; the answer is its conditions."""

        def ended() -> dict[str, str]:
            conditions = self.conditions()
            if {"Complete", "Failed"} & set(conditions):
                return conditions
            raise NotYet(f"{conditions} {self.kubectl('get', 'pods')}")

        return eventually(ended, timeout_s, f"the end of {self.name}")

    def until_plan_done(self, plan: str) -> None:
        """Wait until a plan, of either kind, was carried out."""

        def done() -> bool:
            status = json.loads(self.kubectl("get", plan, "--output=json")).get("status", {})
            if status.get("phase") == "Failed":
                raise RuntimeError(f"{plan}: {status}")
            if status.get("phase") != "Succeeded":
                raise NotYet(str(status))
            return True

        eventually(done, STEP_S, plan)

    def printed(self, role: str) -> str:
        """What the pods of a role that are still there have printed."""
        return "".join(self.kubectl("logs", pod["metadata"]["name"]) for pod in self.pods(role))
