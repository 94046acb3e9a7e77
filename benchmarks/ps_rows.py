"""What rows cost a parameter server: memory, pulls and pushes as a table grows, and checkpoints of it.

A table of 16 floats with Adagrad is filled by pushes of 13,312 new ids (512 samples of 26 ids), up to each of the sizes
given; there it is pulled from and pushed to at random. At the last size it is saved, and restored into a new store, as
a server does that starts.

- fill_push: one push of 13,312 ids that have no row yet; `worst` is the slowest of all up to this size.
- push, pull, pull_missing: 13,312 random ids that have a row, or none.
- bytes_a_row: what the process has grown by since there was no row; counted_bytes_a_row: what the store says.
- save, restore: to and from a folder, in one process; MB of the file a second. torch: its own sparse Adagrad.

    python -m benchmarks.ps_rows --rows 1000000 2600000 100000000
"""

from __future__ import annotations

import gc
import os
import shutil
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import psutil
import torch

from benchmarks.report import Report, Row, parser
from elastane.model.ps import OptimizerKind, OptimizerSpec, TableSpec
from elastane.ps import files
from elastane.ps.store import Store, warm_up

DIM, IDS = 16, 512 * 26
N_BUCKETS = 1024
MOST_FOR_TORCH = 5_000_000
TABLE = TableSpec("rows", DIM, OptimizerSpec(OptimizerKind.ADAGRAD, lr=0.01))

Ids = npt.NDArray[np.int64]


def timed_ms(call: Callable[[], object]) -> float:
    begin = time.perf_counter()
    call()
    return 1000 * (time.perf_counter() - begin)


class Server:
    """A store with one table, asked as a server would ask it."""

    def __init__(self) -> None:
        self.store = Store(N_BUCKETS)
        self._table = np.array([self.store.define(TABLE)], np.uint32)
        self._rate = np.array([0.01], np.float32)
        self._values = np.random.default_rng(0).standard_normal((IDS, DIM), np.float32)
        self._out = np.empty_like(self._values)
        self.rows = 0

    def push(self, ids: Ids) -> None:
        count = np.array([len(ids)], np.uint32)
        self.store.push(self._table, count, ids, self._values[: len(ids)], self._rate, 1)

    def pull(self, ids: Ids) -> None:
        self.store.pull(self._table, np.array([len(ids)], np.uint32), ids, self._out[: len(ids)])

    def fill(self, rows: int) -> list[float]:
        """Make rows up to so many; how long each push took."""
        took = []
        while self.rows < rows:
            ids = np.arange(self.rows, min(rows, self.rows + IDS))
            took.append(timed_ms(lambda ids=ids: self.push(ids)))  # type: ignore[misc]
            self.rows += len(ids)
        return took


def measure(server: Server, row: Row, repeats: int) -> None:
    rng = np.random.default_rng(1)
    for _ in range(repeats):
        ids = rng.integers(0, server.rows, IDS)
        others = ids + 2**40
        pull, missing = timed_ms(lambda: server.pull(ids)), timed_ms(lambda: server.pull(others))  # noqa: B023
        ids = rng.integers(0, server.rows, IDS)
        row.add(pull_ms=pull, pull_missing_ms=missing, push_ms=timed_ms(lambda: server.push(ids)))  # noqa: B023


def measure_torch(row: Row, rows: int, repeats: int) -> None:
    """The same push in PyTorch: a sparse gradient, and its own Adagrad."""
    weights = torch.nn.Parameter(torch.randn(rows, DIM))
    optimizer = torch.optim.Adagrad([weights], lr=0.01)
    values = torch.randn(IDS, DIM)
    warnings.filterwarnings("ignore", "Sparse invariant checks")
    for _ in range(repeats):
        ids = torch.randperm(rows)[:IDS]
        weights.grad = torch.sparse_coo_tensor(ids[None], values, weights.shape, check_invariants=False)
        row.add(push_ms=timed_ms(optimizer.step), pull_ms=timed_ms(lambda: weights.detach()[ids]))  # noqa: B023


def save_and_restore(server: Server, row: Row, folder: Path) -> None:
    some = range(0, N_BUCKETS, 50)
    wanted = [server.store.digest(bucket) for bucket in some]
    path = files.begin(folder)
    every = dict.fromkeys(range(N_BUCKETS), 1)
    save_s = timed_ms(lambda: files.save_part(server.store, path, "ps-0", every)) / 1000
    files.commit(path, N_BUCKETS, 1)
    size = sum(file.stat().st_size for file in path.iterdir()) / 1e6
    server.store = Store(N_BUCKETS)
    gc.collect()
    restore_s = timed_ms(lambda: files.restore(server.store, folder, every)) / 1000
    assert [server.store.digest(bucket) for bucket in some] == wanted
    row.add(
        save_s=save_s,
        save_mb_per_s=size / save_s,
        restore_s=restore_s,
        restore_mb_per_s=size / restore_s,
        file_mb=size,
    )


def main() -> None:
    options_parser = parser(__doc__)
    options_parser.add_argument("--rows", type=int, nargs="*", default=[1_000_000, 2_600_000])
    options_parser.add_argument("--repeats", type=int, default=100)
    options_parser.add_argument("--folder", type=Path, help="where to save to; by default a temporary one")
    options = options_parser.parse_args()
    sizes = [100_000] if options.quick else sorted(options.rows)
    repeats = 5 if options.quick else options.repeats
    warm_up()
    report = Report()
    process = psutil.Process()
    server = Server()
    gc.collect()
    empty = process.memory_info().rss
    for rows in sizes:
        row = report.row("elastane", rows=rows, dim=DIM, ids=IDS)
        took = server.fill(rows)
        row.add(fill_push_ms=float(np.median(took)), fill_push_worst_ms=max(took), fill_s=sum(took) / 1000)
        used = process.memory_info().rss - empty
        row.add(bytes_a_row=used / rows, counted_bytes_a_row=server.store.memory()[TABLE.name].bytes / rows)
        measure(server, row, repeats)
    folder = Path(tempfile.mkdtemp(dir=options.folder))
    try:
        save_and_restore(server, report.row("checkpoint", rows=sizes[-1], dim=DIM), folder)
    finally:
        shutil.rmtree(folder)
        os.sync()
    measure(server, report.row("elastane, restored", rows=sizes[-1], dim=DIM, ids=IDS), repeats)
    del server
    for rows in [rows for rows in sizes if rows <= MOST_FOR_TORCH]:
        measure_torch(report.row("torch.optim.Adagrad", rows=rows, dim=DIM, ids=IDS), rows, min(repeats, 20))
    report.show(options.json)


if __name__ == "__main__":
    main()
