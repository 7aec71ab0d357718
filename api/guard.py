"""The outermost edge of the application: what no handler foresaw is logged in full and answered with nothing of it."""

from __future__ import annotations

import logging
from typing import Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .problems import internal_error

_LOGGER: Final = logging.getLogger("steptape.api")


class Guard:
    """ASGI middleware that answers unexpected errors with a problem.

    Starlette's own middleware for this raises the error again behind its answer, upon which uvicorn cuts the connection
    under the client's next request.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, and answer in place of what fails."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        is_answered = False

        async def watched_send(message: Message) -> None:
            nonlocal is_answered
            is_answered = True
            await send(message)

        try:
            await self._app(scope, receive, watched_send)
        except Exception:
            # One request's failure must not end the server, nor tell the client about its inside.
            if is_answered:
                raise
            _LOGGER.exception("%s %s failed", scope["method"], scope["path"])
            await internal_error()(scope, receive, send)
