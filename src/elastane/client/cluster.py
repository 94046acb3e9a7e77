"""Jobs on Kubernetes, as a client sees them: ElasticJobs, their pods and events, and the plans that change them.

Nothing of Kubernetes is imported before `connect` is called: who has local jobs does not wait for it.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from elastane.model.cluster_documents import JOB_LABEL, JOB_RESOURCE_API_VERSION, SCALE_TYPE_LABEL, ScaleType
from elastane.model.errors import (
    ElastaneError,
    InvalidInput,
    InvalidJobSpec,
    JobExists,
    JobNotFound,
    PlatformError,
    RequestRefused,
)
from elastane.model.event import Event
from elastane.model.job_spec import API_VERSION
from elastane.model.status_documents import PlanPhase
from elastane.platform.kubernetes.pods import ANNOTATION_RESTARTS, LABEL_INDEX, LABEL_JOB, LABEL_ROLE

if TYPE_CHECKING:
    from lightkube import Client
    from lightkube.resources.core_v1 import Pod

ROLES = ("master", "ps", "worker", "evaluator")
"""The order in which they are shown."""

POLL_S = 0.25
PLAN_PATIENCE_S = 30.0
"""How long a command waits for a plan to be carried out."""
OUTAGE_PATIENCE_S = 120.0
"""How long a command that waits for a job does without an answer of the API server."""
WORD_EVERY_S = 30.0
"""How often a command that waits says for what."""


@dataclass(frozen=True)
class PodView:
    """A node of a job: its pod."""

    name: str
    role: str
    index: int
    status: str
    """`pending`, `running`, `succeeded`, `failed`, or `leaving`."""
    reason: str
    """Why it does not run, in Kubernetes' word; empty if there is nothing to say."""
    restarts: int
    age_s: float
    container: str
    """The container that is the node."""


@dataclass(frozen=True)
class ClusterJob:
    """An ElasticJob: what was asked for, and what the operator says about it."""

    name: str
    namespace: str
    uid: str
    age_s: float
    deleting: bool
    status: Mapping[str, Any]
    pods: tuple[PodView, ...] = ()
    """Its nodes, where they were asked for."""

    @property
    def phase(self) -> str:
        """One word; `Pending` before the operator has seen the job."""
        return "Deleting" if self.deleting else str(self.status.get("phase") or "Pending")

    @property
    def reason(self) -> str:
        return str(self.status.get("reason") or "")

    @property
    def conditions(self) -> Sequence[Mapping[str, Any]]:
        return self.status.get("conditions") or ()

    @property
    def counts(self) -> dict[str, dict[str, int]]:
        """How many pods are pending, active, succeeded and failed, by role."""
        given = self.status.get("replicaStatuses") or {}
        kinds = ("pending", "active", "succeeded", "failed")
        return {role: {kind: given[role].get(kind, 0) for kind in kinds} for role in ROLES if role in given}

    @property
    def restarts(self) -> dict[str, int]:
        """Relaunches of its nodes: those that count, and those that do not."""
        given = self.status.get("restarts") or {}
        return {kind: given.get(kind, 0) for kind in ("counted", "ignored")}

    def condition(self, kind: str) -> Mapping[str, Any] | None:
        """The condition of that type, if it is true."""
        return next((found for found in self.conditions if found["type"] == kind and found["status"] == "True"), None)


def connect(namespace: str | None) -> ClusterJobs:
    """The jobs in a namespace, by default that of the kubeconfig's context; raises PlatformError if there is none."""
    try:
        import httpx2  # noqa: F401  # it comes with the other, and errors are told apart by it
        from lightkube import Client
    except ImportError as error:
        raise PlatformError(f"{error.name} is not installed; pip install 'elastane[kubernetes]'") from None
    return ClusterJobs(_configured(lambda: Client(namespace=namespace)))


def _configured(make: Callable[[], Client]) -> Client:
    """The client; raises PlatformError for a configuration that cannot be used."""
    from lightkube import ConfigError
    from msgspec import MsgspecError
    from yaml import YAMLError

    bad_content = (
        AssertionError,
        KeyError,
        TypeError,
        ValueError,
    )  # From lightkube, for a file of other content.
    try:
        return make()
    except (ConfigError, MsgspecError, YAMLError, OSError, *bad_content) as error:
        raise PlatformError(f"no cluster is configured: {_one_line(error)}; see KUBECONFIG") from None


def _refusal(text: str) -> ElastaneError:
    return RequestRefused(f"the cluster refused it: {_one_line(text)}")


