"""The fuzz targets raise only our own errors, on earlier findings and on inputs from hypothesis."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
from drawing import examples
from hypothesis import given
from hypothesis import strategies as st

from steptape.rules.policy_file.policy import shipped_policies, shipped_tests

FOLDER = Path(__file__).parent / "fuzz"


def load(path: Path) -> ModuleType:
    """Load a Python file as a module."""
    specification = importlib.util.spec_from_file_location(path.stem, path)
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


TARGETS: dict[str, Callable[[bytes], None]] = load(FOLDER / "fuzz_rules.py").TARGETS
WORDS = [
    line[1:-1].encode().decode("unicode_escape").encode("latin-1", "replace").decode("utf-8", "replace")
    for line in (FOLDER / "words.dict").read_text().splitlines()
    if line.startswith('"')
]


@pytest.mark.parametrize(
    ("target", "path"),
    [(path.parent.name, path) for path in sorted((FOLDER / "found").glob("*/*"))]
    + [("rule", path) for path in sorted((FOLDER / "seeds" / "rule").iterdir())]
    + [("policy", path) for path in shipped_policies().values()]
    + [("tests", path) for path in shipped_tests().values()],
    ids=lambda value: value.name if isinstance(value, Path) else value,
)
def test_an_input_that_a_fuzzer_begins_with_or_has_found_is_answered(target: str, path: Path) -> None:
    """Each was a bug once, or is a file that loads."""
    TARGETS[target](path.read_bytes())


pieces = st.one_of(
    st.sampled_from([*WORDS, "\n", "\n  ", "\n- ", " ", ": ", "[", "]", "{", "}", ",", "'", '"']), st.text()
)


@examples(300)
@given(st.sampled_from(sorted(TARGETS)), st.lists(pieces, max_size=30).map("".join))
def test_any_text_is_answered(target: str, text: str) -> None:
    """Words of the language are combined in any order, with anything between them."""
    TARGETS[target](text.encode("utf-8", "surrogatepass"))


@examples(200)
@given(
    st.sampled_from([*shipped_policies().values(), *shipped_tests().values()]),
    st.lists(st.tuples(st.floats(0, 1), st.integers(0, 9), pieces), min_size=1, max_size=4),
)
def test_a_file_with_a_few_changes_is_answered(path: Path, changes: list[tuple[float, int, str]]) -> None:
    """The changes mimic mistakes: a good file with random cuts and pastes."""
    text = path.read_text()
    for where, length, piece in changes:
        begin = int(where * len(text))
        text = text[:begin] + piece + text[begin + length :]

    TARGETS["tests" if path.name.endswith(".test.yaml") else "policy"](text.encode("utf-8", "surrogatepass"))
