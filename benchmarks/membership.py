"""What a change of the membership costs the workers that stay: elastane beside its peers, interleaved.

Two or three workers train the same model with Adam on the CPU, over Gloo, each with one thread. After some steps comes
one event, and the files in which the workers write each finished step say what it cost:

- join: two workers train, and a third is asked for.
- drain: one of three is asked to leave, by the system's own request or by SIGTERM.
- crash: one of three is killed by SIGKILL; under torchrun its agent as well, for else it would be started again.

The event comes at the same part of a step in all systems, which is another one in each repeat, as is their order.
torchrun's script saves its state every 10 steps, in memory. A run without an end after 90 s counts as "never".
"""

from __future__ import annotations

import json
import math
import random
import shutil
import signal
import statistics
import sys
import tempfile
import time
from argparse import ArgumentTypeError
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from types import FrameType

from rich.console import Console
from rich.table import Table

from benchmarks.membership_systems.peers import PeerUnavailable, installed, version_of
from benchmarks.membership_systems.processes import Family
from benchmarks.membership_systems.steps import DEFINITIONS, WARM_UP, Cost, Workers, cost_of, has_settled
from benchmarks.membership_systems.systems import Elastane, System, Torchft, Torchrun
from benchmarks.report import Row, parser

EVENTS = {"join": (2, 3), "drain": (3, 2), "crash": (3, 2)}
SETUP_TIMEOUT_S = 180.0
EVENT_TIMEOUT_S = 90.0
UNDISTURBED_S = 5.0
"""How long each system trains before the event: what it does in the background when it starts is done by then."""
POLL_S = 0.02

Make = Callable[[Family, Path, int], System]


@dataclass(frozen=True)
class Candidate:
    """A system with one set of settings."""

    name: str
    settings: str
    make: Make

    @property
    def system(self) -> str:
        return self.name.split()[0]


def candidates(commands: dict[str, Path], *, pods: bool) -> list[Candidate]:
    """What can be measured with the peers whose commands are there."""
    made = [Candidate("elastane", "its defaults", Elastane)]
    if pods:
        # Only where it is asked for: it needs the tests' cluster, and so root.
        from benchmarks.membership_systems.pods import ElastanePods

        made.append(Candidate("elastane cold", "--no-warm-start, as in a pod", partial(Elastane, warm_start=False)))
        made.append(Candidate("elastane pods", "its defaults", ElastanePods))
    if folder := commands.get("torchft"):
        for name, lighthouse_ms, manager_s in (
            ("default", (10_000, 100, None), None),  # as in its README
            ("tuned", (1_000, 20, 1_000), (10.0, 0.1)),
            ("least", (250, 10, 250), (5.0, 0.05)),
        ):
            made.append(_torchft(name, folder, lighthouse_ms, manager_s))
    if folder := commands.get("torchrun"):
        for name, conf in (
            ("default", ""),
            ("tuned", "last_call_timeout=1,keep_alive_interval=1,keep_alive_max_attempt=3"),
        ):
            made.append(_torchrun(name, folder, conf))
    return made


def _torchft(
    name: str, commands: Path, lighthouse_ms: tuple[int, int, int | None], manager_s: tuple[float, float] | None
) -> Candidate:
    join, tick, silence = lighthouse_ms
    lighthouse = ["--join_timeout_ms", str(join), "--quorum_tick_ms", str(tick)]
    lighthouse += ["--heartbeat_timeout_ms", str(silence)] if silence else []
    manager = ["--timeout-s", str(manager_s[0]), "--heartbeat-s", str(manager_s[1])] if manager_s else []

    def make(family: Family, folder: Path, parameters: int) -> System:
        return Torchft(family, commands, folder, parameters, lighthouse=lighthouse, manager=manager)

    return Candidate(f"torchft {name}", " ".join([*lighthouse, *manager]), make)


def _torchrun(name: str, commands: Path, conf: str) -> Candidate:
    def make(family: Family, folder: Path, parameters: int) -> System:
        return Torchrun(family, commands, folder, parameters, settings=conf)

    return Candidate(f"torchrun {name}", conf or "its defaults", make)


class SetUpFailed(Exception):
    """The workers did not come to train together."""


