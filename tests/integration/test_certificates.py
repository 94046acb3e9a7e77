"""The control plane over a network: only the server with the job's certificate hears the token."""

from __future__ import annotations

from pathlib import Path

import pytest

from elastane.master.event_log import EventLog
from elastane.master.master import JobMaster
from elastane.model.errors import MasterUnreachable, PlatformError
from elastane.operator.secrets import new_credentials
from elastane.rpc.control_client import ControlClient
from elastane.rpc.server import RpcServer, ServerCertificate
from elastane.testing import MemoryPlatform
from tests.builders import make_job

TOKEN = "the-token"


def _certificate() -> ServerCertificate:
    made = new_credentials()
    return ServerCertificate(made.certificate.encode(), made.key.encode())


async def test_a_client_reaches_the_master_whose_certificate_it_holds_and_no_other(tmp_path: Path) -> None:
    shown = _certificate()
    events = EventLog(tmp_path / "events")
    master = JobMaster(make_job(), TOKEN, MemoryPlatform(), events, certificate=shown)
    address = await master.serve("0.0.0.0:0")
    here = f"127.0.0.1:{address.rpartition(':')[2]}"
    try:
        async with ControlClient(here, TOKEN, shown.certificate.decode()) as client:
            assert (await client.status()).job == "ctr"
        async with ControlClient(here, TOKEN, _certificate().certificate.decode()) as stranger:
            with pytest.raises(MasterUnreachable):
                await stranger.status()
        async with ControlClient(here, TOKEN) as in_the_clear:
            with pytest.raises(MasterUnreachable):
                await in_the_clear.status()
    finally:
        await master.close(0)


async def test_nothing_is_served_to_a_network_in_the_clear() -> None:
    server = RpcServer(TOKEN, lambda *_: None)
    with pytest.raises(PlatformError, match="the token would be read by others"):
        await server.start("0.0.0.0:0")
