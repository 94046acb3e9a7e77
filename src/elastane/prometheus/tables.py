"""The tables of docs/metrics.md, made from the declarations: `python -m elastane.prometheus.tables [--check] FILE`.

Without `--check` they are written between the marks in the file; with it, the exit code is 1 if they are not current.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from elastane.prometheus.declared import Declarations
from elastane.prometheus.of_brain import BRAIN
from elastane.prometheus.of_master import MASTER
from elastane.prometheus.of_operator import OPERATOR
from elastane.prometheus.of_ps import PS

PROCESSES: dict[str, Declarations] = {"master": MASTER, "ps": PS, "brain": BRAIN, "operator": OPERATOR}
"""All that is declared, by the kind of process that serves it."""


def table(declarations: Declarations) -> str:
    """The metrics of one kind of process as a table."""
    rows = ["| metric | type | labels | meaning |", "|---|---|---|---|"]
    for metric in declarations:
        labels = ", ".join(f"`{label}`" for label in metric.labels)
        rows.append(f"| `{metric.name}` | {metric.kind} | {labels} | {metric.help} |")
    return "\n".join(rows)


def with_tables(text: str) -> str:
    """A page with current tables between its marks. Raises ValueError if it lacks a mark."""
    for name, declarations in PROCESSES.items():
        marked = re.compile(rf"(<!-- metrics: {name} -->\n).*?(<!-- end -->)", re.DOTALL)
        found = marked.search(text)
        if found is None:
            raise ValueError(f"there is no place for the metrics of {name}")
        text = f"{text[: found.start()]}{found[1]}\n{table(declarations)}\n\n{found[2]}{text[found.end() :]}"
    return text


def main(words: list[str]) -> int:
    """Write the tables or check them; the answer is the exit code."""
    (file,) = (Path(word) for word in words if word != "--check")
    text = file.read_text()
    current = with_tables(text)
    if "--check" not in words:
        file.write_text(current)
    elif current != text:
        sys.stderr.write(f"{file} is not current; run `make manifests`\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
