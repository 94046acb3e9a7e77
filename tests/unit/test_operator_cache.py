"""What the operator believes, whichever of a watch and an answer comes first."""

from __future__ import annotations

from typing import Any

import pytest

from elastane.operator.api import JOB_RESOURCES, JOBS, PODS, SCALE_PLANS, Kind
from elastane.operator.cache import WatchCache
from elastane.operator.observed import JobKey, Observed
from elastane.platform.kubernetes.pods import LABEL_JOB, LABEL_ROLE

KEY = JobKey("team", "ctr")
OWNER = {"apiVersion": "v1alpha1", "kind": "ElasticJob", "name": "ctr", "uid": "job"}


def body(name: str, uid: str, version: int, spec: dict[str, Any] | None = None, **metadata: Any) -> dict[str, Any]:
    known = {"namespace": "team", "name": name, "uid": uid, "resourceVersion": str(version)}
    known["creationTimestamp"] = "2026-01-01T00:00:00Z"
    return {"metadata": {**known, **metadata}, "spec": spec or {}}


def job(version: int = 1) -> dict[str, Any]:
    return body("ctr", "job", version)


def pod(uid: str, version: int, role: str = "master") -> dict[str, Any]:
    labels = {LABEL_JOB: "ctr", LABEL_ROLE: role}
    return body(f"ctr-{role}", uid, version, {"containers": [{"name": "main"}]}, labels=labels, ownerReferences=[OWNER])


def plan(version: int) -> dict[str, Any]:
    return body("ctr-x", "plan", version, {"ownerJob": "ctr"})


def resource(version: int) -> dict[str, Any]:
    return body("size", "resource", version, {"selector": {"name": "ctr"}})


def seen(cache: WatchCache) -> Observed:
    found = cache.observe(KEY)
    assert found is not None
    return found


@pytest.fixture
def cache() -> WatchCache:
    made = WatchCache(lambda: 0.0)
    assert made.take(JOBS, job()) == KEY
    return made


@pytest.mark.parametrize("role", ["master", "worker"])
def test_an_answer_that_comes_after_the_word_that_a_pod_is_gone_does_not_bring_it_back(
    cache: WatchCache, role: str
) -> None:
    cache.take(PODS, pod("one", 2, role))
    assert [found.uid for found in seen(cache).pods] == ["one"]
    cache.take(PODS, pod("one", 4, role), deleted=True)
    assert cache.take(PODS, pod("one", 3, role)) is None
    assert not seen(cache).pods
    cache.take(PODS, pod("two", 5, role))
    assert [found.uid for found in seen(cache).pods] == ["two"]


@pytest.mark.parametrize(
    ("kind", "make", "field"), [(SCALE_PLANS, plan, "plans"), (JOB_RESOURCES, resource, "resources")]
)
def test_nor_does_it_bring_back_a_plan(cache: WatchCache, kind: Kind, make: Any, field: str) -> None:
    cache.take(kind, make(2))
    assert len(getattr(seen(cache), field)) == 1
    cache.take(kind, make(4), deleted=True)
    cache.take(kind, make(3))
    assert not getattr(seen(cache), field)


def test_nor_a_job(cache: WatchCache) -> None:
    cache.take(JOBS, job(4), deleted=True)
    cache.take(JOBS, job(3))
    assert cache.observe(KEY) is None


def test_an_older_version_changes_nothing(cache: WatchCache) -> None:
    cache.take(PODS, pod("one", 5))
    cache.take(PODS, {**pod("one", 3), "status": {"phase": "Running"}})
    assert [found.phase for found in seen(cache).pods] == ["Pending"]


def test_what_has_gone_while_the_watch_was_away_is_forgotten(cache: WatchCache) -> None:
    cache.take(PODS, pod("one", 2))
    cache.take(PODS, pod("two", 9, "worker"))
    assert cache.drop_missing(PODS, "team", set(), 5) == {KEY}
    assert [found.uid for found in seen(cache).pods] == ["two"]  # It was made after the list.
    assert cache.drop_missing(PODS, "other", set(), 99) == set()
