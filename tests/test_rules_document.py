"""The YAML document maps a character of any scalar style to its line and column in the file."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from steptape import load_policy
from steptape.rules.errors import PolicyError
from steptape.rules.policy_file.document import Document, Place

words = st.lists(st.text(alphabet="abcäß'\"\\#:-é0", min_size=1, max_size=6), min_size=1, max_size=40)


@given(words, st.sampled_from([None, "'", '"', ">", "|"]), st.integers(10, 40), st.booleans(), st.data())
def test_the_place_of_a_character_is_where_it_stands_in_the_file(
    drawn: list[str], style: str | None, width: int, allow_unicode: bool, data: st.DataObject
) -> None:
    """PyYAML writes a text in some style and folds it; the place leads to the same character."""
    value = " ".join(drawn)
    text = "# head\n" + yaml.safe_dump(
        {"k": [{"rule": value}]}, default_style=style, width=width, allow_unicode=allow_unicode
    )
    document = Document(text, "p.yaml")
    node = document.root.value[0][1].value[0].value[0][1]  # type: ignore[union-attr]
    assert node.value.rstrip("\n") == value
    offset = data.draw(st.sampled_from([at for at, character in enumerate(value) if not character.isspace()]))

    place = document.place_in(node, offset)

    found = text.split("\n")[place.line - 1][place.column - 1 :]
    expected = value[offset]
    if node.style == '"' and found.startswith("\\"):
        assert yaml.safe_load(f'"{found[: {"x": 4, "u": 6}.get(found[1], 2)]}"') == expected
    else:
        assert found.startswith(expected)


def test_places_count_lines_of_every_kind_of_line_end() -> None:
    """Carriage returns count, alone or before a newline."""
    document = Document("a: 1\r\nb: 2\rrule: 'x\r\n  y'\n", "p.yaml")
    node = document.root.value[2][1]  # type: ignore[union-attr]

    assert document.place_in(node, 0) == Place(3, 8)
    assert document.place_in(node, 2) == Place(4, 3)


def test_an_offset_beyond_the_end_leads_to_the_last_character() -> None:
    """Errors at the end of a rule need a place too."""
    document = Document("rule: ab\n", "p.yaml")
    node = document.root.value[0][1]  # type: ignore[union-attr]

    assert document.place_in(node, 99) == Place(1, 8)


@pytest.mark.parametrize("spare", range(1, 12))
def test_a_file_that_is_too_long_is_called_that_wherever_it_is_cut(tmp_path: Path, spare: int) -> None:
    """A part of it is read, which may end in the middle of a character."""
    path = tmp_path / "policy.yaml"
    path.write_bytes(b"\xef\xbb\xbf" + b"#" * spare + "\U0001f40d".encode() * (1 << 18))

    with pytest.raises(PolicyError, match="longer than 1,048,576 bytes"):
        load_policy(path)


def test_a_file_that_is_too_long_and_not_text_is_refused_at_the_byte(tmp_path: Path) -> None:
    """No byte is dropped to make it fit."""
    path = tmp_path / "policy.yaml"
    path.write_bytes(b"controllers: []\n# \xff" + b"#" * (2 << 20))

    with pytest.raises(PolicyError, match="2:3: not UTF-8; got byte 0xff"):
        load_policy(path)
