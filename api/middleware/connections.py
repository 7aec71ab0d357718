"""Connections: how long a client may take to say what it wants, and how much it may say: uvicorn's HTTP, with that."""

from __future__ import annotations

import asyncio
import socket
from typing import Any, Final

from uvicorn.protocols.http.h11_impl import H11Protocol

from .host_and_token import MAX_HEAD_BYTES

#: Seconds until the head of a request has to be there, from its first byte or the connection's beginning on.
HEAD_S: Final = 10.0

#: Connections at a time; what comes beyond is told to come back.
MAX_CONNECTIONS: Final = 512

#: Milliseconds until a client that acknowledges nothing of an answer is given up.
_STALLED_MS: Final = 30_000


class ImpatientProtocol(H11Protocol):
    """Closes a connection whose client has begun a request and does not go on.

    uvicorn has a time limit between requests only: a client that sends a byte of a header now and then would hold its
    connection for ever.
    """

    head_s = HEAD_S

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for a request."""
        super().connection_made(transport)
        self._patience: asyncio.TimerHandle | None = None
        self._wait_for_head()

    def data_received(self, data: bytes) -> None:
        """Wait no longer once the request is known, and anew for one whose head is not there yet."""
        super().data_received(data)
        is_answering = self.cycle is not None and not self.cycle.response_complete
        if is_answering:
            self._be_patient()
        elif self._patience is None:
            self._wait_for_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait no more."""
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
    """How uvicorn is to deal with connections."""
    return {
        "http": ImpatientProtocol,
        "h11_max_incomplete_event_size": MAX_HEAD_BYTES,
        "limit_concurrency": MAX_CONNECTIONS,
        "timeout_keep_alive": 30,
        "timeout_graceful_shutdown": 2,
        "server_header": False,
        "ws": "none",
        "log_level": "warning",
        # uvicorn would write access logs to stdout.
        "access_log": False,
    }


def prepare(listener: socket.socket) -> None:
    """Set on a listening socket what every connection that it accepts is to have."""
    # asyncio does this only for sockets that it made itself. Without it, every answer waits 40 ms for the client's ACK.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if hasattr(socket, "TCP_USER_TIMEOUT"):  # Linux.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _STALLED_MS)
