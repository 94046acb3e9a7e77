"""What every benchmark here shares: `--json FILE`, `--quick`, and a table of medians and ranges."""

from __future__ import annotations

import argparse
import json
import statistics
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.table import Table


@dataclass
class Row:
    """One thing measured under one set of settings: for each figure, a value a repeat."""

    what: str
    settings: dict[str, object]
    figures: dict[str, list[float]] = field(default_factory=dict)

    def add(self, **values: float) -> None:
        for name, value in values.items():
            self.figures.setdefault(name, []).append(value)

    def median(self, figure: str) -> float:
        return statistics.median(self.figures[figure])


class Report:
    """The rows of one run."""

    def __init__(self) -> None:
        self._rows: list[Row] = []

    def row(self, what: str, **settings: object) -> Row:
        """The row of these settings, made on first use: repeats may come interleaved."""
        for row in self._rows:
            if (row.what, row.settings) == (what, settings):
                return row
        row = Row(what, settings)
        self._rows.append(row)
        return row

    def show(self, json_file: Path | None) -> None:
        table = Table(box=None, pad_edge=False)
        for heading in ("what", "settings", "figure", "median", "range", "repeats"):
            table.add_column(heading)
        for row in self._rows:
            for name, values in row.figures.items():
                settings = ", ".join(f"{key} {value}" for key, value in row.settings.items())
                span = f"{min(values):,.4g} .. {max(values):,.4g}"
                table.add_row(row.what, settings, name, f"{row.median(name):,.4g}", span, str(len(values)))
        Console(width=150).print(table)
        if json_file is not None:
            with json_file.open("a") as file:
                for row in self._rows:
                    file.write(json.dumps({"what": row.what, "settings": row.settings, "figures": row.figures}) + "\n")


def parser(description: str | None) -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--json", type=Path, metavar="FILE", help="append the figures, a JSON object a line")
    made.add_argument("--quick", action="store_true", help="few and short repeats, to see that it works")
    return made
