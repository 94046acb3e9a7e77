"""Parameter servers: elastane beside TensorFlow's ParameterServerStrategy, on the same model and data, interleaved.

A DeepFM on clicks with 13 numbers and 26 categories of Zipf-distributed ids (2 million rows of 16 floats), batches of
512, Adagrad on the servers. Every system has one thread for a process's computation, and trains on each batch once.

- samples_per_s: from the first sample after the warm-up to the last.
- samples_per_cpu_s: the same samples by the CPU time of all processes of the job, the chief or the master included.
- pull_ms: the rows of one batch (each id once) from the servers to a worker, alone, one after the other.
- push_ms: the gradients of these rows from a worker until the servers have applied them.
- auc: on held-out samples, after the same number of training samples.

TensorFlow is measured in two forms: a table for each field, and one table of all fields, which is its best. Its steps
are graphs (tf.function, 20 steps a call); the model under elastane is compiled (torch.compile), or not (`eager`).
"""

from __future__ import annotations

import json
import math
import signal
import statistics
import sys
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from types import FrameType
from typing import NamedTuple

from benchmarks.membership_systems.peers import version_of
from benchmarks.ps_systems.peers import PeerUnavailable, tensorflow_python
from benchmarks.ps_systems.runs import RunFailed, Setting, Start, data_of, run, start_elastane, start_tensorflow
from benchmarks.report import Report, Row, parser

CONFIGURATIONS = ("1/1", "2/1", "1/2", "2/2")
OWN = "elastane"
TARGETS = {"samples_per_cpu_s": 2.5, "pull_ms": 4.0, "push_ms": 6.0}


class System(NamedTuple):
    """How a system is started, in how many tables its embeddings are, and whether its model is compiled."""

    start: Start
    tables: int
    eager: bool = False


def systems(chosen: list[str]) -> dict[str, System]:
    """The systems by name."""
    found = {
        OWN: System(start_elastane, 1),
        f"{OWN} eager": System(start_elastane, 1, eager=True),
        f"{OWN} 26 tables": System(start_elastane, 26),
    }
    try:
        python = tensorflow_python()
        print(f"tensorflow {version_of('tensorflow-cpu', python)}", file=sys.stderr)
        start = start_tensorflow(python)
        found |= {"tensorflow fused": System(start, 1), "tensorflow 26 tables": System(start, 26)}
    except PeerUnavailable as error:
        print(f"tensorflow: not measured: {error}", file=sys.stderr)
    return {name: one for name, one in found.items() if not chosen or name in chosen}


def ratios(rows: Iterable[Row]) -> Iterable[str]:
    """elastane against TensorFlow's better form, by configuration and figure."""
    table: dict[tuple[object, object], dict[str, Row]] = {}
    for row in rows:
        table.setdefault((row.settings["workers"], row.settings["ps"]), {})[str(row.settings["system"])] = row
    for (workers, ps), by_system in table.items():
        own = by_system.pop(OWN, None)
        peers = [row for name, row in by_system.items() if not name.startswith(OWN)]
        if own is None or not peers:
            continue
        for figure in ("samples_per_s", "samples_per_cpu_s", "pull_ms", "push_ms"):
            less = figure.endswith("_ms")
            best = (min if less else max)(row.median(figure) for row in peers)
            times = best / own.median(figure) if less else own.median(figure) / best
            target = f" (wanted: {TARGETS[figure]:g})" if figure in TARGETS else ""
            yield f"{workers}/{ps} {figure}: {times:.2f} times the best of TensorFlow{target}"
        best = max(row.median("auc") for row in peers)
        yield f"{workers}/{ps} auc: {own.median('auc') - best:+.4f}"


def _end(number: int, frame: FrameType | None) -> None:
    del frame
    sys.exit(128 + number)  # so that what was started is ended


def _words(text: str) -> list[str]:
    return [word for word in text.split(",") if word]


def main() -> None:
    made = parser(__doc__)
    made.add_argument("--systems", type=_words, default=[], help='only these, such as "elastane,tensorflow fused"')
    made.add_argument("--configurations", type=_words, default=list(CONFIGURATIONS), help="workers/servers (all four)")
    made.add_argument("--batches", type=int, help="measured batches of a run (600)")
    made.add_argument("--repeats", type=int, help="runs of each (5)")
    options = made.parse_args()
    if unknown := set(options.configurations) - set(CONFIGURATIONS):
        made.error(f"{', '.join(sorted(unknown))}: not one of {', '.join(CONFIGURATIONS)}")
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _end)
    report = Report()
    rows: list[Row] = []
    batches = options.batches or (100 if options.quick else 600)
    chosen = list(systems(options.systems).items())
    try:
        with data_of(batches) as data:
            for repeat in range(options.repeats or (1 if options.quick else 5)):
                for configuration in options.configurations:
                    workers, ps = map(int, configuration.split("/"))
                    turn = repeat % len(chosen)
                    for name, system in chosen[turn:] + chosen[:turn]:
                        row = report.row("ps", system=name, workers=workers, ps=ps)
                        if row not in rows:
                            rows.append(row)
                        try:
                            setting = Setting(workers, ps, system.tables, batches, data, system.eager)
                            figures = run(system.start, setting)
                        except RunFailed as error:
                            print(f"{name} {configuration}: {error}", file=sys.stderr)
                            continue
                        row.add(**asdict(figures))
                        print(f"{name} {configuration}: {figures}", file=sys.stderr)
    finally:
        report.show(None)
        measured = [row for row in rows if row.figures]
        for line in ratios(measured):
            print(line)
        if options.json:
            write(measured, options.json)


def write(rows: Iterable[Row], file: Path) -> None:
    with file.open("a") as output:
        for row in rows:
            medians = {name: statistics.median(values) for name, values in row.figures.items()}
            if not any(math.isnan(value) for value in medians.values()):
                output.write(json.dumps({**row.settings, **medians, "repeats": row.figures}) + "\n")


if __name__ == "__main__":
    main()
