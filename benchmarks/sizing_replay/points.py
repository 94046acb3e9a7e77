"""Measured points of real jobs, and how well the model predicts those that it was not fitted to.

A file has the columns panel, workers, ps, worker_cpu, ps_cpu, throughput_1e5_samples_per_s, and comments after `#`. A
blank column was not stated, and is a constant of its panel.
"""

from __future__ import annotations

import csv
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean

from benchmarks.report import Report
from elastane.core.throughput import fit
from elastane.model.errors import InvalidInput
from elastane.model.sizing import JobKind, JobSize, Window

FILE = Path(__file__).parent.parent / "data" / "ps_throughput.csv"
_SPEED = "throughput_1e5_samples_per_s"
_COLUMNS = ("panel", "workers", "ps", "worker_cpu", "ps_cpu", _SPEED)
FITTED_PART = 0.5
"""Of the held-out test: so much of each panel is fitted to, the rest is predicted."""


@dataclass(frozen=True)
class Point:
    """One measurement."""

    panel: str
    window: Window


def load_points(file: Path) -> list[Point]:
    """Read a file; raise InvalidInput with the line of a value that cannot be used."""
    with file.open(newline="") as lines:
        reader = csv.DictReader(line for line in lines if not line.startswith("#"))
        missing = set(_COLUMNS) - set(reader.fieldnames or ())
        if missing:
            raise InvalidInput(f"{file}: no column {', '.join(sorted(missing))}")
        return [_point(file, row) for row in reader]


def _point(file: Path, row: dict[str, str]) -> Point:
    try:
        size = JobSize(
            int(row["workers"] or 1),
            int(row["ps"] or 1),
            float(row["worker_cpu"]) if row["worker_cpu"] else None,
            float(row["ps_cpu"]) if row["ps_cpu"] else None,
        )
        samples_per_s = 1e5 * float(row[_SPEED])
    except ValueError as error:
        raise InvalidInput(f"{file}: {row}: {error}") from None
    return Point(
        row["panel"],
        Window(
            at_s=0.0,
            size=size,
            batch_size=1.0,
            samples_per_s=samples_per_s,
            step_s=size.workers / samples_per_s,
            hottest_share=1 / size.ps,
        ),
    )


def errors(fitted: Sequence[Point], predicted: Sequence[Point]) -> list[float]:
    """The relative errors of the predictions, after a fit to other points of the same panel."""
    model = fit(JobKind.PARAMETER_SERVER, [point.window for point in fitted])
    return [abs(model.predict(point.window.size).samples_per_s / point.window.samples_per_s - 1) for point in predicted]


def measure_points(report: Report, file: Path, repeats: int) -> None:
    """Leave-one-out error of each panel, and the error on random halves that were held out."""
    points = load_points(file)
    panels = {panel: [point for point in points if point.panel == panel] for panel in {p.panel: 0 for p in points}}
    everywhere: list[float] = []
    for panel, held in panels.items():
        left_out = [error for one in held for error in errors([point for point in held if point is not one], [one])]
        everywhere += left_out
        report.row("leave one out", panel=panel, points=len(held)).add(mape_percent=100 * mean(left_out))
    report.row("leave one out", panel="all", points=len(points)).add(mape_percent=100 * mean(everywhere))
    for repeat in range(repeats):
        draw = random.Random(repeat)
        whole: list[float] = []
        for panel, held in panels.items():
            chosen = draw.sample(held, k=max(round(FITTED_PART * len(held)), 1))
            rest = [point for point in held if point not in chosen]
            missed = errors(chosen, rest)
            whole += missed
            report.row("held out", panel=panel, fitted=len(chosen), predicted=len(rest)).add(
                mape_percent=100 * mean(missed)
            )
        report.row("held out", panel="all").add(mape_percent=100 * mean(whole))
