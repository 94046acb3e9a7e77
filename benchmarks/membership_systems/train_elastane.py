"""The training script under elastane."""

from __future__ import annotations

import torch
from torch.utils.data import default_collate

import elastane
from benchmarks.membership_systems.workload import StepLog, Workload, loss_of, parser


def main() -> None:
    options = parser().parse_args()
    torch.set_num_threads(1)
    workload = Workload(options.parameters)
    model = workload.model()
    optimizer = workload.optimizer(model)
    dataset = workload.dataset()
    with elastane.join() as job:
        log = StepLog(options.steps_folder, job.node)
        first = default_collate([dataset[index] for index in range(workload.batch_size)])
        trainer = job.trainer(model, optimizer, rehearse=lambda: loss_of(model, *first))
        for vectors, labels in job.batches(dataset, workload.batch_size, epochs=1000, shuffle=True):
            world = job.world_size  # The step may end in the next world; it counts for the one it began in.
            trainer.step(loss_of(model, vectors, labels))
            log.finished(job.step, world)


if __name__ == "__main__":
    main()
