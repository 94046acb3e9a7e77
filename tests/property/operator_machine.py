"""A cluster with one job in it, and an operator that may lag behind it and die between any two things it does."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from elastane.model.node import ExitReason, NodeExit, NodeType
from elastane.operator import actions as do
from elastane.operator.observed import JobKey, Observed, PodFacts
from elastane.operator.reconcile import reconcile
from elastane.operator.times import moment
from tests.builders import job_document

START = moment("2030-01-01T00:00:00Z")
MASTER = "ctr-master"
ENDS = ("succeeded", "failed", "stopped")


class Conflict(Exception):
    """The job has changed since it was read."""


class OperatorMachine(RuleBasedStateMachine):
    """What is real is in `job`, `pods` and `plans`; what the operator believes is in `seen_*`."""

    def __init__(self) -> None:
        super().__init__()
        self.now = START
        self.pods: dict[str, PodFacts] = {}
        self.plans: dict[str, dict[str, Any]] = {}
        self.made = 0
        self.launched: list[str] = []
        self.carried_out: list[str] = []
        self.asked: list[str] = []
        self.planned_nodes = 0
        self.masters_made = 0
        self.master_crashes = 0
        self.ended: dict[str, Any] | None = None
        self.stop_asked_at: float | None = None
        self.most_restarts = 0

    @initialize(limit=st.integers(0, 2), runs=st.booleans())
    def submit(self, limit: int, runs: bool) -> None:
        body = job_document()
        body |= {"apiVersion": "elastic.iml.github.io/v1alpha1", "kind": "ElasticJob", "status": {}}
        body["metadata"] |= {"namespace": "ns", "uid": "job", "generation": 1, "resourceVersion": "1"}
        body["spec"] |= {"backoffLimit": limit}
        self.limit = limit
        self.job = body
        self.restart_operator()
        if runs:
            self.look(99)
            self.master_runs()

    # The operator.

    @rule()
    def restart_operator(self) -> None:
        """It lists everything, and remembers nothing."""
        self.stop_asked_at = None
        self.gone: dict[str, PodFacts] = {}
        self.seen_job, self.seen_pods, self.seen_plans = self.job, dict(self.pods), dict(self.plans)

    @rule()
    def watch_catches_up(self) -> None:
        for name, pod in self.seen_pods.items():
            if name not in self.pods and pod.role is not NodeType.MASTER:
                self.gone[name] = replace(pod, gone_by=pod.gone_by or self.now)
        self.seen_job, self.seen_pods, self.seen_plans = self.job, dict(self.pods), dict(self.plans)

    @rule(survives=st.integers(0, 12))
    def look(self, survives: int) -> None:
        """Decide, and do so many things of it; an operator that did not do them all is restarted."""
        seen = Observed(
            JobKey("ns", "ctr"),
            self.seen_job,
            tuple(self.seen_pods.values()),
            gone=tuple(self.gone.values()),
            plans=tuple(self.seen_plans.values()),
            stop_asked_at=self.stop_asked_at,
        )
        decision = reconcile(seen, self.now)
        assert reconcile(seen, self.now) == decision, "it decides from what it sees alone"
        wished = [action for action in decision.actions if isinstance(action, do.CreateMasterPod)]
        assert len(wished) <= (MASTER not in self.seen_pods)
        assert not (wished and self.ended), "a job that has ended gets no master"
        try:
            for number, action in enumerate(decision.actions):
                if number >= survives:
                    self.restart_operator()
                    return
                self.apply(action)
        except Conflict:
            self.seen_job = self.job

    @rule()
    def look_until_nothing_is_left_to_do(self) -> None:
        for _ in range(12):
            self.watch_catches_up()
            before = (self.job, dict(self.pods), dict(self.plans))
            self.look(99)
            if before == (self.job, self.pods, self.plans):
                return
        raise AssertionError("it never comes to rest")

    def apply(self, action: do.Action) -> None:
        match action:
            case do.PatchStatus():
                if self.seen_job["metadata"]["resourceVersion"] != self.job["metadata"]["resourceVersion"]:
                    raise Conflict
                self.change_job(status=json.loads(json.dumps(action.status)))
                self.seen_job = self.job
            case do.CreateMasterPod():
                self.masters_made += self.create(PodFacts(MASTER, self.new_uid(), NodeType.MASTER, created_at=self.now))
            case do.DeletePods():
                for name, uid in action.pods:
                    if name in self.pods and self.pods[name].uid == uid:
                        self.delete(name)
            case do.CarryOutPlan():
                for node in action.create:
                    made = PodFacts(node.name, self.new_uid(), node.type, node.id, node.slot, created_at=self.now)
                    if self.create(made):
                        self.launched.append(node.name)
                for name in action.document.remove_nodes:
                    if name in self.pods:
                        self.delete(name)
                self.carried_out.append(action.plan.name)
                self.finish_plan(action.plan.name, "Succeeded")
            case do.AskMaster():
                if not action.asked_before:
                    self.asked.append(action.plan.name)
                self.finish_plan(action.plan.name, "Succeeded")
            case do.PatchPlan():
                self.finish_plan(action.plan.name, action.status["phase"])
            case do.AskMasterToStop():
                self.stop_asked_at = self.now
            case _:
                pass

    # The cluster.

    def new_uid(self) -> str:
        self.made += 1
        return f"uid-{self.made}"

    def create(self, pod: PodFacts) -> bool:
        """The API server has one object of a name; the answer is seen at once, whichever it is."""
        fresh = pod.name not in self.pods
        self.pods.setdefault(pod.name, pod)
        self.seen_pods[pod.name] = self.pods[pod.name]
        return fresh

    def delete(self, name: str) -> None:
        if self.pods[name].gone_by is None:
            self.pods[name] = replace(self.pods[name], gone_by=self.now + 30)
        self.seen_pods[name] = self.pods[name]

    def finish_plan(self, name: str, phase: str) -> None:
        if name in self.plans:
            status = {"phase": phase, "observedGeneration": 1}
            self.plans[name] = self.seen_plans[name] = {**self.plans[name], "status": status}

    def change_job(self, **keys: Any) -> None:
        metadata = dict(self.job["metadata"])
        metadata["resourceVersion"] = str(int(metadata["resourceVersion"]) + 1)
        metadata["generation"] += "spec" in keys
        self.job = {**self.job, **keys, "metadata": metadata}

    @property
    def master(self) -> PodFacts | None:
        return self.pods.get(MASTER)

    @rule(seconds=st.sampled_from([1, 10, 100]))
    def time_passes(self, seconds: int) -> None:
        self.now += seconds

    @precondition(lambda self: self.master is not None and self.master.phase == "Pending")
    @rule()
    def master_runs(self) -> None:
        self.pods[MASTER] = replace(self.pods[MASTER], phase="Running", ready=True, has_started=True)

    @precondition(lambda self: self.master is not None and self.master.phase == "Running")
    @rule()
    def master_crashes_and_is_restarted_in_its_pod(self) -> None:
        self.master_crashes += 1
        pod = self.pods[MASTER]
        crash = NodeExit(ExitReason.ERROR, 1, "boom")
        self.pods[MASTER] = replace(pod, container_restarts=pod.container_restarts + 1, exit=crash)

    @precondition(lambda self: self.master is not None and self.master.phase == "Running")
    @rule(end=st.sampled_from(ENDS))
    def master_ends(self, end: str) -> None:
        said = NodeExit(ExitReason.DONE, 0, json.dumps({"end": end}))
        self.pods[MASTER] = replace(self.pods[MASTER], phase="Succeeded", ready=False, exit=said)

    @precondition(lambda self: self.master is not None and not self.master.ended)
    @rule()
    def master_is_evicted(self) -> None:
        evicted = NodeExit(ExitReason.PREEMPTED, None, "Evicted")
        self.pods[MASTER] = replace(self.pods[MASTER], phase="Failed", ready=False, exit=evicted)

    @precondition(lambda self: self.master is not None and not self.master.ended)
    @rule()
    def master_vanishes(self) -> None:
        del self.pods[MASTER]

    @rule(data=st.data())
    def what_is_being_deleted_goes(self, data: st.DataObject) -> None:
        going = sorted(name for name, pod in self.pods.items() if pod.deleting)
        if going:
            del self.pods[data.draw(st.sampled_from(going))]

    @rule(data=st.data(), phase=st.sampled_from(["Running", "Succeeded", "Failed"]))
    def nodes_live(self, data: st.DataObject, phase: str) -> None:
        names = sorted(name for name, pod in self.pods.items() if name != MASTER and not pod.ended)
        if names:
            name = data.draw(st.sampled_from(names))
            self.pods[name] = replace(self.pods[name], phase=phase)

    @precondition(lambda self: self.master is not None and self.master.ready and self.planned_nodes < 6)
    @rule(count=st.integers(1, 2), removes=st.booleans(), data=st.data())
    def master_writes_a_plan(self, count: int, removes: bool, data: st.DataObject) -> None:
        numbers = range(self.planned_nodes, self.planned_nodes + count)
        older = [f"ctr-worker-{number}" for number in range(self.planned_nodes)]
        removed = [data.draw(st.sampled_from(older))] if older and removes else []
        self.planned_nodes += count
        pods = [{"name": f"ctr-worker-{n}", "type": "worker", "id": n, "slot": n} for n in numbers]
        self.write_plan("auto", {"createPods": pods, "removePods": removed})

    @precondition(lambda self: len(self.plans) < 8)
    @rule()
    def a_user_writes_a_plan(self) -> None:
        self.write_plan("manual", {"replicaResourceSpecs": {"worker": {"replicas": 2}}})

    def write_plan(self, scale_type: str, spec: dict[str, Any]) -> None:
        name = f"plan-{len(self.plans)}"
        self.plans[name] = {
            "apiVersion": "elastic.iml.github.io/v1alpha1",
            "kind": "ScalePlan",
            "metadata": {
                "name": name,
                "uid": name,
                "generation": 1,
                "resourceVersion": str(len(self.plans)),
                # All in one second: their order is not to be had from their times.
                "creationTimestamp": "2030-01-01T00:00:00Z",
                "labels": {"scale-type": scale_type},
            },
            "spec": {"ownerJob": "ctr", **spec},
            "status": {},
        }

    @rule(suspend=st.sampled_from([False, False, False, True]))
    def a_user_suspends_or_resumes(self, suspend: bool) -> None:
        if self.job["spec"].get("suspend", False) != suspend:
            self.change_job(spec={**self.job["spec"], "suspend": suspend})

    @rule(good=st.sampled_from([True, True, True, False]))
    def a_user_spoils_or_mends_the_spec(self, good: bool) -> None:
        spec = {key: value for key, value in self.job["spec"].items() if key != "typo"}
        self.change_job(spec=spec if good else {**spec, "typo": 1})

    # What always holds.

    @invariant()
    def a_finished_job_stays_finished(self) -> None:
        if not hasattr(self, "job"):
            return
        status = self.job["status"]
        is_so = {found["type"] for found in status.get("conditions", ()) if found["status"] == "True"}
        if self.ended is not None:
            kind, at = self.ended["kind"], self.ended["at"]
            assert kind in is_so
            assert status["completionTime"] == at
        elif "completionTime" in status:
            kinds = is_so & {"Complete", "Failed"}
            assert len(kinds) == 1
            self.ended = {"kind": kinds.pop(), "at": status["completionTime"]}

    @invariant()
    def restarts_of_the_master_are_within_the_limit_and_never_forgotten(self) -> None:
        if hasattr(self, "job"):
            restarts = self.job["status"].get("masterRestarts", 0)
            assert self.most_restarts <= restarts <= self.limit
            self.most_restarts = restarts
            # Each loss of a pod and each crash in one counts once.
            assert restarts <= self.masters_made + self.master_crashes
            if "BackoffLimitExceeded" in self.job["status"].get("reason", ""):
                assert self.masters_made + self.master_crashes > self.limit

    @invariant()
    def nothing_is_done_twice(self) -> None:
        assert len(set(self.launched)) == len(self.launched)
        assert len(set(self.carried_out)) == len(self.carried_out)
        assert len(set(self.asked)) == len(self.asked)

    @invariant()
    def conditions_are_told_once_each(self) -> None:
        if hasattr(self, "job"):
            kinds = [found["type"] for found in self.job["status"].get("conditions", ())]
            assert len(set(kinds)) == len(kinds)
