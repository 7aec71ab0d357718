"""``steptape serve``: serves the HTTP API and the web pages of a store."""

from __future__ import annotations

from pathlib import Path

from ...api import server
from ...api.logs import LogFormat, LogLevel
from ...store.errors import TelemetryError
from ...store.store import open_store
from ..lookup import store_named
from ..options import ServeArguments
from ..streams import complain


def serve(asked: ServeArguments) -> None:
    """Serve the web pages and the HTTP API of a store."""
    store = store_named(asked.store)
    if not store.exists():
        _create(store)
    server.serve(
        open_store(store).path,
        host=asked.host,
        port=asked.port,
        tokens_path=asked.tokens,
        allowed_hosts=asked.allowed_hosts or (),
        policies_path=asked.rules_folder,
        quota_bytes=None if asked.quota is None else int(asked.quota * 1e9),
        root_path=asked.root_path,
        gauges=asked.gauges or (),
        log_level=LogLevel(asked.log_level or LogLevel.WARNING),
        log_format=LogFormat(asked.log_format or LogFormat.TEXT),
    )


def _create(store: Path) -> None:
    try:
        store.mkdir(parents=True)
    except OSError as error:
        raise TelemetryError(f"the store cannot be created ({error.strerror})", where=str(store)) from None
    complain(f"{store}: there was no such store, so an empty one was created")
