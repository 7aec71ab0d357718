"""Reads a text file of unknown origin line by line, in bounded memory."""

from __future__ import annotations

import codecs
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Final

from ..errors import UnreadableSource

#: Most characters of a line. A table of 20,000 metrics has lines of about half a million.
LONGEST_LINE: Final = 16 * 1024 * 1024

#: Byte order marks and their encodings. Windows' shells write UTF-16.
_MARKS: Final = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)


def encoding_of(head: bytes) -> str:
    """Return the encoding that a file's byte order mark announces; UTF-8 without one."""
    return next((encoding for mark, encoding in _MARKS if head.startswith(mark)), "utf-8")


def decoded_head(head: bytes) -> str:
    """Decode the beginning of a file, and replace invalid bytes."""
    return head.decode(encoding_of(head), errors="replace")


def text_lines(path: Path, *, errors: str = "strict", is_growing: bool = False) -> Iterator[str]:
    """Yield the lines of a file, line ends included.

    Args:
        path: The file.
        errors: Treatment of bytes that do not decode: ``strict`` or ``replace``.
        is_growing: Whether to omit a last line without an end, as one that is still being written.

    Raises:
        UnreadableSource: The file cannot be opened, does not decode, or has a line that is too long.
    """
    try:
        with open(path, "rb") as file:
            encoding = encoding_of(file.read(4))
        with open(path, encoding=encoding, errors=errors, newline="") as text:
            yield from _limited(text, path, is_growing)
    except UnicodeError as error:
        raise UnreadableSource(f"not text in {encoding} ({error})", where=str(path)) from None
    except OSError as error:
        raise UnreadableSource(f"cannot be read ({error.strerror or error})", where=str(path)) from None


def _limited(text: IO[str], path: Path, is_growing: bool) -> Iterator[str]:
    while line := text.readline(LONGEST_LINE + 1):
        if len(line) > LONGEST_LINE:
            raise UnreadableSource(f"a line is longer than {LONGEST_LINE} characters", where=str(path))
        if is_growing and not line.endswith(("\n", "\r")):
            return
        yield line
