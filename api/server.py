"""Serving a store, on this machine or with tokens to others, until told to stop."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from ..store.errors import TelemetryError
from ..store.garbage import collection_paused
from .middleware.tokens import Tokens, parse_tokens, read_tokens
from .workers.reading_ahead import reading_ahead

#: Environment variable with lines of ``token scope name``.
TOKENS_VARIABLE: Final = "STEPTAPE_TOKENS"


def serve(
    store_path: str | Path,
    *,
    host: str = "127.0.0.1",
    port: int = 8420,
    tokens_path: str | Path | None = None,
    allowed_hosts: Sequence[str] = (),
    policies_path: str | Path | None = None,
) -> None:
    """Serve a store over HTTP; returns when interrupted. The address goes to stderr, nothing to stdout.

    Args:
        store_path: A folder of runs.
        host: The address to listen on. Others than this machine's own are refused where there are no tokens.
        port: 0 takes any free one.
        tokens_path: A file with a line ``token scope name`` for each token, that its owner alone can read. Without it,
            the environment variable ``STEPTAPE_TOKENS`` may hold such lines.
        allowed_hosts: Names by which clients call the server, beside ``host`` and those of this machine itself.
        policies_path: A folder of rule files that can be asked about by name.

    Raises:
        StoreNotFound: There is no such folder.
        TelemetryError: Tokens are wrong or missing, or the port cannot be had.
    """
    tokens = _tokens(tokens_path, host)
    with reading_ahead(Path(store_path)) as ahead:
        # To load all this takes as long as to read ten thousand runs, which goes on meanwhile. It all stays: nothing of
        # it is garbage to be looked for.
        with collection_paused():
            import uvicorn

            from ..store.reading.catalog import catalog_of
            from .app import create_app
            from .middleware.connections import prepare, settings

        app = create_app(store_path, tokens=tokens, allowed_hosts=(host, *allowed_hosts), policies_path=policies_path)
        catalog_of(app.state.store_path).use_preloaded(ahead.runs)
        with _listening(host, port) as listener:
            prepare(listener)
            _announce(store_path, host, listener)
            with contextlib.suppress(KeyboardInterrupt):
                uvicorn.Server(uvicorn.Config(app, **settings())).run([listener])


def is_loopback(host: str) -> bool:
    """Whether the host is this machine and can be reached from this machine alone.

    >>> is_loopback("::1"), is_loopback("0.0.0.0")
    (True, False)
    """
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _tokens(path: str | Path | None, host: str) -> Tokens | None:
    """The tokens of the file, or else of the environment; None where this machine alone is served without any."""
    if path is not None:
        return read_tokens(Path(path))
    lines = os.environ.get(TOKENS_VARIABLE)
    if lines is not None:
        return parse_tokens(lines, source=TOKENS_VARIABLE)
    if is_loopback(host):
        return None
    raise TelemetryError(
        "only this machine may be served where requests carry no token",
        where="host",
        got=host,
        fix=f"Give --tokens FILE or {TOKENS_VARIABLE}; or use 127.0.0.1, and reach it from elsewhere by 'ssh -L'",
    )


def _announce(store_path: str | Path, host: str, listener: socket.socket) -> None:
    """Write the address to stderr."""
    address = f"[{host}]" if ":" in host else host
    url = f"http://{address}:{listener.getsockname()[1]}"
    served = f"{url}/ for people and {url}/api/v1/runs for programs"
    sys.stderr.write(f"steptape: {store_path} is served at {served} (Ctrl-C ends it)\n")
    sys.stderr.flush()


def _listening(host: str, port: int) -> socket.socket:
    """A socket that listens already, so that the address can be told before the first request."""
    try:
        if not 0 <= port <= 65535:
            raise OSError("ports end at 65535")
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        raise TelemetryError(
            f"cannot listen there ({error})", where=f"{host}:{port}", fix="Choose another port"
        ) from None
