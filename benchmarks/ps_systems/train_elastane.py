"""The training under elastane, as `elastane run --ps N --workers M` starts it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from deepfm_data import FIELDS, Clicks, auc
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

import elastane
from benchmarks.ps_systems.marks import Marks, Outcome
from benchmarks.ps_systems.workload import (
    ACCUMULATOR,
    BATCH,
    DENSE_LR,
    DIM,
    HIDDEN,
    INPUTS,
    LR,
    PROBES,
    SCALE,
    WARM_UP,
    held_out_clicks,
    options,
    training_clicks,
)
from elastane.ps.keys import unique


class Model(nn.Module):
    """The DeepFM, on one table of all fields or on a table for each."""

    def __init__(self, job: elastane.Job, tables: int, *, eager: bool) -> None:
        super().__init__()
        names = ["fields"] if tables == 1 else [f"field-{field}" for field in range(FIELDS)]
        optimizer = elastane.adagrad(LR, initial_accumulator_value=ACCUMULATOR)
        first = elastane.Initializer(scale=SCALE)
        self.tables = nn.ModuleList(job.embedding(name, DIM, optimizer, initializer=first) for name in names)
        layers: list[nn.Module] = []
        width = INPUTS
        for outputs in HIDDEN:
            layers += [nn.Linear(width, outputs), nn.ReLU()]
            width = outputs
        self.deep = nn.Sequential(*layers, nn.Linear(width, 1))
        self._loss = self._eager_loss if eager else torch.compile(self._eager_loss)

    def ids_of(self, batch: Any) -> dict[Any, Tensor]:
        """What each table will be asked for."""
        ids = batch[0]
        if len(self.tables) == 1:
            return {self.tables[0]: ids}
        return dict(zip(self.tables, batch[3], strict=True))

    def forward(self, batch: Any) -> Tensor:
        return self._logits(self._rows(batch), batch[1])

    def loss(self, batch: Any) -> Tensor:
        return self._loss(self._rows(batch), batch[1], batch[2])

    def _rows(self, batch: Any) -> Tensor:
        rows: Tensor = (
            self.tables[0](batch[0])
            if len(self.tables) == 1
            else torch.stack([table(column) for table, column in zip(self.tables, batch[3], strict=True)], 1)
        )
        return rows

    def _eager_loss(self, rows: Tensor, numbers: Tensor, clicked: Tensor) -> Tensor:
        return binary_cross_entropy_with_logits(self._logits(rows, numbers), clicked)

    def _logits(self, rows: Tensor, numbers: Tensor) -> Tensor:
        total, squares = rows.sum(1), (rows * rows).sum(1)
        pairs = (total[:, 1:] ** 2 - squares[:, 1:]).sum(1) / 2
        deep = self.deep(torch.cat([rows.flatten(1), numbers], 1))
        logits: Tensor = total[:, 0] + pairs + deep.squeeze(1)
        return logits


def main() -> None:
    settings = options().parse_args()
    marks = Marks(settings.folder)
    with elastane.join() as job:
        model = Model(job, settings.tables, eager=settings.eager)
        optimizer = torch.optim.Adagrad(model.parameters(), lr=DENSE_LR, initial_accumulator_value=ACCUMULATOR)
        trainer = job.trainer(model, optimizer)
        clicks = training_clicks(settings.data)

        def collate(columns: Any) -> list[Any]:
            batch: list[Any] = [torch.from_numpy(column) for column in columns]
            if settings.tables > 1:
                batch.append([column.contiguous() for column in batch[0].unbind(1)])
            return batch

        def train(first: int, end: int) -> None:
            part = slice(first * BATCH, end * BATCH)
            some = Clicks(clicks.ids[part], clicks.numbers[part], clicks.clicked[part])
            for batch in job.batches(some, BATCH, collate_fn=collate, ids_of=model.ids_of):
                trainer.step(model.loss(batch))

        train(0, WARM_UP)
        leads = job.node.endswith("worker-0")
        began = marks.begin() if leads else 0.0
        train(WARM_UP, WARM_UP + settings.batches)  # It ends when all workers' samples are counted.
        if leads:
            ended = marks.end()
            held_out = held_out_clicks(settings.data)
            scores = []
            with torch.inference_mode():
                for start in range(0, len(held_out), BATCH):
                    scores.append(model(collate(held_out.__getitems__(range(start, start + BATCH)))).numpy())
            area = auc(np.concatenate(scores), held_out.clicked)
            pull_ms, push_ms = probe(model, collate(clicks.__getitems__(range(BATCH))))
            marks.finish(Outcome(settings.batches * BATCH, began, ended, pull_ms, push_ms, area))
        while not marks.has("outcome.json"):
            time.sleep(0.05)  # The driver counts this process's CPU time as long as it lives.


def probe(model: Model, batch: Any) -> tuple[float, float]:
    """How long a pull and a push of a batch's rows take."""
    table: Any = model.tables[0]
    client = table._rows.client  # what every step uses
    keys = {table.spec.name: unique(ids.reshape(-1).numpy())[0] for table, ids in model.ids_of(batch).items()}
    # Zeros cost what other numbers cost, and spoil nothing.
    gradients = {name: (ids, np.zeros((len(ids), DIM), np.float32)) for name, ids in keys.items()}
    lrs = dict.fromkeys(keys, LR)
    pull_ms = timed_ms(lambda: client.pull(keys, None))
    return pull_ms, timed_ms(lambda: client.push_ahead(gradients, lrs, 1 << 20, 1.0).result())


def timed_ms(do: Callable[[], Any]) -> float:
    for _ in range(PROBES):
        do()
    began = time.perf_counter()
    for _ in range(PROBES):
        do()
    return (time.perf_counter() - began) / PROBES * 1000


if __name__ == "__main__":
    main()
