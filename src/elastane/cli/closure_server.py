"""A server beside a node of a coordinator's job: `python -m elastane.cli.closure_server KIND FD INDEX ADDRESS...`.

KIND is `python` for elastane's worker server, whose address is but a host, or `worker` or `ps` for a stock TensorFlow
server of that job. When it is ready it writes its address to the descriptor FD. The first kind reads from its standard
input who has what of the job's parameter servers. It ends with the process that started it.
"""

from __future__ import annotations

import os
import signal
import sys

from elastane.platform.local.prctl import die_with_parent


def _serve_python(ready: int, host: str) -> None:
    from elastane.coordinator.coordinator import token_of_environment
    from elastane.coordinator.server_maps import MapPipe, use_server_maps
    from elastane.coordinator.worker_server import WorkerServer

    use_server_maps(MapPipe())
    server = WorkerServer(token_of_environment(), host)
    signal.signal(signal.SIGTERM, lambda *_: server.stop_soon())
    _say(ready, server.address)
    server.serve()


def _say(ready: int, address: str) -> None:
    os.write(ready, address.encode())
    os.close(ready)


def main(kind: str, ready: str, index: str, *addresses: str) -> None:
    die_with_parent()
    if kind == "python":
        _serve_python(int(ready), addresses[0])
    else:
        from elastane.tensorflow.server import serve

        serve(kind, int(index), addresses, lambda address: _say(int(ready), address))


if __name__ == "__main__":
    main(*sys.argv[1:])
