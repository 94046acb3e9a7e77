"""elastane's worker servers for tests. Run as a program it forks them: `TOKEN PORT` a line."""

from __future__ import annotations

from collections.abc import Callable

from elastane.coordinator.worker_server import WorkerServer
from tests.integration.server_nursery import ForkedServer, Nursery, fork_servers

TOKEN = "a-token-of-these-tests"


class WorkerServers(Nursery):
    """Starts worker servers."""

    def __init__(self) -> None:
        super().__init__("tests.integration.worker_servers", {})

    def worker(self, address: str = "") -> ForkedServer:
        return self.start(TOKEN, address.rpartition(":")[2] or "0")


def _serve(arguments: list[str], ready: Callable[[str], None]) -> None:
    token, port = arguments
    server = WorkerServer(token, port=int(port))
    ready(server.address)
    server.serve()


if __name__ == "__main__":
    import tests.integration.closure_functions  # noqa: F401  # once, for all that are forked
    from elastane.ps.keys import warm_up

    warm_up()
    fork_servers(_serve)
