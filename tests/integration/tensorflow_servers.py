"""Stock TensorFlow servers for tests. Run as a program it forks them: `JOB INDEX ADDRESS...` a line."""

from __future__ import annotations

from collections.abc import Callable

from tests.integration.server_nursery import ForkedServer, Nursery, fork_servers, free_address

QUIET = {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1"}


class TensorFlowServers(Nursery):
    """Starts stock servers."""

    def __init__(self) -> None:
        super().__init__("tests.integration.tensorflow_servers", QUIET)

    def worker(self, address: str = "") -> ForkedServer:
        """A worker; it knows of nobody until a coordinator connects it."""
        return self.start("worker", "0", address or free_address())

    def parameter_servers(self, count: int) -> list[ForkedServer]:
        addresses = [free_address() for _ in range(count)]
        return [self.start("ps", str(index), *addresses) for index in range(count)]


def _serve(arguments: list[str], ready: Callable[[str], None]) -> None:
    from elastane.tensorflow.server import serve

    job, index, *addresses = arguments
    serve(job, int(index), addresses, ready)


if __name__ == "__main__":
    import elastane.tensorflow.server  # noqa: F401  # once, for all that are forked

    fork_servers(_serve)