def measure(candidate: Candidate, event: str, parameters: int, steps_before: int, part: float) -> Cost | None:
    """The cost of one event, or None if the workers that stay did not go on in time. Raises SetUpFailed."""
    old, new = EVENTS[event]
    memory = Path("/dev/shm")  # noqa: S108  # as fast as a checkpoint can be written
    folder = Path(tempfile.mkdtemp(prefix="membership-", dir=memory if memory.is_dir() else None))
    family = Family(folder)
    system = candidate.make(family, folder, parameters)
    try:
        workers = Workers(folder)
        system.start(old)
        if not _wait(family, SETUP_TIMEOUT_S, lambda: _ready(workers, old, steps_before)):
            raise SetUpFailed(f"{candidate.name}: no {old} workers that train together\n{family.last_words()}")
        names = [name for name in workers.read() if event == "join" or name != system.victim]
        lines = workers.read()[names[0]].finished
        time.sleep(part * (lines[-1].time - lines[-steps_before].time) / (steps_before - 1))
        if event == "join":
            moment = system.join()
        elif event == "drain":
            moment = system.drain()
        else:
            moment = system.crash(workers.read()[system.victim].lines[-1].pid)

        def settled() -> bool:
            found = workers.read()
            return all(has_settled(found[name], moment, new) for name in names)

        if not _wait(family, EVENT_TIMEOUT_S, settled):
            return None
        return cost_of([workers.read()[name] for name in names], moment, old, new)
    finally:
        system.end()
        family.end()
        shutil.rmtree(folder, ignore_errors=True)


def _ready(workers: Workers, size: int, steps: int) -> bool:
    found = workers.read().values()
    return len(found) == size and all(
        worker.last_in(size) >= steps + WARM_UP and worker.finished[-1].time > worker.finished[0].time + UNDISTURBED_S
        for worker in found
    )


