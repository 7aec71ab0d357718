"""ASGI middleware that rewrites requests: the root path of a proxy, HEAD, and names of runs with a slash.

A server behind a reverse proxy is served under a path, such as ``/steptape``. HEAD is answered as GET, without a body.
A name with a slash, sent as ``%2F``, stays in one path segment.
"""

from __future__ import annotations

import asyncio
import re
from typing import Final
from urllib.parse import unquote

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ...store.errors import TelemetryError
from ..access import RUN_KEY

_ROOT: Final = re.compile(r"(/[A-Za-z0-9._~-]+)+")

#: The path segment of a run with a slash inside it, as it was sent, and the path before and after it.
_IN_PATH: Final = re.compile(rb"(?P<before>(?:/api/v1)?/runs/)(?P<run>[^/]*%2[Ff][^/]*)(?P<behind>/.*)?")


class RootPathMiddleware:
    """ASGI middleware that removes the root path from requests, which some proxies leave in place.

    Args:
        app: The application, whose paths begin after the root path.
        root_path: The root path; empty without one.
    """

    def __init__(self, app: ASGIApp, root_path: str) -> None:
        self._app = app
        self._root = root_path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on."""
        if self._root and scope["type"] == "http" and f"{scope['path']}/".startswith(f"{self._root}/"):
            raw = scope["raw_path"].removeprefix(self._root.encode()) or b"/"
            scope = {**scope, "path": scope["path"].removeprefix(self._root) or "/", "raw_path": raw}
        await self._app(scope, receive, send)


def checked_root(root_path: str) -> str:
    """Return a root path without a slash at its end; empty for none.

    Raises:
        TelemetryError: It is no path.

    >>> checked_root("/steptape/"), checked_root("/"), checked_root("")
    ('/steptape', '', '')
    """
    root = root_path.rstrip("/")
    if root and _ROOT.fullmatch(root) is None:
        raise TelemetryError("not a root path", got=root_path, fix="Write it as in /steptape")
    return root


class HeadMiddleware:
    """ASGI middleware that turns HEAD into GET for the application. It ends an endless stream after its headers."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, and return the head of the response."""
        if scope["type"] != "http" or scope["method"] != "HEAD":
            await self._app(scope, receive, send)
            return
        is_answered = asyncio.Event()
        is_asked = False

        async def send_head(message: Message) -> None:
            if message["type"] == "http.response.start":
                await send(message)
                await send({"type": "http.response.body", "body": b"", "more_body": False})
                is_answered.set()

        async def receive_once() -> Message:
            nonlocal is_asked
            if is_asked:
                await is_answered.wait()
                return {"type": "http.disconnect"}
            is_asked = True
            return {"type": "http.request", "body": b"", "more_body": False}

        await self._app({**scope, "method": "GET"}, receive_once, send_head)


class SlashedNameMiddleware:
    """ASGI middleware that keeps such a name in one piece: servers decode a path before routing splits it."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, with the decoded name in its state and the encoded one in its path."""
        if scope["type"] == "http" and (match := _IN_PATH.fullmatch(scope.get("raw_path") or b"")):
            before, run, behind = (part.decode("latin-1") for part in match.groups(b""))
            scope["path"] = before + run + unquote(behind)
            scope.setdefault("state", {})[RUN_KEY] = unquote(run)
        await self._app(scope, receive, send)
