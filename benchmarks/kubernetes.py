"""One operator under many ElasticJobs, on the API server that KUBECONFIG names; the resources must be installed there.

Each job has a master and ten workers. Its plan is written beside it, as its master would write it; no pod ever runs,
because the scheduler that they name does not exist, so that what is measured is the operator and the API server.

- created: all jobs at once. The time until all pods are there, the operator's CPU time and memory, and its requests to
  the API server for each pod.
- killed: the same, with the operator killed ten times in the meantime. No pod may be created twice.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

from benchmarks.report import Report, parser
from elastane.model.job_spec import API_VERSION
from elastane.operator.api import JOBS, SCALE_PLANS, Api
from elastane.platform.kubernetes.api import Api as PodApi
from elastane.platform.kubernetes.connection import ApiError, HistoryGone
from elastane.platform.kubernetes.pods import LABEL_JOB

WORKERS = 10
LEASE_S = 2.0
KILLS = 10
AT_ONCE = 16


class Pods:
    """Every pod that was seen in a namespace, by a watch that is not the operator's."""

    def __init__(self, namespace: str) -> None:
        self._api = PodApi(namespace)
        self.uids: dict[str, set[str]] = defaultdict(set)

    async def watch(self) -> None:
        version = (await self._api.list_pods(LABEL_JOB))[1]
        while True:
            try:
                async for event in self._api.watch_pods(LABEL_JOB, version):
                    metadata = event["object"]["metadata"]
                    version = metadata["resourceVersion"]
                    if event["type"] != "BOOKMARK":
                        self.uids[metadata["name"]].add(metadata["uid"])
            except HistoryGone:
                version = (await self._api.list_pods(LABEL_JOB))[1]


class OperatorRun:
    """An operator of one namespace, as a process."""

    def __init__(self, namespace: str, folder: Path) -> None:
        self._log = (folder / "operator.log").open("ab")
        command = [sys.executable, "-m", "elastane", "operator", "--namespace", namespace]
        options = ["--lease-namespace", namespace, "--lease-seconds", str(LEASE_S)]
        self._process = subprocess.Popen([*command, *options], stdout=self._log, stderr=subprocess.STDOUT)
        self._seen = psutil.Process(self._process.pid)
        self.most_mib = 0.0
        self.cpu_s = 0.0

    def measure(self) -> None:
        times = self._seen.cpu_times()
        self.cpu_s = times.user + times.system
        self.most_mib = max(self.most_mib, self._seen.memory_info().rss / 2**20)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def stop(self, folder: Path) -> int:
        """End it; how many requests it made."""
        self._process.terminate()
        self._process.wait()
        lines = (folder / "operator.log").read_text().splitlines()
        ended = [json.loads(line) for line in lines if re.search(r'"event": "ended"', line)]
        return sum(ended[-1]["requests"].values())


@contextmanager
def namespace_of_its_own() -> Iterator[str]:
    name = f"bench-{os.urandom(3).hex()}"
    subprocess.run(["kubectl", "create", "namespace", name], check=True, stdout=subprocess.DEVNULL)  # noqa: S607
    try:
        yield name
    finally:
        delete = ["kubectl", "delete", "namespace", name, "--wait=false"]
        subprocess.run(delete, check=True, stdout=subprocess.DEVNULL)


def _job(name: str) -> dict[str, Any]:
    container = {"name": "main", "image": "none", "command": ["python3", "train.py"]}
    worker = {"replicas": WORKERS, "template": {"spec": {"containers": [container]}}}
    spec = {"distributionStrategy": "none", "scaler": "elastic-job", "schedulerName": "nobody", "worker": worker}
    return {"apiVersion": API_VERSION, "kind": "ElasticJob", "metadata": {"name": name}, "spec": spec}