def _wait(family: Family, timeout_s: float, condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + timeout_s
    looked = 0.0
    while time.monotonic() < deadline:
        if condition():
            return True
        if time.monotonic() > looked + 1:
            looked = time.monotonic()
            family.note_children()
            if not family.lives():
                return False
        time.sleep(POLL_S)
    return False


def add(row: Row, cost: Cost | None) -> None:
    if cost is None:
        row.add(stall_s=math.inf, net_stall_s=math.inf, until_new_s=math.inf)
    else:
        row.add(**{name: float(value) for name, value in asdict(cost).items()})


def show(rows: Iterable[Row]) -> None:
    figures = {
        "stall_s": "stall s",
        "net_stall_s": "net stall s",
        "wobble_s": "wobble s",
        "until_new_s": "until new s",
        "before_s": "before s",
        "after_s": "after s",
        "redone": "redone",
        "skipped": "skipped",
    }
    table = Table(box=None, pad_edge=False)
    for heading in ("parameters", "event", "system", *figures.values(), "same pids", "runs", "never"):
        table.add_column(heading)
    for row in rows:
        same = row.figures.get("same_pids", [])
        table.add_row(
            str(row.settings["parameters"]),
            row.what,
            str(row.settings["system"]),
            *(_span(row.figures.get(name, [])) for name in figures),
            "" if not same else "yes" if all(same) else "no",
            str(len(row.figures["stall_s"])),
            str(row.figures["stall_s"].count(math.inf) or ""),
        )
    Console(width=220).print(table)


def show_ratios(rows: Iterable[Row]) -> None:
    """elastane against the best settings of each peer: how many times less."""
    cells: dict[tuple[str, str, str], dict[str, float]] = {}
    for row in rows:
        for figure in ("stall_s", "until_new_s"):
            cell = cells.setdefault((str(row.settings["parameters"]), row.what, figure), {})
            cell[str(row.settings["system"])] = row.median(figure)
    for (parameters, event, figure), medians in cells.items():
        own = medians.pop("elastane", None)
        for peer in sorted({name.split()[0] for name in medians}):
            best = min((name for name in medians if name.split()[0] == peer), key=medians.__getitem__)
            if own is not None:
                what = f"{parameters}, {event}, {figure}: elastane {own:.3g}, {best} {_number(medians[best])}"
                print(what + (f": {medians[best] / own:.2g} times" if own > 0 else ""))


def write(rows: Iterable[Row], file: Path) -> None:
    with file.open("a") as output:
        for row in rows:
            # JSON has no infinity: a run that never ended is null.
            figures = {
                name: [value if math.isfinite(value) else None for value in values]
                for name, values in row.figures.items()
            }
            output.write(json.dumps({"what": row.what, "settings": row.settings, "figures": figures}) + "\n")


def _span(values: list[float]) -> str:
    if not values:
        return ""
    if min(values) == max(values):
        return _number(values[0])
    return f"{_number(statistics.median(values))} ({_number(min(values))} .. {_number(max(values))})"


def _number(value: float) -> str:
    return "never" if math.isinf(value) else f"{value:.3g}"


def _sizes(text: str) -> dict[str, int]:
    try:
        return {word: int(float(word.removesuffix("M")) * 1e6) for word in text.split(",")}
    except ValueError:
        raise ArgumentTypeError(f'"{text}" is no list such as 1M,10M') from None


def _words(text: str) -> list[str]:
    return [word for word in text.split(",") if word]


def _install(peers: list[str]) -> dict[str, Path]:
    """The commands of the peers that can be had; says which versions are measured."""
    print(f"elastane {version_of('elastane')}, torch {version_of('torch')}", file=sys.stderr)
    commands = {}
    for peer in peers:
        try:
            commands[peer] = folder = installed(peer)
        except PeerUnavailable as error:
            print(f"{peer}: not measured: {error}", file=sys.stderr)
            continue
        distribution = {"torchft": "torchft-nightly", "torchrun": "torch"}[peer]
        print(f"{peer}: {distribution} {version_of(distribution, folder / 'python')}", file=sys.stderr)
    return commands


def _end(number: int, frame: FrameType | None) -> None:
    del frame
    sys.exit(128 + number)  # so that what was started is ended


def main() -> None:
    made = parser(f"{__doc__}\n{DEFINITIONS}")
    made.add_argument("--peers", type=_words, default=[], help="of torchft and torchrun; installed under build/peers")
    made.add_argument("--pods", action="store_true", help="elastane in pods, too; brings the cluster of the tests up")
    made.add_argument("--systems", type=_words, help='only these, such as "elastane,torchft tuned"')
    made.add_argument("--events", type=_words, default=list(EVENTS), help="of join, drain and crash")
    made.add_argument("--parameters", type=_sizes, default="1M,10M", help="sizes of the model (1M,10M)")
    made.add_argument("--repeats", type=int, help="runs of each (5)")
    options = made.parse_args()
    for given, known in ((options.peers, ("torchft", "torchrun")), (options.events, tuple(EVENTS))):
        if unknown := set(given) - set(known):
            made.error(f"{', '.join(unknown)}: not one of {', '.join(known)}")
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _end)
    chosen = candidates(_install(options.peers), pods=options.pods)
    if options.systems:
        names = {name for one in chosen for name in (one.name, one.system)}
        if unknown := set(options.systems) - names:
            made.error(f"{', '.join(sorted(unknown))}: not one of {', '.join(sorted(names))}; are its --peers named?")
        chosen = [one for one in chosen if one.name in options.systems or one.system in options.systems]
    for one in chosen:
        print(f"{one.name}: {one.settings}", file=sys.stderr)
    rows: dict[tuple[str, str, str], Row] = {}
    for label in options.parameters:
        for event in options.events:
            for one in chosen:
                rows[label, event, one.name] = Row(event, {"parameters": label, "system": one.name})
    try:
        for repeat in range(options.repeats or (1 if options.quick else 5)):
            for label, parameters in options.parameters.items():
                for event in options.events:
                    dice = random.Random(f"{repeat} {label} {event}")
                    part = dice.random()
                    for one in dice.sample(chosen, len(chosen)):
                        try:
                            cost = measure(one, event, parameters, 10 if options.quick else 20, part)
                        except (SetUpFailed, TimeoutError) as error:
                            print(error, file=sys.stderr)
                            continue
                        add(rows[label, event, one.name], cost)
                        said = "never" if cost is None else f"{cost.stall_s:.3f} s, {cost.until_new_s:.3f} s until new"
                        print(f"{repeat + 1} {label} {event} {one.name}: {said}", file=sys.stderr)
    finally:
        measured = [row for row in rows.values() if row.figures]
        show(measured)
        show_ratios(measured)
        if options.json is not None:
            write(measured, options.json)


if __name__ == "__main__":
    main()
