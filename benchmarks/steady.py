"""What a training step costs in steady state, beside PyTorch's own DistributedDataParallel, or beside a plain loop.

Two models with the same numbers are trained in turns in the same two worker processes, in blocks of steps: one by
elastane, one by DistributedDataParallel over gloo, and that one once more, which shows what the machine's noise does to
a ratio. On a GPU (`--device cuda`) there is one worker, and the other is a loop without either.

    python -m benchmarks.steady
    python -m benchmarks.steady --device cuda
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.report import Report, parser

SCRIPT = Path(__file__).with_name("steady_script.py")


def run_once(folder: Path, *, device: str, parameters: int, blocks: int, steps: int) -> list[dict[str, float]]:
    """One job; the answer has the figures of each block."""
    arguments = [str(SCRIPT), "--device", device, "--parameters", str(parameters), "--out", str(folder / "out.json")]
    arguments += ["--blocks", str(blocks), "--steps", str(steps)]
    workers = ["-m", "elastane", "run", "--name", "steady", "--workers", "2:2"] if device == "cpu" else []
    env = {
        **os.environ,
        "ELASTANE_STATE_DIR": str(folder),
        "PYTHONPATH": os.pathsep.join([str(SCRIPT.parents[1]), *sys.path]),
    }
    done = subprocess.run([sys.executable, *workers, *arguments], env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stdout + done.stderr)
    figures: list[dict[str, float]] = json.loads((folder / "out.json").read_text())
    return figures


def main() -> None:
    options_parser = parser(__doc__)
    options_parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    options_parser.add_argument("--blocks", type=int, default=12, help="how often each is measured")
    options = options_parser.parse_args()
    report = Report()
    settings = [(1_000_000, 40), (10_000_000, 12)] if options.device == "cpu" else [(124_000_000, 20)]
    for parameters, steps in settings:
        with tempfile.TemporaryDirectory(prefix="elastane-bench-") as folder:
            blocks = 2 if options.quick else options.blocks
            found = run_once(Path(folder), device=options.device, parameters=parameters, blocks=blocks, steps=steps)
        row = report.row("training step", parameters=f"{parameters // 1_000_000}M", device=options.device)
        for block in found:
            row.add(**block)
    report.show(options.json)


if __name__ == "__main__":
    main()
