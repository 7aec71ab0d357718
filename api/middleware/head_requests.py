"""ASGI middleware that answers HEAD as GET, without the body."""

from __future__ import annotations

import asyncio

from starlette.types import ASGIApp, Message, Receive, Scope, Send


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
