"""The parts of the dashboard that need no process: what is shown, who may ask, what is told to a browser."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime
from importlib.resources import files
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastane.dashboard import shown
from elastane.dashboard.access import (
    MOST_NONCES,
    MOST_SESSIONS,
    Access,
    Session,
    host_is_ours,
    is_same_origin,
    job_dashboard_token,
)
from elastane.dashboard.broadcast import changed, whole
from elastane.dashboard.facts import JobFacts
from elastane.master.job_history import JobHistory
from elastane.rpc.protos import control_pb2 as pb


def test_the_vendored_files_are_those_that_were_published() -> None:
    folder = files("elastane.dashboard") / "static" / "vendor"
    sums = {line.split()[1]: line.split()[0] for line in (folder / "SHA256SUMS").read_text().splitlines()}
    assert sorted(sums) == ["uPlot.LICENSE", "uPlot.iife.min.js", "uPlot.min.css"]
    for name, expected in sums.items():
        assert hashlib.sha256((folder / name).read_bytes()).hexdigest() == expected, name


# What is shown.


def test_unseen_characters_are_shown_and_others_left() -> None:
    assert shown.visible("größer 5 μs, 漢字") == "größer 5 μs, 漢字"
    assert shown.visible("a\x1b[2Jb\x00\x7f") == "a\\x1b[2Jb\\x00\\x7f"
    assert shown.visible("x\u202egnp.exe\u200b\x9b") == "x\\u202egnp.exe\\u200b\\u009b"


@given(st.text())
def test_no_text_keeps_a_character_that_acts_on_the_screen(text: str) -> None:
    assert all(ord(character) >= 32 and character not in "\x7f\u202e\u2066\u2028" for character in shown.visible(text))


def test_a_log_line_is_what_was_left_of_it() -> None:
    assert shown.log_line("\x1b[1;31mred\x1b[0m\n") == "red"
    assert shown.log_line(" 10%\r 55%\r100%\r\n") == "100%"
    assert shown.log_line("a\tb\x1b]0;title\x07") == "a    b\\x1b]0;title\\x07"


@pytest.mark.parametrize(
    ("number", "text"),
    [(0, "0"), (3.14159, "3.14"), (186.4, "186"), (12_345, "12,345"), (123_456, "123k"), (1.2e9, "1.2G")],
)
def test_counts_are_short(number: float, text: str) -> None:
    assert shown.count(number) == text


def test_sizes_and_durations_have_units() -> None:
    assert [shown.size(n) for n in (0, 2048, 512 * 2**20, 1.5 * 2**30)] == ["0 B", "2 KiB", "512 MiB", "1.5 GiB"]
    assert [shown.duration(s) for s in (5, 65, 3700, 90_000)] == ["5 s", "1 min 5 s", "1 h 1 min", "1 d 1 h"]
    assert [shown.milliseconds(ms) for ms in (None, 12.4, 12_400)] == [shown.NOTHING, "12 ms", "12.4 s"]


# What is known of a job.


def event(kind: str, at: float, **fields: Any) -> dict[str, Any]:
    return {"kind": kind, "time": datetime.fromtimestamp(at, UTC).isoformat(), **fields}


def settled(version: int, at: float, *ids: int) -> dict[str, Any]:
    return event("world_settled", at, version=version, members=[f"job-worker-{number}" for number in ids], checksums={})


def told(*events: dict[str, Any]) -> JobFacts:
    facts = JobFacts("job")
    for one in events:
        facts.take_event(one)
    return facts


def marks(facts: JobFacts) -> list[tuple[str, str, float | None]]:
    return [(mark.kind, mark.text, mark.stall_ms) for mark in facts.marks]


def ended(node: int, at: float) -> dict[str, Any]:
    fields = {"status": "failed", "reason": "killed", "released": False}
    return event("node_ended", at, node=f"job-worker-{node}", **fields)


def cost(first: int, version: int, at: float, stall_ms: float) -> dict[str, Any]:
    return event("world_cost", at, first=first, version=version, size=2, stall_ms=stall_ms, step_ms=50.0)


def test_a_join_a_drain_a_crash_and_a_resize_are_marked_with_what_they_cost() -> None:
    facts = told(
        settled(1, 10, 0, 1),
        event("scaled", 11, role="worker", before=2, workers=3),
        settled(2, 12, 0, 1, 2),
        cost(2, 2, 13, 12.5),
        ended(1, 14),
        settled(3, 15, 0, 2),
        settled(4, 16, 0, 2, 3),
        cost(3, 4, 17, 30.0),
        event("node_leaving", 18, node="job-worker-3", at_once=False),
        settled(5, 19, 0, 2),
        cost(5, 5, 20, 8.0),
    )
    assert marks(facts) == [
        ("join", "worker-0 joined", None),
        ("join", "worker-1 joined", None),
        ("resize", "workers 2 → 3", 12.5),
        ("join", "worker-2 joined", 12.5),
        ("crash", "worker-1 ended: killed", 30.0),
        ("join", "worker-3 joined", 30.0),
        ("drain", "worker-3 is drained", 8.0),
    ]
    assert [value for _, value in facts.series["workers"].points] == [2, 3, 2, 3, 2]
    assert facts.view()["text"]["last_stall"] == "8 ms"


def test_an_event_is_taken_once_however_often_it_is_told() -> None:
    events = [settled(1, 10, 0), settled(2, 12, 0, 1)]
    assert len(told(*events, *events).marks) == 2


def test_workers_without_a_world_join_when_they_attend() -> None:
    attended = [event("node_attended", 5 + n, node=f"job-worker-{n}", resumed=False) for n in (0, 1)]
    facts = told(*attended, event("node_attended", 9, node="job-worker-0", resumed=True))
    assert marks(facts) == [("join", "worker-0 joined", None), ("join", "worker-1 joined", None)]


def test_a_worker_that_attends_and_then_is_in_a_world_joined_once() -> None:
    facts = told(event("node_attended", 5, node="job-worker-0", resumed=False), settled(1, 6, 0))
    assert marks(facts) == [("join", "worker-0 joined", None)]


def test_steps_per_second_are_those_of_the_last_seconds_and_start_anew_after_a_step_back() -> None:
    facts = JobFacts("job")
    for second, steps in enumerate([100, 120, 140, 160]):
        facts.take_status(pb.JobStatus(job="job", state="running", steps=steps), 1000.0 + second)
    assert facts.steps_per_s == 20
    facts.take_status(pb.JobStatus(job="job", state="running", steps=50), 1004.0)
    assert facts.steps_per_s is None


def test_what_was_before_fills_the_charts_that_have_nothing_yet() -> None:
    history = JobHistory()
    for second, steps in enumerate([0, 10, 30]):
        history.sample(1000.0 + second, workers=2, samples_per_s=50.0, steps=steps, loss=0.5 if steps else None)
    facts = told(settled(1, 990, 0, 1))
    facts.take_history(history.view())
    assert list(facts.series["samples"].points) == [(1000, 50), (1001, 50), (1002, 50)]
    assert list(facts.series["steps"].points) == [(1002, 20)]
    assert list(facts.series["loss"].points) == [(1001, 0.5), (1002, 0.5)]
    assert list(facts.series["workers"].points) == [(990, 2)], "the events know it better"


def test_plans_show_predicted_against_realised() -> None:
    facts = told(event("sizing_decided", 5, line="workers 1->2: more", stage="running", workers=2, ps=0))
    (row,) = facts.view()["tables"]["plans"].values()
    assert (row["reason"], row["verdict"]) == ("workers 1->2: more", "being measured")
    change = pb.ChangeView(workers_before=1, workers=2, predicted=200, realised=150, reason="workers 1->2: more")
    facts.take_sizing(pb.SizingView(change=[change]))
    (row,) = facts.view()["tables"]["plans"].values()
    assert (row["size"], row["predicted"], row["realised"]) == ("1 → 2 workers", "200", "150")
    assert row["verdict"] == "-25% against the plan"


def test_many_metrics_and_nodes_are_bounded() -> None:
    facts = told(event("evaluation_finished", 5, step=1, seconds=1.0, metrics={f"m{n}": n / 7 for n in range(50)}))
    assert len(facts.series) <= 12
    nodes = [pb.NodeView(name=f"job-worker-{n}", type="worker", id=n, status="failed") for n in range(5000)]
    facts.take_status(pb.JobStatus(job="job", state="running", node=nodes), 10.0)
    rows = facts.view()["tables"]["nodes"]
    assert len(rows) == 100
    assert next(iter(rows)) == "job-worker-4999"


# What is told to a browser.

ROWS = st.dictionaries(st.sampled_from("abcdef"), st.fixed_dictionaries({"x": st.integers(0, 2)}))
VIEWS = st.builds(
    lambda text, one, other: {"text": text, "tables": {"one": one, "other": other}},
    st.dictionaries(st.sampled_from("pqr"), st.sampled_from(["1", "2"]), min_size=3),
    ROWS,
    ROWS,
)


def applied(seen: dict[str, Any], told: dict[str, Any]) -> dict[str, Any]:
    """As the page does it."""
    tables = dict(seen["tables"])
    for name, change in told.get("tables", {}).items():
        rows = {**tables.get(name, {}), **change.get("set", {})}
        order = change.get("order", list(rows))
        tables[name] = {key: rows[key] for key in order}
    return {"text": {**seen["text"], **told.get("text", {})}, "tables": tables}


@given(st.lists(VIEWS, min_size=2, max_size=5))
def test_who_applies_all_changes_sees_what_the_last_view_says(views: list[dict[str, Any]]) -> None:
    seen = applied({"text": {}, "tables": {}}, whole(views[0]))
    for before, after in pairwise(views):
        seen = applied(seen, changed(before, after))
        assert seen == after
        assert list(seen["tables"]["one"]) == list(after["tables"]["one"])
    assert changed(views[-1], views[-1]) == {}


# Who may ask.


def test_a_nonce_is_good_once_and_only_in_its_session() -> None:
    one, other = Session(), Session()
    nonce = one.nonce()
    assert not other.spend(nonce)
    assert one.spend(nonce)
    assert not one.spend(nonce)
    assert not one.spend("")
    first = one.nonce()
    for _ in range(MOST_NONCES):
        one.nonce()
    assert not one.spend(first), "only so many are kept"


def test_a_session_needs_the_token_and_only_so_many_are_kept() -> None:
    access = Access("secret", 80)
    assert access.enter("") is None
    assert access.enter("wrong ü") is None
    first = access.enter("secret")
    assert access.session(f"other=1; {access.cookie}={first}") is not None
    for _ in range(MOST_SESSIONS):
        access.enter("secret")
    assert access.session(f"{access.cookie}={first}") is None
    assert access.session("garbage \x00;=;") is None


def test_the_dashboards_token_does_not_give_the_jobs_away() -> None:
    assert job_dashboard_token("a") != job_dashboard_token("b")
    assert "a" * 20 not in job_dashboard_token("a" * 20)
    assert len(job_dashboard_token("a")) == 43


@pytest.mark.parametrize("host", ["127.0.0.1:80", "localhost:8080", "[::1]:80", "192.168.1.7", "LOCALHOST"])
def test_addresses_and_own_names_are_ours(host: str) -> None:
    assert host_is_ours(host)


@pytest.mark.parametrize(
    "host", ["", "evil.example", "127.0.0.1.evil.example", "localhost.evil.example:80", "127.1", "[", "[::"]
)
def test_other_names_may_lead_anywhere(host: str) -> None:
    assert not host_is_ours(host)


def test_an_origin_is_scheme_host_and_port() -> None:
    assert is_same_origin("http://127.0.0.1:80", "127.0.0.1:80")
    assert not is_same_origin("http://127.0.0.1:81", "127.0.0.1:80")
    assert not is_same_origin("null", "127.0.0.1:80")
    assert not is_same_origin("", "")
