"""The training script under torchft: a worker is a replica group of one, as in the README of torchft."""

from __future__ import annotations

import signal
import socket
from datetime import timedelta
from typing import Any

from torch._C._distributed_c10d import TCPStore
from torchft import (  # type: ignore[import-not-found]
    DistributedDataParallel,
    Manager,
    Optimizer,
    ProcessGroupGloo,
    manager,
)
from torchft.checkpointing import HTTPTransport, http_transport  # type: ignore[import-not-found]

from benchmarks.membership_systems.workload import StepLog, Workload, loss_of, parser

LOOPBACK = "127.0.0.1"


def stay_on_loopback() -> None:
    """torchft has no option for the addresses it listens on and tells the others; the protocol stays as it is."""
    socket.gethostname = lambda: LOOPBACK
    server = manager.ManagerServer
    manager.ManagerServer = lambda **settings: server(**{**settings, "bind": f"{LOOPBACK}:0"})

    class LoopbackServer(http_transport._IPv6HTTPServer):  # type: ignore[misc]
        address_family = socket.AF_INET

        def __init__(self, address: tuple[str, int], handler: Any) -> None:
            super().__init__((LOOPBACK, address[1]), handler)

    http_transport._IPv6HTTPServer = LoopbackServer


def own_store() -> TCPStore:
    listener = socket.socket()
    listener.bind((LOOPBACK, 0))
    listener.listen()
    port = listener.getsockname()[1]
    return TCPStore(LOOPBACK, port, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach())


def main() -> None:
    made = parser()
    made.add_argument("--worker", required=True)
    made.add_argument("--seed", type=int, required=True)
    made.add_argument("--lighthouse", required=True)
    made.add_argument("--timeout-s", type=float, help="of collectives and calls; by default torchft's own")
    made.add_argument("--heartbeat-s", type=float, help="between the heartbeats; by default torchft's own")
    options = made.parse_args()
    workload, log = Workload(options.parameters), StepLog(options.steps_folder, options.worker)
    stay_on_loopback()
    store = own_store()
    settings: dict[str, Any] = {}
    if options.heartbeat_s is not None:
        settings["heartbeat_interval"] = timedelta(seconds=options.heartbeat_s)
    timeout: dict[str, Any] = {}
    if options.timeout_s is not None:
        timeout["timeout"] = timedelta(seconds=options.timeout_s)
        settings["checkpoint_transport"] = HTTPTransport(**timeout, num_chunks=0)

    model = workload.model()
    adam = workload.optimizer(model)

    def load_state(state: dict[str, Any]) -> None:
        model.load_state_dict(state["model"])
        adam.load_state_dict(state["optimizer"])

    managed = Manager(
        pg=ProcessGroupGloo(**timeout),
        load_state_dict=load_state,
        state_dict=lambda: {"model": model.state_dict(), "optimizer": adam.state_dict()},
        min_replica_size=2,
        replica_id=options.worker,
        rank=0,
        world_size=1,
        store_addr=LOOPBACK,
        store_port=store.port,
        lighthouse_addr=options.lighthouse,
        hostname=LOOPBACK,
        **settings,
        **timeout,
    )
    parallel = DistributedDataParallel(managed, model)
    optimizer = Optimizer(managed, adam)

    leaving = False

    def leave(*_: object) -> None:
        nonlocal leaving
        leaving = True

    signal.signal(signal.SIGTERM, leave)
    for vectors, labels in workload.batches(options.seed):
        before = managed.current_step()
        optimizer.zero_grad()
        loss_of(parallel, vectors, labels).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        step = managed.current_step()
        if step > before:
            log.finished(step, managed.num_participants())
        else:
            log.dropped(step + 1, managed.num_participants())
        if leaving:
            managed.shutdown()
            return


if __name__ == "__main__":
    main()
