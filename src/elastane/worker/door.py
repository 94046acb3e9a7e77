"""How a guest, a process that nobody launched for the job, finds the job's master and gets in."""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from elastane.model.environment import ENV_MASTER, ENV_NODE, ENV_TOKEN, ENV_TOKEN_FILE
from elastane.model.errors import InvalidInput
from elastane.model.ids import NodeName


@dataclass(frozen=True)
class Door:
    """Where the master is, the token that opens, and the name to come under."""

    address: str
    token: str
    node: NodeName

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
        return cls(address, token, NodeName(env.get(ENV_NODE) or f"{kind}-{secrets.token_hex(4)}"))


def _read(token_file: str) -> str:
    try:
        return Path(token_file).read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(f'{ENV_TOKEN_FILE}: "{token_file}" cannot be read: {error}') from None
