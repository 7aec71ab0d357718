"""Lines of text files that anybody may have written: bytes in, lines out, in bounded memory."""

from __future__ import annotations

import codecs
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Final

from ..errors import UnreadableSource

#: A line may be so long, in characters. A table of 20,000 metrics has lines of about half a million.
LONGEST_LINE: Final = 16 * 1024 * 1024

#: Byte order marks, and the encodings that they announce. Windows' shells write UTF-16.
_MARKS: Final = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)


def encoding_of(head: bytes) -> str:
    """The encoding that the first bytes of a file announce; UTF-8 where they announce none."""
    return next((encoding for mark, encoding in _MARKS if head.startswith(mark)), "utf-8")


def decoded_head(head: bytes) -> str:
    """The beginning of a file as text, whatever it holds."""
    return head.decode(encoding_of(head), errors="replace")


def text_lines(path: Path, *, errors: str = "strict", is_growing: bool = False) -> Iterator[str]:
    """The lines of a file, with their ends.

    Args:
        path: The file.
        errors: What to do with bytes that are no text: ``strict`` or ``replace``.
        is_growing: Whether a last line without an end is left out, as still being written.

    Raises:
        UnreadableSource: It cannot be opened, is no text in its encoding, or has a line that is too long.
    """
    try:
        with open(path, "rb") as file:
            encoding = encoding_of(file.read(4))
        with open(path, encoding=encoding, errors=errors, newline="") as text:
            yield from _limited(text, path, is_growing)
    except UnicodeError as error:
        raise UnreadableSource(f"this is no text in {encoding} ({error})", where=str(path)) from None
    except OSError as error:
        raise UnreadableSource(f"cannot be read ({error.strerror or error})", where=str(path)) from None


def _limited(text: IO[str], path: Path, is_growing: bool) -> Iterator[str]:
    while line := text.readline(LONGEST_LINE + 1):
        if len(line) > LONGEST_LINE:
            raise UnreadableSource(f"a line is longer than {LONGEST_LINE} characters", where=str(path))
        if is_growing and not line.endswith(("\n", "\r")):
            return
        yield line
