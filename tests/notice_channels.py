"""Channels on loopback that take notices: web hooks that keep what comes, or that hang, and a mail server."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from email import message_from_bytes, policy
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from aiosmtpd.controller import Controller


@dataclass
class Hook:
    """A web hook.

    Attributes:
        address: As apprise writes it; the last part is a secret.
        titles, texts: Of the notices that came.
    """

    address: str
    status: int = 200
    titles: list[str] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)


@contextmanager
def hook(status: int = 200) -> Iterator[Hook]:
    """Serve a web hook, which answers each notice with this status; one of 3xx leads to a page."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            sent = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            taken.titles.append(sent["title"])
            taken.texts.append(sent["message"])
            self.send_response(taken.status)
            self.send_header("Content-Length", "0")
            self.send_header("Location", "/a-page")
            self.end_headers()

        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Print nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    taken = Hook(f"json://127.0.0.1:{server.server_port}/s3cret-token", status)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield taken
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextmanager
def hanging() -> Iterator[str]:
    """Return the address of a web hook that takes a connection and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"json://127.0.0.1:{server.getsockname()[1]}/s3cret-token?cto=99999&rto=99999"


def refusing() -> str:
    """Return the address of a web hook at which nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return f"json://127.0.0.1:{server.getsockname()[1]}/s3cret-token"


@contextmanager
def mailbox() -> Iterator[tuple[str, list[Any]]]:
    """Serve mail: return the address as apprise writes it, and the list of messages that come."""
    messages: list[Any] = []

    class Handler:
        async def handle_DATA(self, _server: object, _session: object, envelope: Any) -> str:  # noqa: N802 - aiosmtpd's
            messages.append(message_from_bytes(envelope.content, policy=policy.default))
            return "250 OK"

    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    controller = Controller(Handler(), hostname="127.0.0.1", port=port)
    controller.start()
    try:
        yield f"mailto://127.0.0.1:{port}?from=lab@example.org&to=me@example.org&mode=insecure", messages
    finally:
        controller.stop()
