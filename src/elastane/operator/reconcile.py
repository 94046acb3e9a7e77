"""What to do about a job: one pure function of what is seen of it and the time.

It is level-triggered: it remembers nothing, and asked twice about the same it answers the same. An operator that was
away, or is the second one, goes on from the job's status and its pods.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from elastane.model.errors import InvalidJobSpec
from elastane.model.job_spec import ElasticJob, ElasticJobSpec, load_job
from elastane.operator.actions import (
    Action,
    AskMasterToStop,
    CreateMasterPod,
    CreateRoleBinding,
    CreateSecret,
    CreateService,
    CreateServiceAccount,
    DeleteJob,
    DeletePods,
    PatchStatus,
)
from elastane.operator.observed import Json, MasterEnd, Observed, PodFacts
from elastane.operator.plans import decide_plans
from elastane.operator.status import (
    COMPLETE,
    CREATED,
    FAILED,
    FALSE,
    INVALID_SPEC,
    RUNNING,
    SCALING,
    SUSPENDED,
    TRUE,
    UNKNOWN,
    Draft,
    restarts_seen,
    role_counts,
    story,
)
from elastane.operator.times import stamp

STOP_AGAIN_S = 20.0
"""A master that was asked to stop and goes on is asked again after so long."""
STOP_PATIENCE_S = 60.0
"""A master that has not stopped so long after the nodes' grace period is not waited for."""
DEFAULT_BACKOFF_LIMIT: int = ElasticJobSpec.model_fields["backoff_limit"].default
STUCK_S = 60.0
"""A master's pod that is there so long after its grace period is on a machine that does not answer."""


@dataclass
class Decision:
    """What to do, in this order, and when to look again if nothing happens before."""

    actions: list[Action] = field(default_factory=list)
    look_again_at: float | None = None

    def look_at(self, at: float) -> None:
        self.look_again_at = at if self.look_again_at is None else min(at, self.look_again_at)


def reconcile(seen: Observed, now: float) -> Decision:
    """What to do now about a job and the plans that name it."""
    if seen.job is None:
        plans = decide_plans(seen, None, accepts="", now=now)
        return Decision(list(plans.actions))
    if "deletionTimestamp" in seen.job["metadata"]:
        return Decision()
    return _Look(seen, seen.job, now).decide()


