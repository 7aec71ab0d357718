"""Runs the HTTP server for a store until it is interrupted, on this machine or, with tokens, for others."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import resource
import socket
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from ..store.errors import TelemetryError
from ..store.objects.mirror_access import address_of
from ..store.own_process import collection_paused
from ..store.store import local_folder
from .limits import DEFAULT_LIMITS
from .logs import LogFormat, LogLevel, write_log
from .middleware.gate import Tokens, parse_tokens, read_tokens
from .server_sealing import sealing_store

#: Environment variable with lines of ``token scope name``.
TOKENS_VARIABLE: Final = "STEPTAPE_TOKENS"

#: Open files that a server with all its connections may need.
_OPEN_FILES: Final = 4096


def serve(
    store_path: str | Path,
    *,
    host: str = "127.0.0.1",
    port: int = 8420,
    tokens_path: str | Path | None = None,
    allowed_hosts: Sequence[str] = (),
    policies_path: str | Path | None = None,
    quota_bytes: int | None = None,
    root_path: str = "",
    gauges: Sequence[str] = (),
    log_level: LogLevel = LogLevel.WARNING,
    log_format: LogFormat = LogFormat.TEXT,
) -> None:
    """Serve a store over HTTP; return when interrupted. Writes the address to stderr, nothing to stdout.

    Also seals the journals of dead runs, at the start and then every hour.

    Args:
        store_path: A folder of runs, or ``s3://BUCKET[/PREFIX]``, which is only read.
        host: The address to listen on. Without tokens, only loopback addresses are allowed.
        port: The port; 0 takes any free one.
        tokens_path: A file with a line ``token scope name`` for each token, readable by its owner alone. Without it,
            the environment variable ``STEPTAPE_TOKENS`` may hold such lines.
        allowed_hosts: Names that clients use for the server, in addition to ``host`` and those of this machine.
        policies_path: A folder of rule files that clients can name.
        quota_bytes: Most bytes of the runs that one token pushes; a terabyte if not given.
        root_path: The path under which a reverse proxy serves the pages; empty without one.
        gauges: Metrics of running runs that ``/metrics`` has.
        log_level: The least serious records of the log on stderr. Requests are of level ``info``.
        log_format: Whether a record is a line of text or a JSON object.

    Raises:
        StoreNotFound: There is no such folder.
        TelemetryError: Tokens are wrong or missing, or the port is unavailable.
    """
    write_log(log_level, log_format)
    tokens = _tokens(tokens_path, host)
    # These imports make many objects that all stay: garbage collection would find nothing.
    with collection_paused():
        import uvicorn

        from .app import create_app
        from .middleware.connections import prepare, settings

    hosts, limits = (host, *allowed_hosts), DEFAULT_LIMITS
    if quota_bytes is not None:
        limits = replace(limits, intake=replace(limits.intake, owner_bytes=quota_bytes))
    folder = local_folder(store_path)
    app = create_app(
        folder,
        tokens=tokens,
        allowed_hosts=hosts,
        policies_path=policies_path,
        limits=limits,
        root_path=root_path,
        gauges=gauges,
    )
    with _listening(host, port) as listener:
        prepare(listener)
        _allow_files()
        _announce(address_of(folder), host, listener)
        with contextlib.suppress(KeyboardInterrupt), sealing_store(folder):
            uvicorn.Server(uvicorn.Config(app, **settings())).run([listener])


def is_loopback(host: str) -> bool:
    """Whether the host is a loopback address, reachable from this machine alone.

    >>> is_loopback("::1"), is_loopback("0.0.0.0")
    (True, False)

    """
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _tokens(path: str | Path | None, host: str) -> Tokens | None:
    """Return the tokens of the file, or else of the environment; None for a loopback host without any."""
    if path is not None:
        return read_tokens(Path(path))
    lines = os.environ.get(TOKENS_VARIABLE)
    if lines is not None:
        return parse_tokens(lines, source=TOKENS_VARIABLE)
    if is_loopback(host):
        return None
    raise TelemetryError(
        "without tokens, the server may listen only on this machine's own address",
        where="host",
        got=host,
        fix=f"Give --tokens FILE or {TOKENS_VARIABLE}. Or use 127.0.0.1, and 'ssh -L' from other machines",
    )


def _allow_files() -> None:
    """Raise the limit on open files: each connection takes one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, _OPEN_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _announce(store: str, host: str, listener: socket.socket) -> None:
    """Write the address to stderr."""
    address = f"[{host}]" if ":" in host else host
    url = f"http://{address}:{listener.getsockname()[1]}"
    served = f"{url}/ (API: {url}/api/v1/runs)"
    sys.stderr.write(f"steptape: serving {store} at {served}. Ctrl-C stops it\n")
    sys.stderr.flush()


def _listening(host: str, port: int) -> socket.socket:
    """Open a socket that already listens, so that the address can be announced before the first request."""
    try:
        if not 0 <= port <= 65535:
            raise OSError("ports are numbered 0 to 65535")
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        raise TelemetryError(
            f"cannot listen on this address ({error})", where=f"{host}:{port}", fix="Choose another port"
        ) from None
