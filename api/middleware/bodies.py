"""ASGI middleware that refuses request bodies that are too large, too slow, compressed or of an unsupported type.

It reads the whole body before the application sees the request, so that a slow client costs a connection and not a
thread.
"""

from __future__ import annotations

import asyncio
import re
from typing import Final

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ..limits import Limits
from ..problems import Sort, refusal

_TOO_LARGE: Final = Sort(413, "body-too-large", "The body is too large")
_TOO_SLOW: Final = Sort(408, "body-too-slow", "The body did not arrive in time")
_ENCODED: Final = Sort(415, "unsupported-media-type", "The body has an unsupported type")

#: Methods with a meaningful body.
_WITH_BODY: Final = frozenset({"POST", "PUT", "PATCH"})

#: The only form is the sign-in. It is open to clients without a token, and changes nothing.
_FORM_PATH: Final = "/login"
_FORM: Final = "application/x-www-form-urlencoded"

#: What pushers bring: larger bodies, and slower ones.
_INTAKE: Final = re.compile(r"/api/v1/intake/[^/]+/(frames|papers|end)")
_CHUNK: Final = re.compile(r"/api/v1/intake/[^/]+/frames")
_BYTES: Final = "application/octet-stream"


class BodyLimitMiddleware:
    """ASGI middleware that refuses bodies beyond the limits, and compressed ones: a kilobyte may become a gigabyte."""

    def __init__(self, app: ASGIApp, *, limits: Limits) -> None:
        self._app = app
        self._limits = limits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on with its body, or refuse it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        most_bytes, most_s = self._limits_of(scope["path"])
        found = _declared_fault(scope, headers, most_bytes)
        body = b""
        if found is None and _has_body(headers):
            try:
                async with asyncio.timeout(most_s):
                    taken = await _taken(receive, most_bytes)
            except TimeoutError:
                found = _TOO_SLOW, f"A body must arrive within {most_s:g} s"
            else:
                if taken is None:
                    return
                body = taken
                if len(body) > most_bytes:
                    found = _too_large(most_bytes)
        if found is not None:
            # The unread rest of the body would be parsed as the next request.
            await refusal(*found, headers={"Connection": "close"})(scope, receive, send)
            return
        await self._app(scope, _replayed(body, receive), send)

    def _limits_of(self, path: str) -> tuple[int, float]:
        """Return the most bytes and seconds of a body."""
        if _INTAKE.fullmatch(path):
            return self._limits.intake.chunk_bytes, self._limits.intake_body_s
        return self._limits.body_bytes, self._limits.body_s


def _declared_fault(scope: Scope, headers: Headers, most_bytes: int) -> tuple[Sort, str] | None:
    length = headers.get("content-length", "0")
    if length.isdecimal() and int(length) > most_bytes:
        return _too_large(most_bytes)
    if headers.get("content-encoding", "identity").lower() != "identity":
        return _ENCODED, "Compressed bodies are not supported"
    if scope["method"] in _WITH_BODY and _has_body(headers):
        media_type = headers.get("content-type", "").partition(";")[0].strip().lower()
        if _CHUNK.fullmatch(scope["path"]):
            return None if media_type == _BYTES else (_ENCODED, f"A chunk must have Content-Type: {_BYTES}")
        if media_type != (_FORM if scope["path"] == _FORM_PATH else "application/json"):
            return _ENCODED, "A body must be JSON, with Content-Type: application/json"
    return None


def _too_large(most_bytes: int) -> tuple[Sort, str]:
    return _TOO_LARGE, f"A body may have at most {most_bytes:,} bytes"


async def _taken(receive: Receive, most_bytes: int) -> bytes | None:
    """Return the body, or the beginning of one that is too large; None when the client has gone."""
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > most_bytes or not message.get("more_body", False):
            return b"".join(parts)


def _has_body(headers: Headers) -> bool:
    return headers.get("content-length", "0") != "0" or "transfer-encoding" in headers


def _replayed(body: bytes, receive: Receive) -> Receive:
    is_told = False

    async def replay() -> Message:
        nonlocal is_told
        if is_told:
            return await receive()
        is_told = True
        return {"type": "http.request", "body": body, "more_body": False}

    return replay
