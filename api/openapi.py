"""``python -m steptape.api.openapi``: write the API's description into ``openapi.json`` beside this file."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Final

from .app import create_app

#: The description as it was agreed upon; a test holds the application against it.
OPENAPI_FILE: Final = Path(__file__).with_name("openapi.json")


def openapi_text() -> str:
    """The description of the application as it is."""
    with tempfile.TemporaryDirectory() as store:
        return json.dumps(create_app(store).openapi(), indent=1, sort_keys=True, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    OPENAPI_FILE.write_text(openapi_text(), encoding="utf-8")
