"""``steptape serve``: serves the HTTP API and the web pages of a store."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ...api import server
from ...api.logs import LogFormat, LogLevel
from ...store.errors import TelemetryError
from ...store.store import open_store
from ..options import StoreArgument
from ..streams import complain


def serve(
    store: StoreArgument = Path("runs"),
    host: Annotated[
        str, typer.Option(help="Address to listen on; one that other machines can reach needs tokens.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on; 0 picks a free one.")] = 8420,
    tokens: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="File of lines 'token scope name'; scopes: record, read, write, admin."),
    ] = None,
    allowed_hosts: Annotated[
        list[str] | None,
        typer.Option("--allowed-host", metavar="NAME", help="A host name by which clients reach this server."),
    ] = None,
    quota: Annotated[
        float | None, typer.Option(metavar="GB", min=0, help="Most gigabytes of the runs that one token pushes; 1000.")
    ] = None,
    root_path: Annotated[
        str, typer.Option(metavar="PATH", help="Path under which a reverse proxy serves this server, as /steptape.")
    ] = "",
    policies: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Folder of policy files that clients can use by name.")
    ] = None,
    log_level: Annotated[
        LogLevel, typer.Option(help="Least serious records of the log on stderr; requests are 'info'.")
    ] = LogLevel.WARNING,
    log_format: Annotated[
        LogFormat, typer.Option(help="Write the log as lines of text, or of JSON objects.")
    ] = LogFormat.TEXT,
) -> None:
    """Serve the web pages and the HTTP API of a store.

    The pages are at /, the API is under /api/v1 and described in /api/v1/openapi.json. Creates the store if there is
    none, and shows its runs as they come. Ctrl-C stops the server. Tokens may also be in the environment variable
    STEPTAPE_TOKENS.
    """
    if not store.exists():
        _create(store)
    server.serve(
        open_store(store).path,
        host=host,
        port=port,
        tokens_path=tokens,
        allowed_hosts=allowed_hosts or (),
        policies_path=policies,
        quota_bytes=None if quota is None else int(quota * 1e9),
        root_path=root_path,
        log_level=log_level,
        log_format=log_format,
    )


def _create(store: Path) -> None:
    try:
        store.mkdir(parents=True)
    except OSError as error:
        raise TelemetryError(f"the store cannot be created ({error.strerror})", where=str(store)) from None
    complain(f"{store}: there was no such store, so an empty one was created")
