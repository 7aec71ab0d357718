"""The table of features names tests that exist, and says in a sentence why a feature is not there."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "reference" / "FEATURES.md"
SYSTEMS = ["TrAC", "linnaeus", "Surogate", "nano-train", "d9d"]

_TEST = re.compile(r"`(tests/[\w/]+\.py)::(test_\w+)(?:\[(\w+)\])?`")
_REASON = re.compile(r"Not there: [^.]+\.")


def rows(text: str) -> list[tuple[str, str, str]]:
    """Return feature, place and tests of each row."""
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("| ")]
    assert all(len(each) == 3 for each in cells)
    return [(feature, place, tests) for feature, place, tests in cells if feature not in ("feature", "---")]


@cache
def texts_in(path: Path) -> tuple[frozenset[str], frozenset[str]]:
    """Return the names of a file's functions, and its strings."""
    nodes = [*ast.walk(ast.parse(path.read_text(encoding="utf-8")))] if path.exists() else []
    names = (node.name for node in nodes if isinstance(node, ast.FunctionDef))
    return frozenset(names), frozenset(
        node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)
    )


def faults(text: str) -> list[str]:
    """Return the rows with a test that does not exist, and those with neither a test nor a reason."""
    found = []
    for feature, place, tests in rows(text):
        named = _TEST.findall(tests)
        if not named or len(named) != len(tests.split(", ")):
            found += [feature] * (bool(tests) or not _REASON.match(place))
        for path, name, case in named:
            functions, strings = texts_in(ROOT / path)
            found += [f"{path}::{name}"] * (name not in functions or bool(case and case not in strings))
    return found


def test_every_feature_has_tests_that_exist_or_a_reason() -> None:
    """Names are looked up in the files' syntax trees, so nothing is imported."""
    assert faults(PAGE.read_text(encoding="utf-8")) == []


def test_each_system_has_its_table() -> None:
    """The page has one section a system."""
    text = PAGE.read_text(encoding="utf-8")

    assert re.findall(r"^## (.*)$", text, re.MULTILINE) == SYSTEMS
    assert all(len(rows(section)) > 10 for section in text.split("\n## ")[1:])


@pytest.mark.parametrize(
    ("row", "fault"),
    [
        ("| a | b | `tests/test_documents_features.py::test_gone` |", "tests/test_documents_features.py::test_gone"),
        ("| a | b | `tests/test_none.py::test_gone` |", "tests/test_none.py::test_gone"),
        (
            "| a | b | `tests/test_rules_nano_train.py::test_derived_metrics_agree_with_numpy[gone]` |",
            "tests/test_rules_nano_train.py::test_derived_metrics_agree_with_numpy",
        ),
        ("| a | b | the tests |", "a"),
        ("| a | Not there. | |", "a"),
    ],
)
def test_a_row_that_names_no_test_is_found(row: str, fault: str) -> None:
    """So is one that names a case which is gone."""
    assert faults(row) == [fault]
