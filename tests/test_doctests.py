"""The examples in docstrings are true."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest

import steptape

MODULES = sorted(
    module.name
    for room in ("store", "rules", "recorder", "replay", "api")
    for module in pkgutil.walk_packages([f"{path}/{room}" for path in steptape.__path__], f"steptape.{room}.")
)


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_of_a_module_are_true(name: str) -> None:
    """Every ``>>>`` in it."""
    assert doctest.testmod(importlib.import_module(name)).failed == 0
