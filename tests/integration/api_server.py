"""A small API server: what a client asks of a cluster, answered from memory, by the rules of the real one.

It has no operator, scheduler or kubelet: a test says what they would write. The tests against a real cluster are in
`tests/kubernetes`.
"""

from __future__ import annotations

import json
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import yaml

NAMESPACE = "training"
KINDS = {
    "elasticjobs": "ElasticJob",
    "scaleplans": "ScalePlan",
    "jobresources": "JobResource",
    "pods": "Pod",
    "events": "Event",
}
Object = dict[str, Any]


class ApiServer:
    """What is in the cluster, by plural and name."""

    def __init__(self) -> None:
        self.objects: dict[str, dict[str, Object]] = {plural: {} for plural in KINDS}
        self.logs: dict[str, list[str]] = {}
        """The lines of each pod's log; it is whole once the pod has ended."""
        self.plan_status: Object = {"phase": "Succeeded"}
        """What the operator says of a plan."""
        self.requests: list[tuple[str, str]] = []
        """Every method and path."""

    def create(self, plural: str, name: str, **content: Any) -> Object:
        """Put an object into the cluster, as somebody else than the client would."""
        metadata = {
            "namespace": NAMESPACE,
            "uid": str(uuid.uuid4()),
            "creationTimestamp": datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z"),
            **content.pop("metadata", {}),
            "name": name,
        }
        self.objects[plural][name] = {"kind": KINDS[plural], **content, "metadata": metadata}
        return self.objects[plural][name]

    def say(self, job: str, kind: str, reason: str = "", message: str = "") -> None:
        """Have the operator set a job's condition."""
        status = self.objects["elasticjobs"][job].setdefault("status", {"conditions": []})
        now = datetime.now(UTC).isoformat().replace("+00:00", "Z")
        condition = {"type": kind, "status": "True", "reason": reason, "message": message, "lastTransitionTime": now}
        status["conditions"] = [*status["conditions"], condition]
        status["phase"], status["reason"] = kind, message

    def run_pod(self, job: str, role: str, index: int, *lines: str, phase: str = "Running") -> Object:
        """Have a pod of a job, which printed these lines."""
        name = f"{job}-master" if role == "master" else f"{job}-{role}-{index}"
        labels = {"job": job, "role": role, "index": str(index)}
        self.logs[name] = list(lines)
        owner = {"apiVersion": "v1", "kind": "ElasticJob", "name": job}
        return self.create(
            "pods",
            name,
            metadata={
                "labels": {f"elastic.iml.github.io/{key}": value for key, value in labels.items()},
                "ownerReferences": [{**owner, "uid": self.objects["elasticjobs"][job]["metadata"]["uid"]}],
            },
            spec={"containers": [{"name": "main"}]},
            status={"phase": phase},
        )

    def end_pod(self, name: str, phase: str) -> None:
        self.objects["pods"][name]["status"]["phase"] = phase


class _Handler(BaseHTTPRequestHandler):
    cluster: ApiServer

    def do_GET(self) -> None:
        plural, name, part = self._path()
        found = self.cluster.objects.get(plural)
        if found is None:
            self._refuse(404, "the server could not find the requested resource")
        elif part == "log":
            self._send_log(name)
        elif name:
            self._answer(found.get(name), name)
        else:
            wanted = dict(pair.split("=") for pair in self._query("labelSelector", "").split(",") if pair)
            items = [item for item in found.values() if wanted.items() <= item["metadata"].get("labels", {}).items()]
            self._send(200, {"kind": f"{KINDS[plural]}List", "metadata": {}, "items": items})

    def do_POST(self) -> None:
        plural, _, _ = self._path()
        given = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        metadata = given["metadata"]
        name = metadata.get("name") or f"{metadata['generateName']}{uuid.uuid4().hex[:5]}"
        if name in self.cluster.objects[plural]:
            self._refuse(409, f'{plural} "{name}" already exists')
            return
        status = {} if plural == "elasticjobs" else {"status": self.cluster.plan_status}
        self._send(201, self.cluster.create(plural, name, **{**given, **status}))

    def do_DELETE(self) -> None:
        plural, name, _ = self._path()
        self._answer(self.cluster.objects[plural].pop(name, None), name)

    def _path(self) -> tuple[str, str, str]:
        """The plural, the name and the part of it that is asked for."""
        self.cluster.requests.append((self.command, urlsplit(self.path).path))
        _, _, rest = urlsplit(self.path).path.partition(f"/namespaces/{NAMESPACE}/")
        plural, name, part, *_ = [*rest.split("/"), "", "", ""]
        return plural, name, part

    def _query(self, key: str, default: str) -> str:
        return parse_qs(urlsplit(self.path).query).get(key, [default])[0]

    def _send_log(self, name: str) -> None:
        pod = self.cluster.objects["pods"].get(name)
        if pod is None:
            self._refuse(404, f'pods "{name}" not found')
            return
        if pod["status"]["phase"] == "Pending":
            self._refuse(400, f'container "main" in pod "{name}" is waiting to start')
            return
        self.send_response(200)
        self.end_headers()
        sent, tail = 0, self._query("tailLines", "")
        if tail:
            sent = max(0, len(self.cluster.logs[name]) - int(tail))
        while True:
            ended = self._query("follow", "false") != "true" or pod["status"]["phase"] != "Running"
            lines = self.cluster.logs[name][sent:]
            sent += len(lines)
            self.wfile.write("".join(f"{line}\n" for line in lines).encode())
            self.wfile.flush()
            if ended:
                return
            time.sleep(0.01)

    def _answer(self, found: Object | None, name: str) -> None:
        if found is None:
            self._refuse(404, f'"{name}" not found')
        else:
            self._send(200, found)

    def _refuse(self, code: int, message: str) -> None:
        self._send(code, {"kind": "Status", "status": "Failure", "code": code, "message": message, "metadata": {}})

    def _send(self, code: int, content: Object) -> None:
        body = json.dumps(content).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        del format, args  # The test's output is its own.


@contextmanager
def api_server(kubeconfig: Path) -> Iterator[ApiServer]:
    """A server on loopback, and a kubeconfig that leads to it."""
    cluster = ApiServer()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"cluster": cluster}))
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    config = {
        "current-context": "here",
        "contexts": [{"name": "here", "context": {"cluster": "here", "user": "me", "namespace": NAMESPACE}}],
        "users": [{"name": "me", "user": {"token": "none"}}],
        "clusters": [{"name": "here", "cluster": {"server": f"http://127.0.0.1:{server.server_port}"}}],
    }
    kubeconfig.write_text(yaml.safe_dump(config))
    try:
        yield cluster
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
