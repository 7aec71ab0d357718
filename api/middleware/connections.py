"""Adds read timeouts and a connection limit to uvicorn's HTTP protocol."""

from __future__ import annotations

import asyncio
import socket
from typing import Any, Final

from uvicorn.protocols.http.h11_impl import H11Protocol

from .gate import MAX_HEAD_BYTES

#: Timeout in seconds for the head of a request, from its first byte or the start of the connection.
HEAD_S: Final = 10.0

#: Most concurrent connections; further ones get a response that asks to retry.
MAX_CONNECTIONS: Final = 2048

#: Milliseconds after which a connection is closed whose client acknowledges no data.
_STALLED_MS: Final = 30_000


class ImpatientProtocol(H11Protocol):
    """An HTTP protocol that closes a connection whose client starts a request and does not finish its head.

    uvicorn has a timeout between requests only: a client that sends a header byte now and then would hold its
    connection for ever.
    """

    head_s = HEAD_S

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the timeout for the first request."""
        super().connection_made(transport)
        self._patience: asyncio.TimerHandle | None = None
        self._wait_for_head()

    def data_received(self, data: bytes) -> None:
        """Cancel the timeout once the request is known; restart it for one whose head is incomplete."""
        super().data_received(data)
        is_answering = self.cycle is not None and not self.cycle.response_complete
        if is_answering:
            self._be_patient()
        elif self._patience is None:
            self._wait_for_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel the timeout."""
        self._be_patient()
        super().connection_lost(exc)

    def _wait_for_head(self) -> None:
        self._patience = self.loop.call_later(self.head_s, self._give_up)

    def _be_patient(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None

    def _give_up(self) -> None:
        self._patience = None
        if self.cycle is None or self.cycle.response_complete:
            self.transport.abort()


def settings() -> dict[str, Any]:
    """Return uvicorn's settings for connections."""
    return {
        "http": ImpatientProtocol,
        "h11_max_incomplete_event_size": MAX_HEAD_BYTES,
        "limit_concurrency": MAX_CONNECTIONS,
        "timeout_keep_alive": 30,
        "timeout_graceful_shutdown": 2,
        "server_header": False,
        "ws": "none",
        # The process' own log configuration applies. uvicorn's would write access logs to stdout, with queries.
        "log_config": None,
        "access_log": False,
    }


def prepare(listener: socket.socket) -> None:
    """Set the options of a listening socket that every accepted connection inherits."""
    # asyncio sets this on its own sockets only. Without it, every response waits 40 ms for the client's ACK.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if hasattr(socket, "TCP_USER_TIMEOUT"):  # Linux.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _STALLED_MS)
