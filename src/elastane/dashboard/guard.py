"""Guard: stands before every request, and puts the same strict headers on every answer."""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qs, urlencode

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from elastane.dashboard.access import Access, Session, host_is_ours, is_same_origin

NONCE_HEADER = "X-Elastane-Nonce"

HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "form-action 'none'; base-uri 'none'; frame-ancestors 'none'; "
        "require-trusted-types-for 'script'; trusted-types 'none'"
    ),
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}

WITHOUT_THE_LINK = "Open the link that elastane printed: this dashboard is only for who has it.\n"


class Guard:
    """An ASGI application before another. What it lets through has a session in its scope."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app = app
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return  # No websockets: a connection that is not answered is closed.

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
            await send(message)

        refusal = self._refusal(scope)
        await (self._app if refusal is None else refusal)(scope, receive, send_with_headers)

    def _refusal(self, scope: Scope) -> Response | None:
        """What is answered in place of the application; None if the request may pass."""
        headers = Headers(scope=scope)
        host = headers.get("host", "")
        if not host_is_ours(host):
            return PlainTextResponse(f"{_plain(host)} is no name of this machine.\n", 421)
        if scope["method"] not in ("GET", "POST"):
            return PlainTextResponse("Only GET and POST are answered.\n", 405)
        if scope["method"] == "GET" and b"token=" in scope["query_string"]:
            return self._enter(scope)
        session = self._access.session(headers.get("cookie", ""))
        if session is None:
            return PlainTextResponse(WITHOUT_THE_LINK, 401)
        if scope["method"] == "POST":
            return self._refused_action(scope, headers, host, session)
        scope["session"] = session
        return None

    def _enter(self, scope: Scope) -> Response:
        """Make a session of the link's token, and lead to the same page without it."""
        given = parse_qs(scope["query_string"].decode("latin-1"))
        name = self._access.enter(given.pop("token", [""])[0])
        if name is None:
            return PlainTextResponse(WITHOUT_THE_LINK, 401)
        rest = urlencode(given, doseq=True)
        # A path that begins with two slashes would lead to another host.
        target = "/" + scope["path"].lstrip("/") + (f"?{rest}" if rest else "")
        answer = RedirectResponse(target, 303)
        answer.set_cookie(self._access.cookie, name, httponly=True, samesite="strict", path="/")
        return answer

    def _refused_action(self, scope: Scope, headers: Headers, host: str, session: Session) -> Response | None:
        if not is_same_origin(headers.get("origin", ""), host):
            return PlainTextResponse("An action must come from the dashboard's own page.\n", 403)
        if headers.get("sec-fetch-site", "same-origin") != "same-origin":
            return PlainTextResponse("An action must come from the dashboard's own page.\n", 403)
        if not session.spend(headers.get(NONCE_HEADER, "")):
            return PlainTextResponse("This was asked before, or by a page that is too old: load it again.\n", 403)
        scope["session"] = session
        return None


def session_of(scope: Any) -> Session:
    """The session of a request that the guard let through."""
    session: Session = scope["session"]
    return session


def _plain(text: str) -> str:
    return "".join(character for character in text[:100] if character.isprintable())