class _Look:
    """One look at a job that is there: the next status grows as the rules are gone through."""

    def __init__(self, seen: Observed, body: Json, now: float) -> None:
        self._seen = seen
        self._body = body
        self._now = now
        self._draft = Draft(seen.status, seen.generation, now)
        self._decision = Decision()
        self._creates = False
        self._job, self._wrong = _loaded(body)

    def decide(self) -> Decision:
        if not self._draft.finished:
            self._live()
        if self._draft.finished:
            self._ended()
        plans = decide_plans(self._seen, self._job, accepts=self._refuses_plans(), now=self._now)
        if plans.look_again_at is not None:
            self._decision.look_at(plans.look_again_at)
        self._describe(plans.open)
        self._patch()
        self._decision.actions += plans.actions
        return self._decision

    # The life of a job.

    def _live(self) -> None:
        self._adopt()
        if self._wrong and not self._has_started:
            self._draft.set(FAILED, TRUE, INVALID_SPEC, self._wrong)
            return
        if self._is_refused_for_good():
            return
        self._say_what_is_wrong()
        if self._is_over_its_time():
            return
        if self._wants_suspension or self._draft.says(SUSPENDED, UNKNOWN):
            self._suspend()
        if self._draft.finished or self._wants_suspension or self._draft.says(SUSPENDED, UNKNOWN):
            return
        if self._draft.says(SUSPENDED):
            self._draft.set(SUSPENDED, FALSE, "Resumed", "the job goes on with a new master")
        self._follow_master()

    def _follow_master(self) -> None:
        master = self._seen.master
        if master is None:
            self._make_master()
        elif master.phase == "Succeeded" and (said := MasterEnd.of(master)).end in ("succeeded", "failed"):
            self._end_as(master, said)
        elif master.deleting:
            # A master that was told to end may say that its job was stopped.
            self._lose_master(master, "it was deleted")
            self._wait_until_gone(master)
        elif master.phase == "Succeeded":
            self._end_as(master, MasterEnd.of(master))
        elif master.phase == "Failed":
            self._lose_master(master, _end_words(master))
            if not self._draft.finished:
                self._delete([master])
        else:
            self._watch_crashes(master)

    def _adopt(self) -> None:
        """Note a master's pod that was not seen before."""
        master = self._seen.master
        if master is not None and not master.deleting and master.uid != self._record.get("uid"):
            self._record = {"uid": master.uid, "before": self._record.get("before", 0)}
            self._draft.fields.setdefault("startTime", stamp(self._now))
            self._draft.set(CREATED, TRUE, "MasterCreated", f"the master's pod {master.name} was created")

    def _lose_master(self, master: PodFacts | None, why: str) -> None:
        """Count a master's pod that is lost, once, and end the job if that was one too many."""
        record = self._record
        if not record.get("uid") or record.get("over"):
            return
        restarts = master.container_restarts if master is not None else record.get("containerRestarts", 0)
        before = record.get("before", 0) + restarts + 1
        self._record = {"uid": record["uid"], "over": True, "before": before, "why": why}
        self._count_master_restarts(before, why)

    def _watch_crashes(self, master: PodFacts) -> None:
        """A master that fails is started again in its pod; that is counted just as a pod that is made anew."""
        before = self._record.get("before", 0)
        if master.container_restarts:
            why = _end_words(master)
            self._record = {**self._record, "containerRestarts": master.container_restarts, "why": why}
        failures = before + master.container_restarts + master.container_fails
        self._count_master_restarts(before + master.container_restarts, _end_words(master), failures)

    def _count_master_restarts(self, restarts: int, why: str, failures: int | None = None) -> None:
        limit = self._master_limit
        fields = self._draft.fields
        if restarts:
            fields["masterRestarts"] = max(min(restarts, limit), fields.get("masterRestarts", 0))
        if (restarts if failures is None else failures) > limit:
            told = f"the master failed {limit + 1} times, and may be restarted {limit} times; last: {why}"
            self._finish(FAILED, "BackoffLimitExceeded", told)

    def _make_master(self) -> None:
        self._lose_master(None, "it is gone")
        if self._draft.finished:
            return
        if self._job is None:
            self._finish(FAILED, INVALID_SPEC, f"the master's pod cannot be made anew: {self._wrong}")
            return
        refusal = self._seen.refusal
        if refusal is not None and refusal.generation == self._seen.generation:
            if refusal.for_good:
                self._draft.set(FAILED, TRUE, INVALID_SPEC, refusal.words)
                return
            self._draft.set(CREATED, FALSE, "MasterRefused", f"the master's pod cannot be made: {refusal.words}")
        self._creates = True

    def _end_as(self, master: PodFacts, said: MasterEnd) -> None:
        """The master says that the job has ended."""
        if said.end == "succeeded":
            self._finish(COMPLETE, "Succeeded", said.words or "the job has done all its work")
        elif said.end == "stopped":
            self._finish(FAILED, "Stopped", said.words or "the job was stopped before its work was done")
        elif said.end == "failed":
            self._finish(FAILED, "JobFailed", said.words or "the master does not say why")
        else:
            self._finish(
                FAILED, "UnknownEnd", f"the master ended without a word that can be read: {_end_words(master)}"
            )

    def _finish(self, kind: str, reason: str, message: str) -> None:
        self._draft.set(kind, TRUE, reason, message)
        self._draft.fields["completionTime"] = stamp(self._now)

    def _is_over_its_time(self) -> bool:
        """End a job that has taken too long."""
        most_s = None if self._job is None else self._job.spec.active_deadline_seconds
        started = self._draft.started_at
        if most_s is None or started is None or self._has_ended_itself:
            return False
        if self._now < started + most_s:
            self._decision.look_at(started + most_s)
            return False
        self._finish(FAILED, "DeadlineExceeded", f"the job did not end within {most_s} s")
        return True

    def _ended(self) -> None:
        """No pod outlives its job; those that ended stay, with their logs, until the job is deleted."""
        self._delete(pod for pod in self._seen.pods if pod.lives)
        ttl_s = None if self._job is None else self._job.spec.ttl_seconds_after_finished
        if ttl_s is None or self._draft.ended_at is None:
            return
        due = self._draft.ended_at + ttl_s
        if self._now >= due and self._seen.status.get("completionTime"):
            self._decision.actions.append(DeleteJob())
        else:
            self._decision.look_at(due)

    # Suspension.

    def _suspend(self) -> None:
        """Let the job end without its having ended. Each step is taken when the one before it is seen to be done."""
        if self._draft.says(SUSPENDED) and not self._seen.pods:
            return
        master = self._seen.master
        if master is not None and master.phase == "Succeeded":
            said = MasterEnd.of(master)
            if said.end != "stopped":
                self._end_as(master, said)
                return
        elif master is not None and master.lives and master.has_started:
            if not self._draft.says(SUSPENDED, UNKNOWN):
                self._draft.set(SUSPENDED, UNKNOWN, "Stopping", "the master was asked to stop the job")
            if not self._has_lost_patience():
                self._ask_to_stop(master)
                return
        if self._seen.pods:
            # The names of all pods are used again by the next master.
            self._delete(pod for pod in self._seen.pods if not pod.deleting)
            if master is not None and master.deleting:
                self._wait_until_gone(master)
            if not self._draft.says(SUSPENDED, UNKNOWN):
                self._draft.set(SUSPENDED, UNKNOWN, "Stopping", "the job's pods are deleted")
            return
        self._draft.set(SUSPENDED, TRUE, "Suspended", "the job has no pods until it is resumed")
        self._draft.fields.pop("startTime", None)
        self._record = {}

    def _ask_to_stop(self, master: PodFacts) -> None:
        asked_at = self._seen.stop_asked_at
        due = self._now if asked_at is None else asked_at + STOP_AGAIN_S
        if due <= self._now and master.ready:
            self._decision.actions.append(AskMasterToStop())
            due = self._now + STOP_AGAIN_S
        self._decision.look_at(max(due, self._now + 1))

    def _has_lost_patience(self) -> bool:
        grace_s = 30.0 if self._job is None else self._job.spec.termination_grace_period_seconds
        due = self._draft.since(SUSPENDED) + grace_s + STOP_PATIENCE_S
        self._decision.look_at(due)
        return self._now >= due

    # What is said of it.

    def _describe(self, open_plans: list[str]) -> None:
        """The conditions, counts and words that follow from what is seen."""
        draft, seen = self._draft, self._seen
        draft.fields["observedGeneration"] = seen.generation
        counts = role_counts(seen.pods, draft.fields.get("replicaStatuses") or {})
        if counts:
            draft.fields["replicaStatuses"] = counts
        if seen.pods or seen.gone:
            was = draft.fields.get("restarts") or {}
            found = restarts_seen((*seen.nodes, *seen.gone))
            draft.fields["restarts"] = {kind: max(count, was.get(kind, 0)) for kind, count in found.items()}
        if self._has_started or draft.condition(RUNNING) is not None:
            self._describe_running()
            self._describe_scaling(open_plans)
        draft.fields["phase"], draft.fields["reason"] = self._phase()

    def _describe_running(self) -> None:
        draft, master = self._draft, self._seen.master
        if draft.finished:
            draft.set(RUNNING, FALSE, "Ended", "the job has ended")
        elif master is None or not master.lives:
            draft.set(RUNNING, FALSE, "NoMaster", "the job has no master")
        elif master.phase != "Running" or not master.ready:
            draft.set(RUNNING, FALSE, "MasterStarting", master.note or "the master's pod does not run yet")
        elif any(pod.phase == "Running" for pod in self._seen.nodes):
            draft.set(RUNNING, TRUE, "NodesRunning", "the master and its nodes run")
        elif self._job is not None and not self._job.spec.launches_nodes:
            draft.set(RUNNING, TRUE, "MasterRunning", "the master runs; its workers are started by others")
        elif not draft.says(RUNNING):
            draft.set(RUNNING, FALSE, "WaitingForNodes", "the master runs, and none of its nodes does yet")

    def _describe_scaling(self, open_plans: list[str]) -> None:
        draft = self._draft
        pending = [pod for pod in self._seen.nodes if pod.phase == "Pending" and not pod.deleting]
        if draft.finished:
            draft.set(SCALING, FALSE, "Ended", "the job has ended")
        elif open_plans:
            draft.set(SCALING, TRUE, "PlanOpen", f"being carried out: {', '.join(sorted(open_plans)[:5])}")
        elif pending:
            note = next((pod.note for pod in pending if pod.note), "")
            draft.set(SCALING, TRUE, "PodsPending", note or "pods of nodes do not run yet")
        else:
            draft.set(SCALING, FALSE, "Settled", "all pods that are wanted are there")

    def _phase(self) -> tuple[str, str]:
        draft = self._draft
        for kind, status, word in (
            (COMPLETE, TRUE, "Complete"),
            (FAILED, TRUE, "Failed"),
            (SUSPENDED, TRUE, "Suspended"),
            (SUSPENDED, UNKNOWN, "Suspending"),
        ):
            found = draft.condition(kind)
            if found is not None and found["status"] == status:
                return word, f"{found['reason']}: {found['message']}"
        if draft.says(RUNNING):
            return "Running", ""
        found = draft.condition(RUNNING) or draft.condition(CREATED)
        return "Pending", "" if found is None else f"{found['reason']}: {found['message']}"

    def _patch(self) -> None:
        """Put the status first: what was counted must be known to be, before anything follows from it."""
        old, new = self._seen.status, self._draft.document()
        new = {key: value for key, value in new.items() if value not in ({}, "", None)}
        first: list[Action] = []
        # While nothing was counted, a job is first told of once it has a master.
        is_silent = self._creates and "masterPod" not in new and not self._draft.says(CREATED, FALSE)
        if new != old and not is_silent:
            first = [PatchStatus(new), *story(old, new)]
        if self._creates and self._job is not None:
            first += [
                # First what the cluster has to add something to before a pod can have it.
                CreateServiceAccount(),
                CreateRoleBinding(),
                CreateSecret(self._job),
                CreateService(),
                CreateMasterPod(self._job),
            ]
        self._decision.actions = [*first, *self._decision.actions]

    def _refuses_plans(self) -> str:
        if self._draft.finished:
            return f'job "{self._seen.key.name}" has ended'
        if self._draft.says(SUSPENDED) or self._draft.says(SUSPENDED, UNKNOWN):
            return f'job "{self._seen.key.name}" is suspended'
        return ""

    # Small words.

    @property
    def _record(self) -> dict[str, Any]:
        """What the status says of the master's pod: its uid, whether it is over, and how many restarts came before."""
        found: dict[str, Any] = dict(self._draft.fields.get("masterPod") or {})
        return found

    @_record.setter
    def _record(self, value: dict[str, Any]) -> None:
        self._draft.fields["masterPod"] = value

    @property
    def _has_started(self) -> bool:
        return bool(self._record.get("uid")) or self._draft.condition(SUSPENDED) is not None

    @property
    def _master_limit(self) -> int:
        """How many restarts of the master there may be; of a spec that was spoilt, what it says of that if it can."""
        if self._job is not None:
            return self._job.spec.master_restarts
        given = (self._body.get("spec") or {}).get("backoffLimit")
        return given if isinstance(given, int) and given >= 0 else DEFAULT_BACKOFF_LIMIT

    @property
    def _wants_suspension(self) -> bool:
        return bool((self._body.get("spec") or {}).get("suspend"))

    @property
    def _has_ended_itself(self) -> bool:
        master = self._seen.master
        return master is not None and not master.deleting and master.phase == "Succeeded"

    def _is_refused_for_good(self) -> bool:
        """Whether the API server refused a pod of this very spec, so that there is nothing to do until it changes."""
        failed = self._draft.condition(FAILED)
        if failed is None or failed["status"] != TRUE:
            return False
        return not self._wrong and failed["observedGeneration"] == self._seen.generation

    def _say_what_is_wrong(self) -> None:
        """A spec that was changed to one that cannot be used does not stop a job that runs."""
        failed = self._draft.condition(FAILED)
        if self._wrong:
            self._draft.set(FAILED, FALSE, INVALID_SPEC, f"{self._wrong}; the job goes on as it was")
        elif failed is not None:
            self._draft.set(FAILED, FALSE, "SpecMended", "the spec can be used")

    def _delete(self, pods: Iterable[PodFacts]) -> None:
        doomed = tuple((pod.name, pod.uid) for pod in pods)
        if doomed:
            self._decision.actions.append(DeletePods(doomed))

    def _wait_until_gone(self, master: PodFacts) -> None:
        """The next master has the same name. One whose machine does not answer is not waited for."""
        due = (master.gone_by or self._now) + STUCK_S
        if self._now >= due:
            self._decision.actions.append(DeletePods(((master.name, master.uid),), at_once=True))
        else:
            self._decision.look_at(due)


def _loaded(body: Json) -> tuple[ElasticJob | None, str]:
    """The job, or what is wrong with its spec."""
    try:
        return load_job(body), ""
    except InvalidJobSpec as error:
        return None, str(error)


def _end_words(pod: PodFacts) -> str:
    """How a pod's own container ended, in one line."""
    if pod.exit is None:
        return pod.note or "it does not say why"
    code = "" if pod.exit.code is None else f"exit code {pod.exit.code}"
    last = next((line for line in reversed(pod.exit.log_tail.splitlines()) if line.strip()), "")
    return ": ".join(part for part in (code, last) if part) or str(pod.exit.reason)
