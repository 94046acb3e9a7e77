"""How each action is applied: a table from the action's type to the function that does it."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import structlog

from elastane.model.errors import InvalidInput, MalformedMessage, MasterUnreachable, PlatformError, RequestRefused
from elastane.model.job_spec import ElasticJob
from elastane.model.node import Node
from elastane.model.status_documents import PlanPhase
from elastane.operator import actions as do
from elastane.operator import manifests
from elastane.operator.api import (
    EVENTS,
    JOB_RESOURCES,
    JOBS,
    PODS,
    ROLE_BINDINGS,
    SCALE_PLANS,
    SECRETS,
    SERVICE_ACCOUNTS,
    SERVICES,
    Api,
    Kind,
)
from elastane.operator.cache import WatchCache
from elastane.operator.observed import JobKey, Json, Refusal
from elastane.operator.plans import apply_request, drained_nodes, in_words, plan_status
from elastane.operator.secrets import new_credentials
from elastane.platform.kubernetes.connection import AlreadyExists, ApiError, NotFound
from elastane.platform.kubernetes.pods import (
    KEY_CERTIFICATE,
    KEY_JOB,
    KEY_TOKEN,
    MASTER_PORT,
    JobOwner,
    Manifest,
    master_pod,
    node_pod,
)
from elastane.rpc.control_client import ControlClient

ASK_AGAIN_S = 2.0
ASK_AGAIN_MOST_S = 60.0
"""A master that does not answer is asked again after so long; the time doubles up to this."""

CREATES_AT_ONCE = 8

_BESIDE = (do.CreateSecret, do.CreateService, do.CreateServiceAccount, do.CreateRoleBinding)
_KINDS = {kind.plural: kind for kind in (SCALE_PLANS, JOB_RESOURCES)}

_log = structlog.get_logger("elastane.operator")


class NameTaken(PlatformError):
    """Something of that name is there and belongs to another, perhaps to a job of the same name that is going."""


class Hands:
    """Applies actions to the cluster, and tells the cache at once what became of them."""

    def __init__(self, api: Api, cache: WatchCache) -> None:
        self._api = api
        self._cache = cache
        self._creates = asyncio.Semaphore(CREATES_AT_ONCE)
        self._table: dict[type[do.Action], Callable[[JobKey, Any], Awaitable[None]]] = {
            do.CreateSecret: self._create_secret,
            do.CreateService: self._create_service,
            do.CreateServiceAccount: self._create_service_account,
            do.CreateRoleBinding: self._create_role_binding,
            do.CreateMasterPod: self._create_master_pod,
            do.DeletePods: self._delete_pods,
            do.PatchStatus: self._patch_status,
            do.EmitEvent: self._emit_event,
            do.PatchPlan: self._patch_plan,
            do.AskMasterToStop: self._ask_to_stop,
            do.AskMaster: self._ask_master,
            do.CarryOutPlan: self._carry_out_plan,
            do.DeleteJob: self._delete_job,
        }

    async def apply(self, key: JobKey, action: do.Action) -> None:
        """Do one thing. Raises ApiError, NameTaken; what was done before is harmless to do again."""
        memory = self._cache.memory(key)
        if action in memory.ensured:
            return
        try:
            await self._table[type(action)](key, action)
        except NameTaken as error:
            generation = 0 if (job := self._found(key)) is None else job["metadata"].get("generation", 0)
            memory.refusal = Refusal(str(error), for_good=False, generation=generation)
            raise
        if isinstance(action, _BESIDE):
            # Until the master is made, only its pod is tried again.
            memory.ensured.append(action)

    # What stands beside a master.

    async def _create_secret(self, key: JobKey, action: do.CreateSecret) -> None:
        owner = self._owner(key)
        made = manifests.secret(action.job, owner, new_credentials())
        found = await self._ensure(SECRETS, owner, made)
        if found["data"].get(KEY_JOB) != made["data"][KEY_JOB]:
            # The spec was changed since the master before read it.
            patch = {"data": {KEY_JOB: made["data"][KEY_JOB]}}
            found = await self._api.patch(SECRETS, key.namespace, owner.master_name, patch)
        self._remember_credentials(key, found)

    async def _create_service(self, key: JobKey, _: do.CreateService) -> None:
        owner = self._owner(key)
        self._remember_address(key, await self._ensure(SERVICES, owner, manifests.service(owner)))

    async def _create_service_account(self, key: JobKey, _: do.CreateServiceAccount) -> None:
        owner = self._owner(key)
        await self._ensure(SERVICE_ACCOUNTS, owner, manifests.service_account(owner))

    async def _create_role_binding(self, key: JobKey, _: do.CreateRoleBinding) -> None:
        owner = self._owner(key)
        await self._ensure(ROLE_BINDINGS, owner, manifests.role_binding(owner))

    async def _ensure(self, kind: Kind, owner: JobOwner, manifest: Manifest) -> Manifest:
        """Make an object unless it is there; raise NameTaken if another job's is."""
        try:
            return await self._api.create(kind, owner.namespace, manifest)
        except AlreadyExists:
            pass
        name = manifest["metadata"]["name"]
        found = await self._api.get(kind, owner.namespace, name)
        if not owner.owns(found) or "deletionTimestamp" in found["metadata"]:
            raise NameTaken(f'{kind.plural} "{name}" is there and is not of this job')
        return found

    # Pods.

    async def _create_master_pod(self, key: JobKey, action: do.CreateMasterPod) -> None:
        memory = self._cache.memory(key)
        generation = self._job(key)["metadata"].get("generation", 0)
        try:
            owner = self._owner(key)
            made = await self._ensure(PODS, owner, master_pod(action.job, owner))
        except InvalidInput as error:
            memory.refusal = Refusal(str(error), for_good=True, generation=generation)
            return
        except ApiError as error:
            if error.is_for_the_user:
                memory.refusal = Refusal(str(error), for_good=error.is_invalid, generation=generation)
            if error.is_invalid:
                return
            raise
        memory.refusal = None
        memory.ensured.clear()
        self._cache.take(PODS, made)

    async def _delete_pods(self, key: JobKey, action: do.DeletePods) -> None:
        for name, uid in action.pods:
            await self._delete_pod(key, name, uid, at_once=action.at_once)

    async def _delete_pod(self, key: JobKey, name: str, uid: str, *, at_once: bool) -> bool:
        """Delete a pod if it is still that one; whether it was there."""
        try:
            left = await self._api.delete(PODS, key.namespace, name, uid, 0 if at_once else None)
        except ApiError as error:
            # A conflict: another pod has the name, so that this one is gone.
            if isinstance(error, NotFound) or error.is_conflict:
                return False
            raise
        if left.get("kind") == "Pod":
            self._cache.take(PODS, left)
        return True

    # What is said.

    async def _patch_status(self, key: JobKey, action: do.PatchStatus) -> None:
        job = self._job(key)
        before = job.get("status") or {}
        status = {**dict.fromkeys(before), **action.status}
        patch = {"metadata": {"resourceVersion": job["metadata"]["resourceVersion"]}, "status": _patch(before, status)}
        try:
            self._cache.take(JOBS, await self._api.patch(JOBS, key.namespace, key.name, patch, "status"))
        except ApiError as error:
            if error.is_conflict:
                self._cache.take(JOBS, await self._api.get(JOBS, key.namespace, key.name))
            raise

    async def _emit_event(self, key: JobKey, action: do.EmitEvent) -> None:
        job = self._found(key)
        if job is None:
            return
        _log.info("event", job=str(key), reason=action.reason, message=action.message)
        name = f"{key.name}.{uuid.uuid4().hex[:16]}"
        made = manifests.event(job, name, action.reason, action.message, warning=action.warning, now=time.time())
        try:
            await self._api.create(EVENTS, key.namespace, made)
        except ApiError as error:
            # A story with a gap is better than a job that waits for it.
            _log.warning("event_lost", job=str(key), error=str(error))

    async def _patch_plan(self, key: JobKey, action: do.PatchPlan) -> None:
        kind = _KINDS[action.plan.plural]
        patch = {"metadata": {"uid": action.plan.uid}, "status": dict(action.status)}
        try:
            self._cache.take(kind, await self._api.patch(kind, key.namespace, action.plan.name, patch, "status"))
        except ApiError as error:
            # Deleted, or deleted and written anew: then the watch tells of it.
            if not (isinstance(error, NotFound) or error.is_conflict or error.is_invalid):
                raise
            _log.info("plan_gone", job=str(key), plan=action.plan.name, error=str(error))

    # What is asked of masters.

    async def _ask_to_stop(self, key: JobKey, _: do.AskMasterToStop) -> None:
        memory = self._cache.memory(key)
        memory.stop_asked_at = time.time()
        try:
            async with await self._control(key) as control:
                await control.stop(at_once=False)
        except (RequestRefused, MasterUnreachable) as error:
            # It is stopping already, or it is asked again.
            _log.info("stop_not_taken", job=str(key), error=str(error))

    async def _ask_master(self, key: JobKey, action: do.AskMaster) -> None:
        ref, memory = action.plan, self._cache.memory(key)
        uid = self._job(key)["metadata"]["uid"]
        if not action.asked_before:
            # Whoever finds this knows that it may have been asked.
            asking = plan_status(ref, PlanPhase.SCALING, "the job's master is asked", None, uid)
            await self._patch_plan(key, do.PatchPlan(ref, asking))
        try:
            async with await self._control(key) as control:
                request = apply_request(action.document)
                if request.group or request.node:
                    await control.apply(request)
                for node in drained_nodes(action.document):
                    await control.drain(node)
        except MasterUnreachable as error:
            memory.tries[ref.uid] = tries = memory.tries.get(ref.uid, 0) + 1
            memory.not_before[ref.uid] = time.time() + min(ASK_AGAIN_MOST_S, ASK_AGAIN_S * 2 ** min(tries - 1, 10))
            await self._patch_plan(key, do.PatchPlan(ref, plan_status(ref, PlanPhase.PENDING, str(error), None, uid)))
            return
        except (RequestRefused, MalformedMessage) as error:
            words = str(error)
            phase, event, warning = PlanPhase.FAILED, "PlanRefused", True
            if action.asked_before:
                words = f"it was asked before the operator was restarted, and says now: {words}"
                phase, event, warning = PlanPhase.SUCCEEDED, "PlanDone", False
        else:
            words = f"the master has taken it: {in_words(action.document)}"
            phase, event, warning = PlanPhase.SUCCEEDED, "PlanDone", False
        memory.tries.pop(ref.uid, None)
        memory.not_before.pop(ref.uid, None)
        await self._patch_plan(key, do.PatchPlan(ref, plan_status(ref, phase, words, time.time(), uid)))
        told = f"{action.document.kind} {ref.name}: {words}"
        await self._emit_event(key, do.EmitEvent(event, told, warning=warning))

    async def _carry_out_plan(self, key: JobKey, action: do.CarryOutPlan) -> None:
        owner = self._owner(key, await self._address(key))
        outcomes = await asyncio.gather(*(self._create_node(action.job, node, owner) for node in action.create))
        refused = [told for told in outcomes if told]
        removed = []
        for name in action.document.remove_nodes:
            removed.append(name)
            pod = self._pod(key, name)
            if pod is not None:
                await self._delete_pod(key, name, pod, at_once=action.document.spec.remove_at_once)
        created = [node.name for node in action.document.launch_nodes] if not refused else []
        words = f"created {len(created)} pods, removed {len(removed)}" if not refused else refused[0]
        phase = PlanPhase.FAILED if refused else PlanPhase.SUCCEEDED
        status = plan_status(action.plan, phase, words, time.time(), owner.uid)
        status |= {"createdPods": created, "removedPods": removed}
        await self._patch_plan(key, do.PatchPlan(action.plan, status))
        told = f"ScalePlan {action.plan.name}: {words}"
        reason = "PlanRefused" if refused else "Scaled"
        await self._emit_event(key, do.EmitEvent(reason, told, warning=bool(refused)))

    async def _create_node(self, job: ElasticJob, node: Node, owner: JobOwner) -> str:
        """Make a node's pod; the result says why it never can be, and is empty if it was made. Raises ApiError."""
        try:
            async with self._creates:
                self._cache.take(PODS, await self._ensure(PODS, owner, node_pod(job, node, owner)))
        except InvalidInput as error:
            return str(error)
        except ApiError as error:
            if not error.is_invalid:
                raise
            return str(error)
        return ""

    async def _delete_job(self, key: JobKey, _: do.DeleteJob) -> None:
        job = self._job(key)
        _log.info("deletes_ended_job", job=str(key))
        try:
            await self._api.delete(JOBS, key.namespace, key.name, job["metadata"]["uid"])
        except ApiError as error:
            if not (isinstance(error, NotFound) or error.is_conflict):
                raise
        self._cache.take(JOBS, job, deleted=True)

    # Where things are.

    async def _control(self, key: JobKey) -> ControlClient:
        memory = self._cache.memory(key)
        address = await self._address(key)
        if memory.credentials is None:
            self._remember_credentials(key, await self._api.get(SECRETS, key.namespace, self._owner(key).master_name))
        assert memory.credentials is not None  # noqa: S101  # it was remembered just now
        return ControlClient(address, *memory.credentials)

    async def _address(self, key: JobKey) -> str:
        if not self._cache.memory(key).master_address:
            await self._create_service(key, do.CreateService())
        return self._cache.memory(key).master_address

    def _remember_credentials(self, key: JobKey, secret: Json) -> None:
        data: Mapping[str, str] = secret["data"]
        found = (manifests.decoded(data[KEY_TOKEN]), manifests.decoded(data[KEY_CERTIFICATE]))
        self._cache.memory(key).credentials = found

    def _remember_address(self, key: JobKey, service: Json) -> None:
        self._cache.memory(key).master_address = f"{service['spec']['clusterIP']}:{MASTER_PORT}"

    def _job(self, key: JobKey) -> Json:
        """The job as it was seen last; raise NameTaken if it is gone: then nothing more is to be done for it."""
        if (job := self._found(key)) is None:
            raise NameTaken(f'job "{key}" is gone')
        return job

    def _found(self, key: JobKey) -> Json | None:
        observed = self._cache.observe(key)
        return None if observed is None else observed.job

    def _pod(self, key: JobKey, name: str) -> str | None:
        """The uid of a pod of the job; None if it is not there."""
        observed = self._cache.observe(key)
        return None if observed is None else next((pod.uid for pod in observed.pods if pod.name == name), None)

    def _owner(self, key: JobKey, address: str = "") -> JobOwner:
        known = address or self._cache.memory(key).master_address
        return JobOwner(key.name, key.namespace, self._job(key)["metadata"]["uid"], known)


def _patch(before: Json, after: Mapping[str, Any]) -> dict[str, Any]:
    """The merge patch that makes one status of another: a field that is nothing any more is removed, at any depth."""
    patch: dict[str, Any] = {}
    for key, value in after.items():
        old = before.get(key)
        if isinstance(value, Mapping) and isinstance(old, Mapping):
            if changes := _patch(old, {**dict.fromkeys(old), **value}):
                patch[key] = changes
        elif value != old:
            patch[key] = value
    return patch
