"""ASGI middleware for a server behind a reverse proxy that serves it under a path, such as ``/steptape``."""

from __future__ import annotations

import re
from typing import Final

from starlette.types import ASGIApp, Receive, Scope, Send

from ...store.errors import TelemetryError

_ROOT: Final = re.compile(r"(/[A-Za-z0-9._~-]+)+")


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
