"""Writes the OpenAPI document to ``openapi.json`` next to this file: ``python -m steptape.api.openapi``."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Final

from .app import create_app

#: The agreed OpenAPI document; a test compares the application with it.
OPENAPI_FILE: Final = Path(__file__).with_name("openapi.json")


def openapi_text() -> str:
    """Return the application's current OpenAPI document."""
    with tempfile.TemporaryDirectory() as store:
        return json.dumps(create_app(store).openapi(), indent=1, sort_keys=True, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    OPENAPI_FILE.write_text(openapi_text(), encoding="utf-8")
