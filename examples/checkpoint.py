"""Learns to tell two spirals apart, and goes on where it was when it is killed and started again.

python examples/checkpoint.py                                    # end it at any moment, by Ctrl-C or by kill -9,
python examples/checkpoint.py                                    # and start it again;
elastane run --workers 2 examples/checkpoint.py                  # go on with two workers,
elastane run --workers 3 examples/checkpoint.py --epochs 400     # or with three, and for longer
rm -r spirals                                                    # start over
"""

import argparse
import math

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

import elastane


class Spirals(Dataset[tuple[Tensor, Tensor]]):
    """Points of two spirals that wind around each other, with the number of their spiral."""

    def __len__(self) -> int:
        return 2000

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        spiral = index % 2
        turn = 3 * math.pi * (index / len(self)) ** 0.5
        angle = turn + math.pi * spiral
        return torch.tensor([turn * math.cos(angle), turn * math.sin(angle)]) / 5, torch.tensor(float(spiral))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoints", default="spirals", help="the folder that training goes on from")
    parser.add_argument("--epochs", type=int, default=200)
    options = parser.parse_args()

    torch.set_num_threads(1)  # The workers share the cores.
    model = nn.Sequential(nn.Linear(2, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)

    with elastane.join() as job:
        trainer = job.trainer(
            model, optimizer, global_batch_size=100, checkpoint=options.checkpoints, save_every_s=1.0, keep=2
        )
        trainer.sync()  # From here on the model is the job's: a new one, or that of the newest checkpoint.
        print(f"{job.node}: from step {job.step} on")
        for points, spirals in job.batches(Spirals(), 100, epochs=options.epochs, shuffle=True):
            answers = model(points).squeeze(1)
            before = job.step
            trainer.step(nn.functional.binary_cross_entropy_with_logits(answers, spirals))
            if job.step // 200 > before // 200 and job.rank == 0:
                right = ((answers > 0) == (spirals > 0.5)).double().mean()
                print(f"step {job.step}: {right:.0%} right")
        print(f"{job.node}: done, after step {job.step}")


if __name__ == "__main__":
    main()
