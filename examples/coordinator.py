"""One process schedules gradients on workers that come and go, and applies each as it arrives.

python examples/coordinator.py                            # starts three workers here, and uses two at a time
elastane run --workers 2:4 --name closures --strategy parameter_server \
    --worker-command "elastane coordinate examples/coordinator.py"
elastane scale closures --workers 4                       # meanwhile, from another terminal
"""

import os
import secrets
import subprocess
import sys
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from elastane.coordinator import ClusterCoordinator, WorkerCluster
from elastane.model.environment import ENV_MASTER, ENV_TOKEN

EPOCHS = 4
STEPS = 50


def batches() -> Iterator[tuple[Tensor, Tensor]]:
    """Each worker draws its own samples of a plane with some noise."""
    while True:
        points = torch.randn(64, 8)
        yield points, points @ torch.arange(8.0)[:, None] + 0.1 * torch.randn(64, 1)


def gradient(weights: dict[str, Tensor], data: Iterator[tuple[Tensor, Tensor]]) -> tuple[float, dict[str, Tensor]]:
    """What a worker does: the loss of its next batch, and the gradient."""
    torch.set_num_threads(1)  # The workers of one machine share its cores.
    model = nn.Linear(8, 1)
    model.load_state_dict(weights)
    points, wanted = next(data)
    loss = nn.functional.mse_loss(model(points), wanted)
    found = torch.autograd.grad(loss, list(model.parameters()))
    return loss.item(), dict(zip(weights, found, strict=True))


def start_worker(token: str) -> tuple[str, subprocess.Popen[str]]:
    """A worker server on this machine, and where it is."""
    process = subprocess.Popen(
        [sys.executable, "-m", "elastane", "worker"],
        env={**os.environ, ENV_TOKEN: token},
        stdout=subprocess.PIPE,
        text=True,
    )
    return (process.stdout.readline() if process.stdout else "").split()[-1], process


def train(coordinator: ClusterCoordinator, new_worker: str | None) -> None:
    model = nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    data = iter(coordinator.create_per_worker_dataset(batches))
    for epoch in range(EPOCHS):
        if new_worker and epoch == 1:
            coordinator.remove_worker(next(iter(coordinator.workers)))
        if new_worker and epoch == 2:
            coordinator.add_worker(new_worker)
        for _ in range(STEPS):
            # Two at a time: the second is computed with weights that are one step old.
            values = [coordinator.schedule(gradient, args=(model.state_dict(), data)) for _ in range(2)]
            for loss, gradients in coordinator.fetch(values):  # noqa: B007  # the last is printed
                for name, parameter in model.named_parameters():
                    parameter.grad = gradients[name]
                optimizer.step()
        print(f"epoch {epoch}: loss {loss:.4f} with {len(coordinator.workers)} workers", flush=True)


def main() -> None:
    if ENV_MASTER in os.environ:  # The job has workers, and adds and removes them by itself.
        with ClusterCoordinator() as coordinator:
            train(coordinator, None)
        return
    token = secrets.token_hex()
    (first, one), (second, two), (third, three) = (start_worker(token) for _ in range(3))
    try:
        with ClusterCoordinator(WorkerCluster((first, second), token)) as coordinator:
            train(coordinator, third)
    finally:
        for process in (one, two, three):
            process.terminate()


if __name__ == "__main__":
    main()
