"""Trains a small language model on the text of Python's own manual, alone or together with other workers.

python examples/train.py
elastane run --workers 2 examples/train.py
elastane run --workers 1:3 --name manual examples/train.py --epochs 10    # and meanwhile, from another terminal:
elastane scale manual --workers 3
"""

import argparse
import time
from pydoc_data.topics import topics

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

import elastane

WINDOW = 32
WIDTH = 48


class Windows(Dataset[tuple[Tensor, Tensor]]):
    """Pieces of a text as numbers, each with the same piece one character further on: what is to be learnt."""

    def __init__(self, text: Tensor) -> None:
        self.text = text

    def __len__(self) -> int:
        return (len(self.text) - 1) // WINDOW

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        piece = self.text[index * WINDOW : (index + 1) * WINDOW + 1]
        return piece[:-1], piece[1:]


class NextCharacter(nn.Module):
    """A transformer of two layers, which sees only what stands before."""

    def __init__(self, characters: int) -> None:
        super().__init__()
        self.character = nn.Embedding(characters, WIDTH)
        self.position = nn.Parameter(torch.zeros(WINDOW, WIDTH))
        layer = nn.TransformerEncoderLayer(WIDTH, nhead=4, dim_feedforward=4 * WIDTH, dropout=0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, num_layers=2)
        self.answer = nn.Linear(WIDTH, characters)

    def forward(self, text: Tensor) -> Tensor:
        length = text.shape[1]
        mask = nn.Transformer.generate_square_subsequent_mask(length)
        hidden = self.layers(self.character(text) + self.position[:length], mask=mask, is_causal=True)
        answer: Tensor = self.answer(hidden)
        return answer


def loss_of(model: nn.Module, text: Tensor, following: Tensor) -> Tensor:
    return nn.functional.cross_entropy(model(text).flatten(0, 1), following.flatten())


@torch.no_grad()
def evaluate(model: nn.Module, data: Windows) -> float:
    batches = torch.utils.data.DataLoader(data, batch_size=64)
    return sum(loss_of(model, *batch).item() * len(batch[0]) for batch in batches) / len(data)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--batch-size", type=int, default=16, help="the most samples that a worker takes at a time")
    parser.add_argument("--global-batch-size", type=int, default=32, help="samples of a step, on all workers together")
    parser.add_argument("--lr", type=float, default=3e-3)
    options = parser.parse_args()

    torch.set_num_threads(1)  # The workers share the cores.
    text = "\n".join(topics.values())
    characters = sorted(set(text))
    number = {character: index for index, character in enumerate(characters)}
    encoded = torch.tensor([number[character] for character in text])
    split = len(encoded) * 19 // 20
    data, held_out = Windows(encoded[:split]), Windows(encoded[split:])

    steps = -(-len(data) // options.global_batch_size) * options.epochs
    model = NextCharacter(len(characters))
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.lr)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)

    with elastane.join() as job:
        trainer = job.trainer(
            model, optimizer, scheduler, clip_grad_norm=1.0, global_batch_size=options.global_batch_size
        )
        taken = 0
        shown = (0, time.monotonic())
        for batch in job.batches(data, options.batch_size, epochs=options.epochs, shuffle=True):
            before = job.step
            loss = loss_of(model, *batch)
            trainer.step(loss)  # With a global batch, a call may only add to the step.
            taken += len(batch[0])
            if job.step > before and job.step % 50 == 0 and job.rank == 0:
                per_s = (job.step - shown[0]) / (time.monotonic() - shown[1])
                shown = (job.step, time.monotonic())
                print(f"step {job.step} of {steps}: loss {loss:.3f}, {job.world_size} workers, {per_s:.0f} steps/s")
        if job.step:  # Who came when all was done has no model to show.
            found = evaluate(model, held_out)
            print(f"{job.node}: took {taken} samples, {job.step} steps made, loss {found:.4f} on text not seen before")


if __name__ == "__main__":
    main()
