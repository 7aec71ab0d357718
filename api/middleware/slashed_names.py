"""Names of runs that hold a slash: sent as ``%2F`` in a path, it divides nothing. ASGI middleware."""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import unquote

from starlette.types import ASGIApp, Receive, Scope, Send

from ..access import RUN_KEY

#: A run's part of a path as it was sent, with a slash inside it, and what stands before and behind.
_IN_PATH: Final = re.compile(rb"(?P<before>(?:/api/v1)?/runs/)(?P<run>[^/]*%2[Ff][^/]*)(?P<behind>/.*)?")


class SlashedNameMiddleware:
    """Keeps such a name in one piece: servers decode a path before it is taken apart."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, with the name in its state and as it was sent in its path."""
        if scope["type"] == "http" and (match := _IN_PATH.fullmatch(scope.get("raw_path") or b"")):
            before, run, behind = (part.decode("latin-1") for part in match.groups(b""))
            scope["path"] = before + run + unquote(behind)
            scope.setdefault("state", {})[RUN_KEY] = unquote(run)
        await self._app(scope, receive, send)
