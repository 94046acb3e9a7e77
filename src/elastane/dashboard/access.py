"""Who may see the dashboard, and who may act: the link's token, sessions, and one nonce for each action.

A request must name this machine as its host, so that no foreign name can be made to lead here; an action must come from
a page of this dashboard, and bring a nonce that was given to that page and never used.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import ipaddress
import secrets
import socket
from collections import OrderedDict
from http.cookies import CookieError, SimpleCookie
from urllib.parse import urlsplit

MOST_SESSIONS = 64
MOST_NONCES = 64
"""So many unused ones are kept for a session: a few for each page that is open."""


def job_dashboard_token(job_token: str) -> str:
    """The token of one job's dashboard: who has the job's own can make it, and from it nobody can make the job's."""
    digest = hmac.new(job_token.encode(), b"elastane dashboard", hashlib.sha256).digest()
    return base64.urlsafe_b64encode(digest).decode().rstrip("=")


class Session:
    """One browser that came with the link."""

    def __init__(self) -> None:
        self._nonces: OrderedDict[str, None] = OrderedDict()

    def nonce(self) -> str:
        """A new one, for one action."""
        made = secrets.token_urlsafe(24)
        self._nonces[made] = None
        if len(self._nonces) > MOST_NONCES:
            self._nonces.popitem(last=False)
        return made

    def spend(self, nonce: str) -> bool:
        """Use one up; False if it was not given here, or was used."""
        return self._nonces.pop(nonce, 0) is None


class Access:
    """The sessions of one dashboard. `port` is in the cookie's name: browsers do not tell ports apart."""

    def __init__(self, token: str, port: int) -> None:
        self._token = token.encode()
        self.cookie = f"elastane-{port}"
        self._sessions: OrderedDict[str, Session] = OrderedDict()

    def enter(self, token: str) -> str | None:
        """The name of a new session for who has the token, else None."""
        if not hmac.compare_digest(token.encode(), self._token):
            return None
        name = secrets.token_urlsafe(32)
        self._sessions[name] = Session()
        if len(self._sessions) > MOST_SESSIONS:
            self._sessions.popitem(last=False)
        return name

    def session(self, cookies: str) -> Session | None:
        """The session of a request's Cookie header."""
        try:
            found = SimpleCookie(cookies).get(self.cookie)
        except CookieError:
            return None
        return None if found is None else self._sessions.get(found.value)


def host_is_ours(host: str) -> bool:
    """Whether a Host header can only mean this machine: a plain address, or a name of it.

    An attacker's own name may be made to lead to any address; an address cannot be made to lead elsewhere. The port may
    be another one, for a tunnel may end here.
    """
    try:
        name = urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return False
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return name in ("localhost", socket.gethostname().lower())
    return True


def is_same_origin(origin: str, host: str) -> bool:
    """Whether an Origin header names the host that the request came to."""
    return origin in (f"http://{host}", f"https://{host}")
