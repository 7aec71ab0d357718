"""``steptape serve``: serves the HTTP API and the web pages of a store."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ...api import server
from ...store.store import open_store
from ..options import StoreArgument


def serve(
    store: StoreArgument = Path("runs"),
    host: Annotated[
        str, typer.Option(help="Address to listen on; others than this machine's own take tokens.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on; 0 takes a free one.")] = 8420,
    tokens: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Lines of 'token scope name'; scopes: read, write, admin.")
    ] = None,
    allowed_hosts: Annotated[
        list[str] | None, typer.Option("--allowed-host", metavar="NAME", help="A name that clients call this server.")
    ] = None,
    policies: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Rule files that can be asked about by name.")
    ] = None,
) -> None:
    """Answer queries over HTTP.

    Serves the web pages at / and the API under /api/v1, described in /api/v1/openapi.json. Ctrl-C stops it. The
    environment variable STEPTAPE_TOKENS may hold tokens, too.
    """
    server.serve(
        open_store(store).path,
        host=host,
        port=port,
        tokens_path=tokens,
        allowed_hosts=allowed_hosts or (),
        policies_path=policies,
    )
