"""Which components of a master go together: the rule for every set, and the job document's word on it."""

from __future__ import annotations

import itertools

import pytest

from elastane.model.components import ComponentSet
from elastane.model.errors import InvalidJobSpec
from elastane.model.job_spec import load_job
from tests.builders import job_document

SETS = list(itertools.product([False, True], repeat=4))

WAYS: dict[tuple[bool, ...], int] = {
    # nodes, tasks, rendezvous, training
    (False, True, False, False): 1,
    (True, False, False, False): 2,
    (True, False, True, False): 3,
    (True, True, False, False): 4,
    (True, True, True, False): 5,
    (True, True, False, True): 6,
    (True, True, True, True): 7,
}

REASONS = {
    # What is said of all others, from the first that fits.
    (False, False, None, None): "neither nodes nor tasks are left",
    (None, False, None, True): "evaluation is made of tasks",
    (False, None, True, None): "ring-allreduce needs the pod manager",
    (False, None, None, True): "the training service needs the pod manager",
}


def component_set(wanted: tuple[bool, ...], *, tolerant: bool) -> ComponentSet:
    nodes, tasks, rendezvous, training = wanted
    return ComponentSet(
        pod_manager=nodes,
        task_manager=tasks,
        rendezvous=rendezvous,
        training_service=training,
        task_fault_tolerance=tolerant,
    )


@pytest.mark.parametrize("wanted", SETS, ids=str)
def test_seven_sets_are_accepted_and_all_others_refused_with_the_reason(wanted: tuple[bool, ...]) -> None:
    wrong = component_set(wanted, tolerant=False).contradiction()
    if wanted in WAYS:
        assert wrong is None
    else:
        assert wrong is not None
        fits = (
            reason
            for pattern, reason in REASONS.items()
            if all(part in (None, given) for part, given in zip(pattern, wanted, strict=True))
        )
        assert wrong.reason.startswith(next(fits))


@pytest.mark.parametrize("wanted", WAYS, ids=str)
def test_only_tasks_alone_cannot_be_tolerant_of_lost_workers(wanted: tuple[bool, bool, bool, bool]) -> None:
    wrong = component_set(wanted, tolerant=True).contradiction()
    assert (wrong is not None) == (WAYS[wanted] == 1)


@pytest.mark.parametrize(
    ("spec", "worker", "line"),
    [
        (
            {"podManager": False, "taskFaultTolerance": False, "distributionStrategy": "none"},
            {},
            "spec.worker: without the pod manager nobody launches workers; say guests: true",
        ),
        (
            {"podManager": False, "distributionStrategy": "none"},
            {"guests": True, "template": None},
            "spec.taskFaultTolerance: it needs the pod manager, which knows which workers are lost; "
            "switch it off without it",
        ),
        ({}, {"template": None}, "spec.worker.template: missing"),
        ({}, {"guests": True}, "spec.worker.template: guests are started by others, so there is nothing to run"),
        ({"podManager": 1}, {}, 'spec.podManager: "1" cannot be used; input should be a valid boolean'),
    ],
)
def test_a_document_that_contradicts_itself_is_refused(
    spec: dict[str, object], worker: dict[str, object], line: str
) -> None:
    document = job_document(**worker)
    document["spec"].update(spec)
    with pytest.raises(InvalidJobSpec) as caught:
        load_job(document)
    assert caught.value.problems == (line,)


def test_a_job_has_all_components_unless_it_says_otherwise() -> None:
    components = load_job(job_document()).spec.components
    assert components.names == (
        *("pod-manager", "task-manager", "rendezvous", "training-service", "task-fault-tolerance"),
    )
