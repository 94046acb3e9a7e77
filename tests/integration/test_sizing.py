"""Jobs that size themselves, as real processes: they grow, outlive their master, and survive want of memory."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from elastane.model.ids import NodeName
from elastane.ps import keys
from elastane.ps.store import warm_up
from elastane.rpc.protos import node_pb2 as pb
from tests.faults import fail_at, may_limit_memory
from tests.integration.harness import ROOT, Finished, Jobs, every_sample_once
from tests.integration.memory_master import TOKEN, MemoryMaster

GROWING = str(Path(__file__).with_name("growing_script.py"))
AUTOSCALE = ("--autoscale", "--autoscale-window=2")
SAMPLES = 30_000


def sizes(done: Finished) -> list[int]:
    """The numbers of workers that the job was given, one after the other."""
    return [event["workers"] for event in done.of("scaled", role="worker")]


def explained(jobs: Jobs, name: str = "job") -> dict[str, Any]:
    done = jobs.command("explain", name, "--json")
    assert done.returncode == 0, done.stderr
    view: dict[str, Any] = json.loads(done.stdout)
    return view


@pytest.mark.slow
def test_a_job_without_sizes_grows_to_a_good_one_and_counts_every_sample_once(jobs: Jobs) -> None:
    done = jobs.run(
        f"--samples={SAMPLES}",
        "--step-ms=20",
        fail_at(node="worker-1", step=350, how="command=plan --workers 3 JOB"),
        options=(*AUTOSCALE, "--workers=1:4"),
    )
    assert done.code == 0, done.stderr
    assert sizes(done)[:3] == [1, 2, 4]
    assert re.search(r"1,\d{3} samples/s \(.* to .*\), [+-]\d+% against [\d,]+ now; 3 workers: ", done.stdout)
    assert done.committed() == every_sample_once(SAMPLES)
    lines = [event["line"] for event in done.of("sizing_decided")]
    assert re.match(r"workers 1->2: \d+->\d+ samples/s \(\+\d+% \+-\d+%, 1 observation\)", lines[0])
    view = explained(jobs)
    assert [line["text"] for line in view["line"]] == lines
    assert {window["workers"] for window in view["window"]} == {1, 2, 4}
    assert "samples/s by workers" in jobs.command("explain", "job").stdout


@pytest.mark.slow
def test_a_job_goes_on_to_size_itself_after_its_master_died(jobs: Jobs) -> None:
    done = jobs.run(
        f"--samples={SAMPLES}",
        "--step-ms=20",
        fail_at(node="worker-1", step=150, how="kill-master"),
        options=(*AUTOSCALE, "--workers=1:4"),
    )
    assert done.code == 0, done.stderr
    assert done.of("master_restarted")
    assert sizes(done)[:3] == [1, 2, 4], "what was decided before is not decided again"
    assert done.committed() == every_sample_once(SAMPLES)
    view = explained(jobs)
    assert {window["workers"] for window in view["window"]} == {1, 2, 4}, "what was seen before is known after"


@pytest.mark.slow
def test_a_job_whose_brain_is_away_goes_on_and_says_so_once(jobs: Jobs) -> None:
    token = jobs.folder / "token"
    token.write_text("nobody asks for it")
    brain = ("--brain=127.0.0.1:9", f"--brain-token-file={token}")
    done = jobs.run("--samples=2500", "--step-ms=20", options=(*AUTOSCALE, *brain))
    assert done.code == 0, done.stderr
    assert done.committed() == every_sample_once(2500)
    (lost,) = done.of("brain_lost")
    assert "127.0.0.1:9" in lost["reason"]
    assert done.stdout.count("the Brain is away") == 1


@contextmanager
def brain(folder: Path, env: dict[str, str]) -> Iterator[tuple[str, ...]]:
    """A Brain with a database of its own; what it gives are the options that lead a job to it."""
    token = folder / "brain-token"
    words = ("brain", "--database", str(folder / "brain.db"), "--token-file", str(token))
    with subprocess.Popen(
        [sys.executable, "-m", "elastane", *words], env=env, cwd=ROOT, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        (address,) = re.findall(r"ELASTANE_BRAIN=(\S+)", process.stdout.readline())
        yield (f"--brain={address}", f"--brain-token-file={token}")
        process.terminate()


@pytest.mark.slow
def test_the_second_run_of_a_job_with_a_brain_begins_where_the_first_ended(jobs: Jobs) -> None:
    with brain(jobs.folder, jobs.env) as options:
        first, second = (
            jobs.run(f"--samples={SAMPLES}", "--step-ms=20", name=name, options=(*AUTOSCALE, "--workers=1:4", *options))
            for name in ("first", "second")
        )
    for done in (first, second):
        assert done.code == 0, done.stderr
        assert done.committed() == every_sample_once(SAMPLES)
        assert not done.of("brain_lost")
    assert sizes(first) == [1, 2, 4]
    assert sizes(second)[0] == 4
    (line, *_) = [event["line"] for event in second.of("sizing_decided", stage="create")]
    assert line.startswith("4 workers: where a job like this one ended")


async def test_figures_that_cannot_be_true_are_refused_by_name_and_change_nothing(master: MemoryMaster) -> None:
    good = {"span_s": 1.0, "steps": 10, "samples": 100, "memory_bytes": 1 << 20}
    garbage: list[tuple[str, dict[str, float]]] = [
        ("input_wait_s: nan", {"input_wait_s": float("nan")}),
        ("span_s: -1.0", {"span_s": -1.0}),
        ("span_s: inf", {"span_s": float("inf")}),
        ("span_s: 100 reaches", {"span_s": 100.0}),
        ("steps: 0", {"steps": 0}),
        ("samples: 1000000000000000", {"samples": 10**15}),
        ("pull_s: 5 is above span_s", {"pull_s": 5.0}),
        ("cpu_s: 1e+06", {"cpu_s": 1e6}),
        ("memory_bytes:", {"memory_bytes": 2**60}),
    ]
    stats = master.master.attendance.stats
    assert stats is not None
    async with grpc.aio.insecure_channel(master.address) as channel:
        stream = channel.stream_stream("/elastane.v1.Nodes/Attend")(metadata=(("authorization", f"Bearer {TOKEN}"),))
        hello = pb.Hello(protocol=1, node="ctr-worker-0")
        await stream.write(pb.NodeMessage(hello=hello).SerializeToString())
        await stream.read()
        for named, wrong in garbage:
            figures = pb.StepFigures(**{**good, **wrong})  # type: ignore[arg-type]  # they are of the right types
            await stream.write(pb.NodeMessage(step_figures=figures).SerializeToString())
            answer = pb.MasterMessage.FromString(await stream.read())
            assert named in answer.refused.reason
        assert stats.use == {}
        assert stats.peaks == {}
        assert master.state() == master.settled
        (event,) = master.events("figures_refused")
        assert "input_wait_s: nan" in event["reason"], "once, for it may come every second"
        figures = pb.StepFigures(**good)  # type: ignore[arg-type]
        await stream.write(pb.NodeMessage(step_figures=figures).SerializeToString())
        goodbye = pb.NodeMessage(goodbye=pb.Goodbye()).SerializeToString()
        await stream.write(goodbye)
        assert pb.MasterMessage.FromString(await stream.read()).WhichOneof("body") == "farewell"
    assert stats.peaks == {"worker": 1 << 20}
    assert NodeName("ctr-worker-0") not in stats.use, "it has left"


@pytest.mark.skipif(not may_limit_memory(), reason="no groups of processes with a memory limit can be made here")
def test_a_worker_killed_by_the_kernel_for_memory_comes_back_with_twice_as_much(jobs: Jobs) -> None:
    done = jobs.run(
        fail_at(node="worker-0", step=5, how="kernel-oom=100"), options=("--workers=1", "--memory=1Gi", "--autoscale")
    )
    for group in re.findall(r"cgroup (\S+)", done.stdout):
        Path(group).rmdir()
    assert done.code == 0, done.stderr
    assert [event["reason"] for event in done.of("node_ended")] == ["oom", "done"]
    assert [event["memory"] for event in done.of("node_launched")] == ["1Gi", "2Gi"]
    (line,) = [event["line"] for event in done.of("sizing_decided")]
    assert line == "worker-0 was killed for memory at 1Gi: 2Gi in its place"
    assert done.committed() == every_sample_once(2000)


@pytest.mark.slow
def test_a_server_whose_table_grows_moves_before_it_is_killed(jobs: Jobs) -> None:
    warm_up()
    keys.warm_up()
    options = (*AUTOSCALE, "--ps=1", "--ps-memory=330Mi", "--ps-buckets=64", "--workers=1:1", "--heartbeat-timeout=30")
    done = jobs.run(options=options, script=GROWING)
    assert done.code == 0, done.stderr + done.stdout
    assert "lost 0" in done.stdout
    assert [event["reason"] for event in done.of("node_ended", released=False)] == ["done"], "nobody was killed"
    line = next(event["line"] for event in done.of("sizing_decided") if "moves to" in event["line"])
    assert re.match(r"ps-0 uses \d+ of 330 MiB and comes to \d+ MiB by the job's end", line)
    (twin,) = done.of("node_launched", node="ps-1")
    assert int(twin["memory"].removesuffix("Mi")) > 330
