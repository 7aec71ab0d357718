"""ASGI middleware that keeps a run name with a slash, sent as ``%2F``, in one path segment."""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import unquote

from starlette.types import ASGIApp, Receive, Scope, Send

from ..access import RUN_KEY

#: The path segment of a run with a slash inside it, as it was sent, and the path before and after it.
_IN_PATH: Final = re.compile(rb"(?P<before>(?:/api/v1)?/runs/)(?P<run>[^/]*%2[Ff][^/]*)(?P<behind>/.*)?")


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
