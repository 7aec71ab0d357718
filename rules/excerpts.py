"""Renders a line of a file with a caret under the column that a message is about."""

from __future__ import annotations

import unicodedata

#: Characters of a line that are shown; for a longer line, those around the column.
_SHOWN = 100


def excerpt(text: str, line: int, column: int) -> list[str]:
    r"""Return the line and the caret under it; nothing when the file has no such line, or a blank one.

    Args:
        text: The file.
        line: From 1.
        column: From 1, in characters.

    >>> print(*excerpt("rule: men(loss, 3)", 1, 7), sep="\n")
        1 | rule: men(loss, 3)
          |       ^
    """
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    if not 1 <= line <= len(lines) or not lines[line - 1].strip():
        return []
    whole = lines[line - 1]
    begin = max(0, min(column - 1 - _SHOWN // 2, len(whole) - _SHOWN))
    part = whole[begin : begin + _SHOWN]
    before = part[: max(column - 1 - begin, 0)]
    gutter = f"{line:5}"
    return [f"{gutter} | {_printable(part).rstrip()}", f"{'':5} | {' ' * _width(before)}^"]


def _printable(text: str) -> str:
    """Replace each tab or other blank by a space, and other characters that would move the cursor by U+FFFD."""
    return "".join(
        character if character.isprintable() else " " if character.isspace() else "\ufffd" for character in text
    )


def _width(text: str) -> int:
    """Return the columns that a text takes in a terminal."""
    wide = sum(unicodedata.east_asian_width(character) in ("W", "F") for character in text)
    return len(text) + wide - sum(unicodedata.combining(character) > 0 for character in text)
