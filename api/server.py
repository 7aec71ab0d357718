"""Serving a store on this machine, until told to stop."""

from __future__ import annotations

import contextlib
import ipaddress
import socket
import sys
from pathlib import Path

import uvicorn

from ..store import TelemetryError
from .app import create_app


def serve(store_path: str | Path, *, host: str = "127.0.0.1", port: int = 8420) -> None:
    """Serve a store over HTTP; returns when interrupted. The address goes to stderr, nothing to stdout.

    Args:
        store_path: A folder of runs.
        host: An address of this machine's own; others are refused, since there are no tokens yet.
        port: 0 takes any free one.

    Raises:
        StoreNotFound: There is no such folder.
        TelemetryError: The host is not loopback, or the port cannot be had.
    """
    if not is_loopback(host):
        raise TelemetryError(
            "only this machine may be served, since requests carry no token",
            where="host",
            got=host,
            fix="Use 127.0.0.1, and reach it from elsewhere by 'ssh -L'",
        )
    app = create_app(store_path)
    with _listening(host, port) as listener:
        address = f"[{host}]" if ":" in host else host
        url = f"http://{address}:{listener.getsockname()[1]}/api/v1/runs"
        sys.stderr.write(f"steptape: {store_path} is served at {url} (Ctrl-C ends it)\n")
        sys.stderr.flush()
        # Access logs are off: uvicorn would write them to stdout.
        config = uvicorn.Config(app, log_level="warning", access_log=False, ws="none")
        with contextlib.suppress(KeyboardInterrupt):
            uvicorn.Server(config).run([listener])


def is_loopback(host: str) -> bool:
    """Whether the host is this machine and can be reached from this machine alone.

    >>> is_loopback("::1"), is_loopback("0.0.0.0")
    (True, False)
    """
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _listening(host: str, port: int) -> socket.socket:
    """A socket that listens already, so that the address can be told before the first request."""
    try:
        if not 0 <= port <= 65535:
            raise OSError("ports end at 65535")
        listener = socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        raise TelemetryError(
            f"cannot listen there ({error})", where=f"{host}:{port}", fix="Choose another port"
        ) from None
    # asyncio does this only for sockets that it made itself. Without it, every answer waits 40 ms for the client's ACK.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener
