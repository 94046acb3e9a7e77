"""One training job whose workers are killed, preempted, paused, drained and scaled at random, and its master killed.

At least one member of the world is always left alone: what everybody has lost is rightly trained again. At the end:
the job succeeded, every sample of every epoch was in exactly one step, by the events and by the model itself, all
replicas were equal in every world, and no process is left. Seeds that are odd train with a fixed global batch.

    python -m tests.soak.training --events 200 --seed 7
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import psutil

from elastane.client.local_place import control_of
from elastane.model.errors import ElastaneError, MasterUnreachable
from elastane.platform.local.registry import STATE_ENV, JobFolder
from elastane.rpc.control_client import ControlClient
from elastane.rpc.protos import control_pb2 as pb
from tests.integration.harness import ROOT, Finished, every_sample_once, left_behind, read_events

SCRIPT = ROOT / "tests" / "soak" / "counted_training.py"
MOST_WORKERS = 4
EPOCH_SIZE = 3_200
SAMPLES_PER_EVENT = 400
BATCH = 4
GLOBAL_BATCH = 16
STEP_MS = 40.0
LEAST_STEPS = 2_000
STUCK_S = 60.0
"""A job that makes no step for so long hangs."""

RECOVERY_S = 1.0
"""How long after a pause a worker may still be given up for it."""


class Stuck(AssertionError):
    """The job makes no more steps."""


class Tormentor:
    """Does things to the workers of a job, but never to all of them."""

    def __init__(self, client: ControlClient, launcher: int, rng: random.Random) -> None:
        self._launcher = launcher
        self._client = client
        self._rng = rng
        self._touched: set[str] = set()
        """Nodes that were told to end, or are paused."""
        self._pauses: set[asyncio.Task[None]] = set()
        self.done: Counter[str] = Counter()

    async def act(self) -> pb.JobStatus:
        """Do one thing; the answer is how the job was before it."""
        status = await self._status()
        nodes = [node for node in status.node if not node.exit_reason and node.status != "deleted"]
        # A new worker takes a while to come: with fewer joins and less patience, most worlds would be of one.
        others = ["scale-in", "drain", "kill", "kill", "kill", "preempt", "preempt", "pause", "pause", "pause"]
        wanted = sum(not node.leaving for node in nodes)
        if self._rng.random() < 0.1:
            self._kill_master()
            return status
        if wanted < MOST_WORKERS and self._rng.random() < 0.5:
            action = "join"
        elif status.world_size < wanted and self._rng.random() < 0.7:
            return status
        else:
            action = self._rng.choice(others)
        match action:
            case "join" | "scale-in":
                await self._scale(action, nodes)
            case "drain":
                await self._drain(nodes)
            case _:
                self._signal(action, nodes)
        return status

    async def _status(self) -> pb.JobStatus:
        """The job as it is, once there is a master to ask."""
        while True:
            try:
                return await self._client.status()
            except MasterUnreachable:
                if not psutil.pid_exists(self._launcher):
                    raise
                await asyncio.sleep(0.05)

    def _kill_master(self) -> None:
        for child in psutil.Process(self._launcher).children():
            if "elastane.master" in child.cmdline():
                child.kill()
                self.done["kill master"] += 1

    async def scale_to_the_most(self) -> None:
        await self._status()
        await self._client.scale(MOST_WORKERS)

    async def end(self) -> None:
        """Let the paused go on."""
        await asyncio.gather(*self._pauses)

    def _left_alone(self, nodes: Sequence[pb.NodeView]) -> bool:
        """Whether some member of the world is none of these, and was not touched."""
        return any(
            node.HasField("rank") and node.attending and not node.leaving and node.name not in self._touched
            for node in nodes
        )

    async def _scale(self, action: str, nodes: Sequence[pb.NodeView]) -> None:
        wanted = [node for node in nodes if not node.leaving]
        if action == "join":
            if len(wanted) == MOST_WORKERS:
                return
            workers = self._rng.randint(len(wanted) + 1, MOST_WORKERS)
        else:
            if len(wanted) < 2:
                return
            workers = self._rng.randint(1, len(wanted) - 1)
            # The master keeps the first slot before all, and what works before what does not.
            kept = sorted(wanted, key=lambda node: (node.slot != 0, node.status == "initial", node.slot))[:workers]
            if not self._left_alone(kept):
                return
        await self._client.scale(workers)
        self.done[action] += 1

    async def _drain(self, nodes: Sequence[pb.NodeView]) -> None:
        wanted = [node for node in nodes if not node.leaving]
        if len(wanted) < 2:
            return
        chosen = self._rng.choice(wanted)
        if not self._left_alone([node for node in wanted if node is not chosen]):
            return
        await self._client.drain(chosen.name)
        self.done["drain"] += 1

    def _signal(self, action: str, nodes: Sequence[pb.NodeView]) -> None:
        """Send a signal to a node, be it a member, on its way in or on its way out."""
        living = [node for node in nodes if node.pid and node.name not in self._touched]
        if not living:
            return
        members = [node for node in living if node.HasField("rank")]
        chosen = self._rng.choice(members if members and self._rng.random() < 0.7 else living)
        if not self._left_alone([node for node in nodes if node is not chosen]):
            return
        number = {"kill": signal.SIGKILL, "preempt": signal.SIGTERM, "pause": signal.SIGSTOP}[action]
        try:
            os.kill(chosen.pid, number)
        except ProcessLookupError:
            return  # It has ended since.
        self._touched.add(chosen.name)
        self.done[action] += 1
        if action == "pause":
            pause = asyncio.create_task(self._resume(chosen, self._rng.uniform(0.1, 3.0)))
            self._pauses.add(pause)
            pause.add_done_callback(self._pauses.discard)

    async def _resume(self, node: pb.NodeView, after_s: float) -> None:
        await asyncio.sleep(after_s)
        try:
            os.kill(node.pid, signal.SIGCONT)
        except ProcessLookupError:
            return  # It was given up, and killed.
        await asyncio.sleep(RECOVERY_S)
        self._touched.discard(node.name)


class Soak:
    """One job, its torment and its end."""

    def __init__(self, folder: Path, seed: int, events: int, *, keep: bool) -> None:
        self._folder = folder
        self._keep = keep
        self._rng = random.Random(seed)
        self._events = events
        self._fixed_batch = bool(seed % 2)
        self._epochs = -(-events * SAMPLES_PER_EVENT // EPOCH_SIZE)
        self._calm = folder / "calm"
        self._event_file = folder / "events.jsonl"
        self._output = folder / "output"
        self._started = time.monotonic()
        self._last_step = (0, self._started)

    async def run(self) -> None:
        """Run the job to its end, and check what it left. Raises AssertionError."""
        job = self._start()
        try:
            async with await self._client(job) as client:
                tormentor = Tormentor(client, job.pid, self._rng)
                while tormentor.done.total() < self._events:
                    before = tormentor.done.total()
                    status = await tormentor.act()
                    self._check_progress(status)
                    if tormentor.done.total() == before:
                        await asyncio.sleep(0.2)
                        continue
                    if tormentor.done.total() % 20 == 0:
                        self._say(f"{tormentor.done.total()} events, {status.steps} steps, world {status.world_size}")
                    # Sometimes the next trouble comes while the last one is dealt with.
                    await asyncio.sleep(self._rng.choice([0.0, self._rng.uniform(0, 0.5), self._rng.uniform(0.5, 5.0)]))
                await tormentor.end()
                self._say(f"calm after {dict(tormentor.done)}")
                await tormentor.scale_to_the_most()
                self._calm.touch()
                while job.poll() is None:
                    await asyncio.sleep(0.2)
                    try:
                        self._check_progress(await client.status())
                    except ElastaneError:
                        break  # It has just ended.
            job.wait(STUCK_S)
        except MasterUnreachable:
            job.wait(STUCK_S)
            raise AssertionError(f"the job ended too soon: {self._output.read_text()[-3000:]}") from None
        except BaseException as error:
            if not (self._keep and isinstance(error, Stuck)):
                job.kill()  # Its workers go with it.
                job.wait()
            raise
        self._check(job.returncode)

    def _start(self) -> subprocess.Popen[bytes]:
        words = ["run", "--name", "job", "--workers", f"1:{MOST_WORKERS}", "--restarts", "10000"]
        limits = ["--heartbeat-timeout", "2", "--grace", "5", "--check-replicas", "--events", str(self._event_file)]
        data = ["--samples", str(EPOCH_SIZE), "--epochs", str(self._epochs), "--batch-size", str(BATCH)]
        pace = ["--step-ms", str(STEP_MS), "--calm", str(self._calm)]
        fixed = ["--global-batch-size", str(GLOBAL_BATCH)] if self._fixed_batch else []
        with self._output.open("w") as output:
            return subprocess.Popen(
                [sys.executable, "-m", "elastane", *words, *limits, str(SCRIPT), *data, *pace, *fixed],
                env={**os.environ, STATE_ENV: str(self._folder), "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"},
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    async def _client(self, job: subprocess.Popen[bytes]) -> ControlClient:
        os.environ[STATE_ENV] = str(self._folder)
        while job.poll() is None:
            try:
                client = control_of(JobFolder.find("job"))
            except (ElastaneError, FileNotFoundError):
                await asyncio.sleep(0.1)
                continue
            if (await client.status()).steps:
                return client
            await asyncio.sleep(0.1)
        raise AssertionError(self._output.read_text()[-3000:])

    def _check_progress(self, status: pb.JobStatus) -> None:
        steps, since = self._last_step
        if status.steps != steps:
            self._last_step = (status.steps, time.monotonic())
        elif time.monotonic() > since + STUCK_S:
            raise Stuck(f"no step in {STUCK_S:g} s after {steps}\n{status}")

    def _say(self, text: str) -> None:
        print(f"{time.monotonic() - self._started:6.1f} s: {text}", flush=True)

    def _check(self, code: int) -> None:
        output = self._output.read_text()
        done = Finished(code, output, "", read_events(self._event_file))
        assert code == 0, output[-3000:]
        errors = [event["error"] for event in done.of("node_ended", reason="error")]
        assert not errors, "\n".join(errors)
        worlds = done.of("world_settled")
        for event in worlds:
            assert len(set(event["checksums"].values())) <= 1, event
            # A master that died may have heard some of them.
            assert done.of("master_restarted") or len(event["checksums"]) == len(event["members"]), event
        assert not done.of("position_reset"), done.of("position_reset")
        committed, wanted = done.committed(), every_sample_once(EPOCH_SIZE, self._epochs)
        assert committed == wanted, f"too often {list((committed - wanted).items())[:20]}, missing {wanted - committed}"
        counts = [(int(wrong), int(steps)) for wrong, steps in re.findall(r"wrong counts: (\d+),.*steps (\d+)", output)]
        assert counts, output[-3000:]
        assert not any(wrong for wrong, _ in counts), counts
        steps = min(steps for _, steps in counts)
        assert steps >= LEAST_STEPS, f"only {steps} steps"
        left = left_behind(self._folder)
        assert not left, f"left behind: {left}"
        sizes = Counter(len(event["members"]) for event in worlds)
        recovered = sum(event["recover"] for event in done.of("world_next"))
        self._say(
            f"{steps} steps of {len(wanted)} samples, each in one, in {len(worlds)} worlds of sizes {dict(sizes)}, "
            f"{recovered} after a loss, {len(done.of('node_lost'))} workers given up, "
            f"{len(done.of('master_restarted'))} masters followed by another"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", type=int, default=200)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument("--keep", action="store_true", help="keep the job's folder, and a job that hangs as it is")
    options = parser.parse_args()
    print(f"seed {options.seed}")
    folder = Path(tempfile.mkdtemp(prefix="elastane-soak-"))
    try:
        asyncio.run(Soak(folder, options.seed, options.events, keep=options.keep).run())
    finally:
        if options.keep:
            print(f"kept {folder}")
        else:
            shutil.rmtree(folder)


if __name__ == "__main__":
    main()