def _one_line(error: object) -> str:
    text = str(error) or type(error).__name__
    return " ".join(text.splitlines()[0].split())


class ClusterJobs:
    """The ElasticJobs of one namespace."""

    def __init__(self, client: Client) -> None:
        from lightkube.generic_resource import create_namespaced_resource

        group, version = API_VERSION.split("/")
        self._job = create_namespaced_resource(group, version, "ElasticJob", "elasticjobs")
        self._scale_plan = create_namespaced_resource(group, version, "ScalePlan", "scaleplans")
        group, version = JOB_RESOURCE_API_VERSION.split("/")
        self._job_resource = create_namespaced_resource(group, version, "JobResource", "jobresources")
        self._client = client

    @property
    def namespace(self) -> str:
        return str(self._client.namespace)

    def close(self) -> None:
        self._client.close()

    @contextlib.contextmanager
    def errors(self) -> Iterator[None]:
        """What the cluster refuses is a RequestRefused in here, and a PlatformError if it cannot be reached."""
        import httpx2
        from lightkube import ApiError

        try:
            yield
        except ApiError as error:
            raise _refusal(error.status.message or str(error.status.reason)) from None
        except httpx2.HTTPStatusError as error:
            if error.response.status_code == 404:
                raise RequestRefused(
                    "the cluster does not know ElasticJobs; `elastane install | kubectl apply -f -` installs them"
                ) from None
            raise _refusal(str(error)) from None
        except httpx2.TransportError as error:
            server = self._client.config.cluster.server
            raise PlatformError(f"the cluster at {server} cannot be reached: {_one_line(error)}") from None

    def create(self, document: Mapping[str, Any]) -> ClusterJob:
        """Create an ElasticJob; raises JobExists, and InvalidJobSpec for what the cluster's schema refuses."""
        from lightkube import ApiError

        name = document["metadata"]["name"]
        try:
            return _cluster_job(self._client.create(self._job.from_dict(dict(document))))
        except ApiError as error:
            if error.status.code == 409:
                raise JobExists(
                    f'job "{name}" is already in namespace "{self.namespace}"; '
                    f"`elastane delete --kubernetes --namespace {self.namespace} {name}` removes it"
                ) from None
            causes = (error.status.details and error.status.details.causes) or []
            if error.status.code == 422 and causes:
                lines = (f"{cause.field}: {_one_line(cause.message)}" for cause in causes)
                raise InvalidJobSpec(tuple(dict.fromkeys(lines))) from None
            raise

    def all(self) -> list[ClusterJob]:
        """Every job, the oldest first."""
        found = [_cluster_job(job) for job in self._client.list(self._job)]
        return sorted(found, key=lambda job: (-job.age_s, job.name))

    def get(self, name: str) -> ClusterJob | None:
        """A job; None if there is none of that name."""
        from lightkube import ApiError

        try:
            return _cluster_job(self._client.get(self._job, name))
        except ApiError as error:
            if error.status.code == 404:
                return None
            raise

    def find(self, name: str) -> ClusterJob:
        """A job; raises JobNotFound."""
        job = self.get(name) if name and "/" not in name else None
        if job is None:
            known = ", ".join(job.name for job in self.all()) or "none"
            raise JobNotFound(f'job "{name}" is not in namespace "{self.namespace}"; there are {known}')
        return job

    def pods(self, name: str) -> list[PodView]:
        """The pods of a job, by role and number."""
        from lightkube.resources.core_v1 import Pod

        found = [_pod_view(pod) for pod in self._client.list(Pod, labels={LABEL_JOB: name})]
        return sorted(found, key=lambda pod: (ROLES.index(pod.role) if pod.role in ROLES else len(ROLES), pod.index))

    def find_pod(self, name: str, node: str) -> PodView:
        """A node's pod, by its short or its full name; raises InvalidInput, which says which there are."""
        self.find(name)
        pods = self.pods(name)
        wanted = (node, f"{name}-{node}")
        found = next((pod for pod in pods if pod.name in wanted), None)
        if found is None:
            known = ", ".join(pod.name.removeprefix(f"{name}-") for pod in pods) or "none yet"
            raise InvalidInput(f'node: job "{name}" has no pod "{node}"; there are {known}')
        return found

    def log(self, pod: PodView, *, follow: bool, tail: int | None) -> Iterator[str]:
        """What a pod's node printed, by lines; to its end with `follow`."""
        yield from self._client.log(pod.name, container=pod.container, follow=follow, tail_lines=tail)

    def scale(self, name: str, counts: Mapping[str, int]) -> None:
        """Have a job's roles be of these sizes, by a ScalePlan; raises RequestRefused with the words of the refusal."""
        self._plan(name, {"replicaResourceSpecs": {role: {"replicas": count} for role, count in counts.items()}})

    def drain(self, name: str, node: str) -> None:
        """Let a node leave, by a ScalePlan; raises RequestRefused with the words of the refusal."""
        self._plan(name, {"removePods": [self.find_pod(name, node).name]})

    def migrate(self, name: str, node: str, resource: Mapping[str, Any]) -> None:
        """Have another node with these resources in a node's place, by a JobResource; raises RequestRefused."""
        job, pod = self.find(name), self.find_pod(name, node)
        spec = {"selector": {"name": name}, "resource_updation": [{"name": pod.name, "resource": dict(resource)}]}
        metadata = _metadata(job, f"{name}-migrate-", {})
        self._carried_out(name, self._client.create(self._job_resource.from_dict({"metadata": metadata, "spec": spec})))

    def delete(self, name: str, *, at_once: bool) -> None:
        """Have a job and its pods deleted, without waiting; `at_once` gives the pods a second to end."""
        from lightkube.types import CascadeType

        uid = self.find(name).uid
        if at_once:  # Before the job: a pod that has begun to leave with its whole grace period cannot be hurried.
            self._delete_pods(name, uid, grace_s=1)
        with self.unless(404):
            self._client.delete(self._job, name, cascade=CascadeType.BACKGROUND)
        # The cluster's garbage collector would see to them too, but takes its time. What it must see to is what this
        # user may not delete, and a pod that its master makes at this moment.
        with self.unless(403):
            self._delete_pods(name, uid, grace_s=1 if at_once else None)

    def _delete_pods(self, name: str, uid: str, *, grace_s: int | None) -> None:
        from lightkube.resources.core_v1 import Pod

        for pod in self._client.list(Pod, labels={LABEL_JOB: name}):
            metadata = pod.metadata
            if metadata is None or metadata.name is None or metadata.deletionTimestamp is not None:
                continue
            if any(owner.uid == uid for owner in metadata.ownerReferences or ()):
                with self.unless(404):
                    self._client.delete(Pod, metadata.name, grace_period=grace_s)

    def wait_until_gone(self, name: str, say: Callable[[str], None]) -> None:
        """Wait until neither the job nor a pod of it is there; says now and then what is."""
        next_word = time.monotonic() + WORD_EVERY_S
        while (left := [pod.name for pod in self.pods(name)]) or self.get(name) is not None:
            if time.monotonic() >= next_word:
                next_word += WORD_EVERY_S
                say(f"waits for {', '.join(left) or 'its finalizers'}")
            time.sleep(POLL_S)

    def follow(self, name: str, *, pods: bool) -> Iterator[ClusterJob | None]:
        """The job again and again, with its pods if they are wanted, None once it is gone.

        An API server that is away for a while is waited for; the job is then as it was seen last.
        """
        import httpx2

        seen, job = time.monotonic(), None
        while True:
            try:
                job = self.get(name)
                if job is not None and pods:
                    job = replace(job, pods=tuple(self.pods(name)))
            except httpx2.HTTPError as error:
                passing = not isinstance(error, httpx2.HTTPStatusError) or error.response.status_code in (429, 503)
                if not passing or time.monotonic() - seen > OUTAGE_PATIENCE_S:
                    raise
                if job is not None:
                    yield job
            else:
                seen = time.monotonic()
                yield job
            time.sleep(POLL_S)

    def events(self, job: ClusterJob) -> dict[tuple[str, int], Event]:
        """What was said of a job and of its pods, those that are gone included; by an id that a repeat has not."""
        from lightkube.resources.core_v1 import Event as ClusterEvent

        pod_name = re.compile(rf"{re.escape(job.name)}-(master|(ps|worker|evaluator)-[0-9]+)")
        found = {}
        for event in self._client.list(ClusterEvent):
            about = event.involvedObject
            ours = about.uid == job.uid or (about.kind == "Pod" and pod_name.fullmatch(about.name or ""))
            moment = event.lastTimestamp or event.eventTime or event.firstTimestamp or event.metadata.creationTimestamp
            if ours and moment is not None:
                found[event.metadata.uid or "", event.count or 1] = Event(
                    moment,
                    event.reason or "",
                    {
                        "object": f"{about.kind}/{about.name}",
                        "type": event.type or "",
                        "message": event.message or "",
                        "count": event.count or 1,
                    },
                )
        return found

    @contextlib.contextmanager
    def unless(self, *codes: int) -> Iterator[None]:
        """Read over a refusal of these codes."""
        from lightkube import ApiError

        try:
            yield
        except ApiError as error:
            if error.status.code not in codes:
                raise

    def _plan(self, name: str, change: Mapping[str, Any]) -> None:
        labels = {JOB_LABEL: name, SCALE_TYPE_LABEL: ScaleType.MANUAL.value}
        metadata = _metadata(self.find(name), f"{name}-", labels)
        plan = {"metadata": metadata, "spec": {"ownerJob": name, **change}}
        self._carried_out(name, self._client.create(self._scale_plan.from_dict(plan)))

    def _carried_out(self, name: str, plan: Any) -> None:
        """Wait until a plan is carried out; raises RequestRefused if it was refused, or nobody took it."""
        until = time.monotonic() + PLAN_PATIENCE_S
        while True:
            status = plan.status or {}
            phase = status.get("phase")
            if phase == PlanPhase.SUCCEEDED:
                return
            if phase == PlanPhase.FAILED:
                raise RequestRefused(_one_line(status.get("message") or f'the plan for job "{name}" failed'))
            if time.monotonic() > until:
                what = f"{plan.kind.lower()}/{plan.metadata.name}"
                if phase is None:
                    raise PlatformError(f"nobody took {what} for {PLAN_PATIENCE_S:.0f} s; does the operator run?")
                raise RequestRefused(f"{what} is not carried out yet: {_one_line(status.get('message') or phase)}")
            time.sleep(POLL_S)
            plan = self._client.get(type(plan), plan.metadata.name)