def _plan(job: dict[str, Any]) -> dict[str, Any]:
    name, uid = job["metadata"]["name"], job["metadata"]["uid"]
    owner = {"apiVersion": API_VERSION, "kind": "ElasticJob", "name": name, "uid": uid}
    pods = [
        {"name": f"{name}-worker-{number}", "type": "worker", "id": number, "slot": number} for number in range(WORKERS)
    ]
    labels = {"elasticjob-name": name, "scale-type": "auto"}
    return {
        "apiVersion": API_VERSION,
        "kind": "ScalePlan",
        "metadata": {"generateName": f"{name}-", "labels": labels, "ownerReferences": [owner]},
        "spec": {"ownerJob": name, "createPods": pods},
    }


async def _submit(api: Api, namespace: str, jobs: int) -> None:
    turn = asyncio.Semaphore(AT_ONCE)

    async def one(number: int) -> None:
        async with turn:
            job = await api.create(JOBS, namespace, _job(f"job-{number}"))
            await api.create(SCALE_PLANS, namespace, _plan(job))

    await asyncio.gather(*(one(number) for number in range(jobs)))


async def _measure(report: Report, jobs: int, kills: int) -> None:
    wanted = jobs * (WORKERS + 1)
    with namespace_of_its_own() as namespace, tempfile.TemporaryDirectory() as text:
        folder, api, pods = Path(text), Api(), Pods(namespace)
        watching = asyncio.create_task(pods.watch())
        operator = OperatorRun(namespace, folder)
        while "operator leads" not in (folder / "operator.log").read_text():
            await asyncio.sleep(0.1)
        operator.measure()
        cpu_before_s = operator.cpu_s
        begin = time.perf_counter()
        submitting = asyncio.create_task(_submit(api, namespace, jobs))
        killed = 0
        while len(pods.uids) < wanted or killed < kills or not submitting.done():
            await asyncio.sleep(0.05)
            if submitting.done():
                submitting.result()
            operator.measure()
            if killed < kills and len(pods.uids) >= wanted * killed / kills:
                operator.kill()
                operator = OperatorRun(namespace, folder)
                killed += 1
        took_s = time.perf_counter() - begin
        if kills:
            # It must come to rest, too: a pod that is created twice may come late.
            await _until_plans_are_done(api, namespace)
        operator.measure()
        requests = operator.stop(folder)
        watching.cancel()
        await api.close()
    twice = {name: uids for name, uids in pods.uids.items() if len(uids) != 1}
    assert not twice, f"created twice: {twice}"
    assert len(pods.uids) == wanted, f"{len(pods.uids)} pods, not {wanted}"
    row = report.row("killed" if kills else "created", jobs=jobs, pods=wanted, kills=kills)
    row.add(seconds=took_s, pods_a_second=wanted / took_s)
    if not kills:
        cpu_s = operator.cpu_s - cpu_before_s
        row.add(cpu_s=cpu_s, cpu_ms_a_pod=cpu_s * 1000 / wanted)
        row.add(memory_mib=operator.most_mib, requests_a_pod=requests / wanted)


async def _until_plans_are_done(api: Api, namespace: str) -> None:
    command = ["kubectl", "get", "scaleplans", f"--namespace={namespace}", "--output=jsonpath={.items[*].status.phase}"]
    while True:
        listed = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE)
        told = (await listed.communicate())[0].decode().split()
        plans, _ = await api.list_identities(SCALE_PLANS, namespace)
        if told.count("Succeeded") == len(plans):
            return
        await asyncio.sleep(0.5)


def main() -> None:
    made = parser(__doc__)
    made.add_argument("--jobs", type=int, nargs="+", default=[20, 200], help="how many ElasticJobs, for each run")
    made.add_argument("--repeats", type=int, default=3)
    arguments = made.parse_args()
    report = Report()
    sizes, repeats = ([5], 1) if arguments.quick else (arguments.jobs, arguments.repeats)
    for _ in range(repeats):
        for jobs in sizes:
            asyncio.run(_measure(report, jobs, 0))
            asyncio.run(_measure(report, jobs, 3 if arguments.quick else KILLS))
    report.show(arguments.json)


if __name__ == "__main__":
    try:
        main()
    except ApiError as error:
        sys.exit(f"error: {error}")
