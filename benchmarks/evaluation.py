"""What evaluation costs the training step, on an evaluator and on the worker itself.

One job trains with one worker, in blocks of steps: a block without evaluation, then one in which versions are evaluated
all the while, and so on. Each figure is the ratio of two blocks that follow each other, so that a machine that grows
slower does not count. The worker and the evaluator each have a core of their own (`--cpu 1`). The fewer samples are
evaluated, the sooner the worker writes the next version: with 8,192 samples that was one in 0.35 s, with 32,768 one in
1.2 s.

Cores share caches and memory. So two more jobs evaluate nothing: in one of them a process that has no part in the job
computes the same on the other core, which shows what a busy neighbour costs by itself; in the other nothing happens,
which shows what the machine's noise does to such a ratio.

    python -m benchmarks.evaluation
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.report import Report, parser

SCRIPT = Path(__file__).with_name("evaluation_script.py")
EVALUATOR, WORKER, STRANGER, NOTHING = "on an evaluator", "on the worker", "none, a stranger computes", "none"


def run_once(folder: Path, kind: str, *, samples: int, blocks: int, steps: int) -> list[dict[str, float]]:
    """One job; the answer has the figures of each pair of blocks."""
    arguments = [str(SCRIPT), "--out", str(folder / "out.json"), "--blocks", str(blocks), "--steps", str(steps)]
    arguments += ["--samples", str(samples)]
    if kind in (STRANGER, NOTHING):
        arguments.append("--never")
    options = ["run", "--no-progress", "--name", "job", "--workers", "1", "--cpu", "1"]
    if kind == EVALUATOR:
        options += ["--evaluators", "1"]
    env = {
        **os.environ,
        "ELASTANE_STATE_DIR": str(folder),
        "PYTHONPATH": os.pathsep.join([str(SCRIPT.parents[1]), *sys.path]),
    }
    command = [sys.executable, "-m", "elastane", *options, *arguments]
    stranger = None
    if kind == STRANGER:
        stranger = subprocess.Popen([sys.executable, *arguments, "--stranger"], env=env)
    try:
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    finally:
        if stranger is not None:
            stranger.kill()
            stranger.wait()
    if done.returncode:
        raise RuntimeError(done.stdout + done.stderr)
    figures: list[dict[str, float]] = json.loads((folder / "out.json").read_text())
    return figures


def main() -> None:
    options_parser = parser(__doc__)
    options_parser.add_argument("--pairs", type=int, default=30, help="how often each is measured")
    options_parser.add_argument("--steps", type=int, default=20, help="steps of a block")
    options = options_parser.parse_args()
    pairs, steps = (3, 10) if options.quick else (options.pairs, options.steps)
    report = Report()
    few, many = 8_192, 32_768
    for kind, samples in ((EVALUATOR, many), (EVALUATOR, few), (STRANGER, many), (NOTHING, many), (WORKER, many)):
        with tempfile.TemporaryDirectory(prefix="elastane-bench-") as folder:
            for pair in run_once(Path(folder), kind, samples=samples, blocks=pairs, steps=steps):
                report.row("training step", evaluation=kind, samples=samples).add(**pair)
    report.show(options.json)


if __name__ == "__main__":
    main()
