"""The examples in docstrings are true."""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

#: Folders of the repository that hold no module of the package.
APART = {"benchmarks", "build", "tests"}


def modules_with_examples() -> list[str]:
    """Return the dotted names of the package's modules with ``>>>`` in them, at its root and in every room."""
    rooms = [path for path in ROOT.glob("[!.]*/") if path.is_dir() and path.name not in APART]
    paths = [*ROOT.glob("*.py"), *(path for room in rooms for path in room.rglob("*.py"))]
    places = [path.relative_to(ROOT).with_suffix("") for path in paths if ">>> " in path.read_text(encoding="utf-8")]
    return sorted(".".join(("steptape", *place.parts)).removesuffix(".__init__") for place in places)


@pytest.mark.parametrize("name", modules_with_examples())
def test_the_examples_of_a_module_are_true(name: str) -> None:
    """Every ``>>>`` of a module gives the output written below it, and there is at least one."""
    result = doctest.testmod(importlib.import_module(name))

    assert result.attempted > 0
    assert result.failed == 0
