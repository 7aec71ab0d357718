"""ASGI middleware that checks the Host, Origin and token of a request before the application sees it.

A browser on this machine that shows another site's page can reach 127.0.0.1, too. The page may use a domain of its own
that resolves there: the Host header then holds that domain. Or it may submit a form: the Origin header is then the
page's.

Tokens are lines of text that map to holders and scopes. Wrong tokens are not counted and not delayed. A token made as
the server advises has 192 bits, beyond any rate of guesses, and tokens are compared in constant time. Behind a proxy
all clients share one address, so one of them could lock out the others. ``/metrics`` counts 401 responses.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Send
from starlette.types import Scope as AsgiScope

from ...store.errors import TelemetryError
from ..problems import Sort, refusal

LOOPBACK_NAMES: Final = frozenset({"localhost", "127.0.0.1", "::1"})

#: Paths without a token: for probes, and for users who have yet to sign in.
_OPEN: Final = frozenset({"/healthz", "/readyz", "/login", "/logout"})
_OPEN_FOLDER: Final = "/static/"

#: Methods that change nothing.
_SAFE: Final = frozenset({"GET", "HEAD", "OPTIONS"})

#: POST requests that change nothing: queries and rule trials.
_QUESTIONS: Final = re.compile(r"/api/v1/(query|rules/(check|test|firings|proposals))")

#: A request that changes nothing and may cost seconds: pages of other sites may link to it, but not load it.
_COSTLY: Final = "/api/v1/query"

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

#: Length of the shortest accepted token: 16 characters of base64 are 96 bits.
MIN_LENGTH: Final = 16


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
        is_visit = scope["path"] != _COSTLY or headers.get("sec-fetch-mode") == "navigate"
        if scope["method"] in _SAFE and is_visit:
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


class Scope(IntEnum):
    """The permissions of a token; ``WRITE`` includes ``READ``, and ``ADMIN`` includes all.

    ``RECORD`` pushes runs and reads nothing: a training job needs no more. ``READ`` reads, including SQL queries and
    rule checks. ``WRITE`` annotates runs, asks running ones to stop, save or evaluate, starts jobs and cancels its own,
    and saves rule files.
    ``ADMIN`` pushes, too, and cancels the jobs of all tokens.
    """

    RECORD = 0
    READ = 1
    WRITE = 2
    ADMIN = 3

    def allows(self, needed: Scope) -> bool:
        """Whether a token of this scope may do what needs the other one.

        >>> Scope.WRITE.allows(Scope.READ), Scope.WRITE.allows(Scope.RECORD), Scope.ADMIN.allows(Scope.RECORD)
        (True, False, True)
        """
        return self in (needed, Scope.ADMIN) or (needed > Scope.RECORD and self > needed)


@dataclass(frozen=True, slots=True)
class Holder:
    """The name and scope of a token's owner."""

    name: str
    scope: Scope


#: The holder where no tokens are needed: a client on this machine.
LOCAL: Final = Holder("local", Scope.ADMIN)


class Tokens:
    """The tokens that a server knows, kept as hashes and compared in constant time.

    Args:
        holders: Pairs of token and holder.
    """

    def __init__(self, holders: Iterable[tuple[str, Holder]]) -> None:
        self._holders = [(_hashed(token), holder) for token, holder in holders]

    def __len__(self) -> int:
        return len(self._holders)

    def holder_of(self, token: str) -> Holder | None:
        """Return the holder of a token; None when it is unknown. Takes the same time in every case."""
        hashed = _hashed(token)
        found: Holder | None = None
        for known, holder in self._holders:
            if hmac.compare_digest(known, hashed):
                found = holder
        return found


def parse_tokens(text: str, *, source: str) -> Tokens:
    """Parse lines of ``token scope name``; blank lines and those that begin with ``#`` are skipped.

    Raises:
        TelemetryError: A line does not parse, two have one name, or there are no tokens. The message shows no token.
    """
    holders: list[tuple[str, Holder]] = []
    for number, line in enumerate(text.splitlines(), start=1):
        words = line.split(maxsplit=2)
        if not words or words[0].startswith("#"):
            continue
        where = f"{source}:{number}"
        if len(words) < 3 or words[1].upper() not in Scope.__members__:
            raise TelemetryError(
                "a line must hold a token, a scope and a name",
                where=where,
                fix="Scopes are record, read, write and admin",
            )
        if len(words[0]) < MIN_LENGTH:
            raise TelemetryError(
                f"a token must have at least {MIN_LENGTH} characters",
                where=where,
                fix="To make one: python -c 'import secrets; print(secrets.token_urlsafe(24))'",
            )
        name = words[2].strip()
        if name in (holder.name for _, holder in holders):
            raise TelemetryError(
                "two tokens have the same name, and would own each other's runs",
                where=where,
                got=name,
                fix="Give each token a name of its own",
            )
        holders.append((words[0], Holder(name, Scope[words[1].upper()])))
    if not holders:
        raise TelemetryError("there are no tokens", where=source, fix="Each line holds a token, a scope and a name")
    return Tokens(holders)


def read_tokens(path: Path) -> Tokens:
    """Read tokens from a file.

    Raises:
        TelemetryError: It cannot be read, others than its owner can read it, or a line is wrong.
    """
    try:
        if path.stat().st_mode & 0o077:
            raise TelemetryError(
                "other users can read the tokens", where=str(path), fix=f"Run chmod 600 {path}, and change the tokens"
            )
        return parse_tokens(path.read_text(encoding="utf-8"), source=str(path))
    except (OSError, UnicodeDecodeError) as error:
        raise TelemetryError(f"tokens cannot be read ({type(error).__name__})", where=str(path)) from None


def _hashed(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()
