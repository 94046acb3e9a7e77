"""How a node finds its job's master and gets in, whether it was launched for the job or is a guest."""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from elastane.model.environment import (
    ENV_CERTIFICATE,
    ENV_MASTER,
    ENV_NODE,
    ENV_TOKEN,
    ENV_TOKEN_FILE,
)
from elastane.model.errors import InvalidInput
from elastane.model.ids import NodeName


@dataclass(frozen=True)
class Door:
    """Where the master is, the token that opens, and the name to come under.

    certificate: the master's, as PEM, where it is over a network.
    """

    address: str
    token: str
    node: NodeName
    certificate: str | None = None

    @property
    def host(self) -> str:
        """The address at which other nodes reach this one: that of the interface that leads to the master."""
        master, _, port = self.address.rpartition(":")
        family, _, _, _, target = socket.getaddrinfo(master.strip("[]"), int(port), type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(target)  # Sends nothing, but chooses the route.
            return str(probe.getsockname()[0])

    @classmethod
    def from_env(
        cls,
        env: Mapping[str, str] = os.environ,
        *,
        address: str | None = None,
        token_file: str | None = None,
        kind: str = "guest",
    ) -> Door:
        """What is not given is read from the environment; without a name there, a new one is made of `kind`.

        Raises InvalidInput if there is no address or no token, or the token's file cannot be read.
        """
        address = address or env.get(ENV_MASTER)
        if not address:
            raise InvalidInput(f"{ENV_MASTER}: not set; it is the address of the job's master, HOST:PORT")
        host, _, port = address.rpartition(":")
        if not host or not port.isdecimal():
            raise InvalidInput(f'{ENV_MASTER}: "{address}" is not an address; write HOST:PORT')
        token = None if token_file else env.get(ENV_TOKEN)
        token_file = token_file or env.get(ENV_TOKEN_FILE)
        if not token and token_file:
            token = _read(token_file)
        if not token:
            raise InvalidInput(f"{ENV_TOKEN}, {ENV_TOKEN_FILE}: neither is set; `elastane master` prints what to set")
        node = NodeName(env.get(ENV_NODE) or f"{kind}-{secrets.token_hex(4)}")
        return cls(address, token, node, env.get(ENV_CERTIFICATE))


def data_token(token: str) -> str:
    """The token of the ports that rows pass through. Those are not encrypted: who listens learns no more than this."""
    return hmac.new(token.encode(), b"elastane data", hashlib.sha256).hexdigest()


def _read(token_file: str) -> str:
    try:
        return Path(token_file).read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(f'{ENV_TOKEN_FILE}: "{token_file}" cannot be read: {error}') from None
