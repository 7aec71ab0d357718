"""ASGI middleware that checks the Host, Origin and token of a request before the application sees it.

A browser on this machine that shows another site's page can reach 127.0.0.1, too. The page may use a domain of its own
that resolves there: the Host header then holds that domain. Or it may submit a form: the Origin header is then the
page's.

Wrong tokens are not counted and not delayed. A token made as the server advises has 192 bits, beyond any rate of
guesses, and tokens are compared in constant time. Behind a proxy all clients share one address, so one of them could
lock out the others. ``/metrics`` counts 401 responses.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Final
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Send
from starlette.types import Scope as AsgiScope

from ..problems import Sort, refusal
from .tokens import LOCAL, Holder, Scope, Tokens

LOOPBACK_NAMES: Final = frozenset({"localhost", "127.0.0.1", "::1"})

#: Paths without a token: for probes, and for users who have yet to sign in.
_OPEN: Final = frozenset({"/healthz", "/readyz", "/login", "/logout"})
_OPEN_FOLDER: Final = "/static/"

#: Methods that change nothing.
_SAFE: Final = frozenset({"GET", "HEAD", "OPTIONS"})

#: POST requests that change nothing: queries and rule trials.
_QUESTIONS: Final = re.compile(r"/api/v1/(query|rules/check|rules/test)")

#: What pushers send, and what they ask.
_PUSHES: Final = "/api/v1/intake/"

_HOST: Final = re.compile(r"(?:\[(?P<v6>[0-9A-Fa-f:.]+)\]|(?P<name>[A-Za-z0-9._-]+))(?::\d{1,5})?")

#: Most bytes of all headers of a request.
MAX_HEAD_BYTES: Final = 32 << 10

_LARGE: Final = Sort(431, "headers-too-large", "The headers are too large")
_MISDIRECTED: Final = Sort(421, "misdirected-request", "This server has another name")
_FOREIGN: Final = Sort(403, "foreign-origin", "The request comes from a page of another site")
_UNAUTHORIZED: Final = Sort(401, "unauthorized", "A token is needed")
_FORBIDDEN: Final = Sort(403, "forbidden", "The token does not allow this")
_TWO_LENGTHS: Final = Sort(400, "two-lengths", "The request has two lengths")

#: Further headers of refusals. A proxy may see the end of a body with two lengths elsewhere, and so another request.
_HEADERS: Final = {
    _UNAUTHORIZED: {"WWW-Authenticate": 'Bearer realm="steptape"'},
    _TWO_LENGTHS: {"Connection": "close"},
}


class HostAndTokenMiddleware:
    """ASGI middleware that refuses requests with a wrong host, a foreign origin, or a token without the required scope.

    Args:
        app: The next application.
        hosts: Names of the server, in lower case, without ports.
        tokens: The known tokens; None lets every client do everything.
    """

    def __init__(self, app: ASGIApp, *, hosts: Collection[str], tokens: Tokens | None) -> None:
        self._app = app
        self._hosts = frozenset(hosts)
        self._tokens = tokens

    async def __call__(self, scope: AsgiScope, receive: Receive, send: Send) -> None:
        """Pass the request on with ``holder`` in its state, or refuse it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        found = self._check_address(scope, headers) or self._admit(scope, headers)
        if isinstance(found, Holder):
            scope.setdefault("state", {})["holder"] = found
            await self._app(scope, receive, send)
            return
        sort, detail = found
        await refusal(sort, detail, headers=_HEADERS.get(sort))(scope, receive, send)

    def _check_address(self, scope: AsgiScope, headers: Headers) -> tuple[Sort, str] | None:
        if sum(len(name) + len(value) for name, value in headers.raw) > MAX_HEAD_BYTES:
            return _LARGE, f"Headers may have at most {MAX_HEAD_BYTES:,} bytes in total"
        if "content-length" in headers and "transfer-encoding" in headers:
            return _TWO_LENGTHS, "A request has either Content-Length or Transfer-Encoding"
        hosts = headers.getlist("host")
        if len(hosts) != 1 or _name_in(hosts[0]) not in self._hosts:
            return (
                _MISDIRECTED,
                "This server does not answer for the name in the Host header (--allowed-host adds a name)",
            )
        if scope["method"] in _SAFE:
            return None
        origin = headers.get("origin")
        if headers.get("sec-fetch-site") in ("cross-site", "same-site"):
            return _FOREIGN, "According to Sec-Fetch-Site, a page of another site sent this request"
        if origin is not None and urlsplit(origin).netloc.lower() != hosts[0].lower():
            return _FOREIGN, "The Origin header does not name this server"
        return None

    def _admit(self, scope: AsgiScope, headers: Headers) -> Holder | tuple[Sort, str]:
        if self._tokens is None:
            return LOCAL
        if scope["path"] in _OPEN or scope["path"].startswith(_OPEN_FOLDER):
            return Holder("anonymous", Scope.READ)
        scheme, _, token = headers.get("authorization", "").partition(" ")
        holder = self._tokens.holder_of(token.strip()) if scheme.lower() == "bearer" else None
        if holder is None:
            return _UNAUTHORIZED, "Send 'Authorization: Bearer TOKEN' with a token that this server knows"
        needed = required_scope(scope["method"], scope["path"])
        if not holder.scope.allows(needed):
            return (
                _FORBIDDEN,
                f"This request needs the scope {needed.name.lower()}; the token has {holder.scope.name.lower()}",
            )
        return holder


def required_scope(method: str, path: str) -> Scope:
    """Return the scope that a token needs for a request.

    >>> required_scope("GET", "/api/v1/runs"), required_scope("POST", "/api/v1/backtests")
    (<Scope.READ: 1>, <Scope.WRITE: 2>)

    """
    if path.startswith(_PUSHES):
        return Scope.RECORD
    return Scope.READ if method in _SAFE or (method == "POST" and _QUESTIONS.fullmatch(path)) else Scope.WRITE


def _name_in(host: str) -> str | None:
    """Return the host name in a Host header, in lower case; None if it does not parse."""
    match = _HOST.fullmatch(host)
    return (match["v6"] or match["name"]).lower() if match else None
