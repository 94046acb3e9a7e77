"""The cluster is a real one: it runs this repository's code in pods, and says why a pod ended."""

import json
import urllib.request
from collections.abc import Sequence
from typing import Any

from tests.kubernetes.cluster.lifecycle import Cluster
from tests.kubernetes.host_pods import PYTHON, with_host_python
from tests.kubernetes.waiting import NotYet, eventually


def run_pod(cluster: Cluster, namespace: str, name: str, command: Sequence[str], memory: str = "1Gi") -> dict[str, Any]:
    """Run a pod to its end; its status."""
    container = {"name": "main", "command": list(command), "resources": {"limits": {"memory": memory}}}
    pod = with_host_python(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "namespace": namespace},
            "spec": {"restartPolicy": "Never", "containers": [container], "terminationGracePeriodSeconds": 1},
        }
    )
    cluster.kubectl("apply", "--filename=-", input=json.dumps(pod))

    def ended() -> dict[str, Any]:
        status = json.loads(cluster.kubectl("get", "pod", name, f"--namespace={namespace}", "--output=json"))["status"]
        assert status["phase"] in ("Succeeded", "Failed"), status
        return dict(status)

    return eventually(ended, 60, f"the end of pod {name}")


def test_a_pod_runs_the_code_of_this_repository(cluster: Cluster, namespace: str) -> None:
    script = (
        "import elastane, socket, torch; print(elastane.__file__, socket.gethostname(), torch.ones(2).sum().item())"
    )
    status = run_pod(cluster, namespace, "hello", [PYTHON, "-P", "-c", script])
    said = cluster.kubectl("logs", "hello", f"--namespace={namespace}").split()
    assert status["phase"] == "Succeeded", said
    assert said[0].endswith("/src/elastane/__init__.py")
    assert said[1:] == ["hello", "2.0"]


def test_a_pod_that_takes_too_much_memory_is_reported_as_oom_killed(cluster: Cluster, namespace: str) -> None:
    script = "held = [bytearray(1 << 24) for _ in range(64)]"
    status = run_pod(cluster, namespace, "greedy", [PYTHON, "-c", script], memory="64Mi")
    assert status["phase"] == "Failed"
    assert status["containerStatuses"][0]["state"]["terminated"]["reason"] == "OOMKilled"


def test_the_tests_reach_a_pod_by_its_service(cluster: Cluster, namespace: str) -> None:
    script = "from http.server import *; HTTPServer(('', 7070), SimpleHTTPRequestHandler).serve_forever()"
    probe = {"tcpSocket": {"port": 7070}, "periodSeconds": 1}
    container = {"name": "main", "command": [PYTHON, "-c", script], "workingDir": "/mnt", "readinessProbe": probe}
    pod = with_host_python(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "server", "namespace": namespace, "labels": {"app": "server"}},
            "spec": {"containers": [container], "terminationGracePeriodSeconds": 0},
        }
    )
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "server", "namespace": namespace},
        "spec": {"selector": {"app": "server"}, "ports": [{"port": 80, "targetPort": 7070}]},
    }
    cluster.kubectl("apply", "--filename=-", input=json.dumps(pod) + json.dumps(service))
    get = ("get", "service", "server", f"--namespace={namespace}", "--output=jsonpath={.spec.clusterIP}")
    address = cluster.kubectl(*get)

    def answer() -> str:
        try:
            with urllib.request.urlopen(f"http://{address}/", timeout=2) as response:
                return str(response.read().decode())
        except OSError as error:
            raise NotYet(str(error)) from None

    assert "Directory listing" in eventually(answer, 60, "an answer of the service")


def test_what_is_stored_outlives_the_api_server(cluster: Cluster, namespace: str) -> None:
    cluster.kubectl("create", "configmap", "kept", f"--namespace={namespace}", "--from-literal=word=elastic")
    cluster.restart_apiserver()
    get = ("get", "configmap", "kept", f"--namespace={namespace}", "--output=jsonpath={.data.word}")
    assert cluster.kubectl(*get) == "elastic"
