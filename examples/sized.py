"""A job that sizes itself: `elastane run --autoscale examples/sized.py`. What limits it can be chosen, to watch it.

input: each batch takes a while to arrive, as from a slow store. More workers fetch more batches at a time.
compute: each batch keeps a core busy. More workers than cores are of no use.
servers: the rows of an embedding come from parameter servers (--strategy parameter_server), which are soon busy.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence

import torch

import elastane

FEATURES = 16
IDS = 50_000


class Samples:
    """Samples that are made up, each batch in its own time."""

    def __init__(self, size: int, wait_s: float, ids_per_sample: int) -> None:
        self._size = size
        self._wait_s = wait_s
        self._ids_per_sample = ids_per_sample

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        made = torch.Generator().manual_seed(index)
        if self._ids_per_sample:
            return torch.randint(IDS, (self._ids_per_sample,), generator=made), torch.tensor(index % 2.0)
        return torch.randn(FEATURES, generator=made), torch.tensor(index % 2.0)

    def __getitems__(self, indices: Sequence[int]) -> list[tuple[torch.Tensor, torch.Tensor]]:
        time.sleep(self._wait_s)
        return [self[index] for index in indices]


def busy(seconds: float) -> None:
    """Keep one core busy for so much of its time, as a larger model would."""
    until = time.thread_time() + seconds
    values = torch.randn(64, 64)
    while time.thread_time() < until:
        values = torch.tanh(values @ values)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bound", choices=("input", "compute", "servers"), default="input")
    parser.add_argument("--samples", type=int, default=100_000)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--wait-ms", type=float, default=100.0, help="what a batch takes to arrive")
    parser.add_argument("--busy-ms", type=float, default=0.0, help="how long it keeps a core busy")
    options = parser.parse_args()
    torch.set_num_threads(1)

    with elastane.join() as job:
        by_servers = options.bound == "servers"
        data = Samples(options.samples, options.wait_ms / 1000, 16 if by_servers else 0)
        model: torch.nn.Module
        if by_servers:
            embedding = job.embedding("words", 8, elastane.adagrad(lr=0.1), bag="mean")
            model = torch.nn.Sequential(embedding, torch.nn.Linear(8, 1))
        else:
            model = torch.nn.Sequential(torch.nn.Linear(FEATURES, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1))
        trainer = job.trainer(model, torch.optim.SGD(model.parameters(), lr=0.01))
        for inputs, wanted in job.batches(data, options.batch, shuffle=True):
            busy(options.busy_ms / 1000)
            predicted = model(inputs).squeeze(-1)
            trainer.step(torch.nn.functional.binary_cross_entropy_with_logits(predicted, wanted))


if __name__ == "__main__":
    main()