def _metadata(job: ClusterJob, prefix: str, labels: Mapping[str, str]) -> dict[str, Any]:
    """Of a plan for a job, which goes when the job does."""
    owner = {"apiVersion": API_VERSION, "kind": "ElasticJob", "name": job.name, "uid": job.uid}
    return {"generateName": prefix, "labels": dict(labels), "ownerReferences": [owner]}


def _cluster_job(job: Any) -> ClusterJob:
    metadata = job.metadata
    return ClusterJob(
        name=metadata.name,
        namespace=metadata.namespace,
        uid=metadata.uid,
        age_s=_age_s(metadata.creationTimestamp),
        deleting=metadata.deletionTimestamp is not None,
        status=job.status or {},
    )


def _pod_view(pod: Pod) -> PodView:
    metadata, spec, status = pod.metadata, pod.spec, pod.status
    assert metadata is not None and spec is not None and status is not None  # noqa: S101, PT018  # pods that are listed
    labels, annotations = metadata.labels or {}, metadata.annotations or {}
    role = labels.get(LABEL_ROLE, "")
    ours = next((found for found in status.containerStatuses or () if found.name == spec.containers[0].name), None)
    restarts = annotations.get(ANNOTATION_RESTARTS, "")
    made_anew = 0 if ours is None else ours.restartCount
    index = labels.get(LABEL_INDEX, "")
    return PodView(
        name=metadata.name or "",
        role=role,
        index=int(index) if index.isdecimal() else 0,
        status="leaving" if metadata.deletionTimestamp is not None else (status.phase or "Pending").lower(),
        reason=_reason(pod),
        restarts=int(restarts) if restarts.isdecimal() else made_anew,
        age_s=_age_s(metadata.creationTimestamp),
        container=spec.containers[0].name,
    )


def _reason(pod: Pod) -> str:
    """Why a pod does not run: the kubelet's word for it, its container's, or the scheduler's."""
    status = pod.status
    if status is None:
        return ""
    if status.reason:
        return status.reason
    for container in (*(status.initContainerStatuses or ()), *(status.containerStatuses or ())):
        state = container.state
        if state is not None and state.waiting is not None and state.waiting.reason:
            return str(state.waiting.reason)
        if state is not None and state.terminated is not None and state.terminated.exitCode:
            return str(state.terminated.reason) if state.terminated.reason else f"exit code {state.terminated.exitCode}"
    unplaced = (found for found in status.conditions or () if found.type == "PodScheduled" and found.status == "False")
    return next((found.reason or "" for found in unplaced), "")


def _age_s(created: datetime | None) -> float:
    return 0.0 if created is None else max(0.0, (datetime.now(UTC) - created).total_seconds())
