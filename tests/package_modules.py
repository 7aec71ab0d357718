"""Lists the modules of the package by name, without those that need a training framework."""

from __future__ import annotations

from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
ROOMS: Final = ("store", "rules", "recorder", "importers", "replay", "api", "cli", "examples")


def module_names() -> list[str]:
    """Return the dotted names of all modules and packages, except those of the front door and of integrations."""
    found = (path for room in ROOMS for path in (ROOT / room).rglob("*.py") if path.parent.name != "scripts")
    paths = (path.relative_to(ROOT).with_suffix("") for path in found)
    return sorted("steptape." + ".".join(path.parts).removesuffix(".__init__") for path in paths)
