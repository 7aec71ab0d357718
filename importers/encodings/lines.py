"""Reads a text file of unknown origin line by line, in bounded memory."""

from __future__ import annotations

import codecs
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Final

from ..source import UnreadableSource

#: Most characters of a line. A table of 20,000 metrics has lines of about half a million.
LONGEST_LINE: Final = 16 * 1024 * 1024

#: Why decoding fails where a file ends within a character.
_CUT_CHARACTERS: Final = ("unexpected end of data", "truncated data")

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


class TextLines:
    """The lines of a file, line ends included, without a last line that has no end: it may still be written.

    Args:
        path: The file.
        errors: Treatment of bytes that do not decode: ``strict`` or ``replace``.

    Attributes:
        path: The file.
        unfinished: The last line, if it has no end; empty otherwise. Known once the lines are read.
        is_at_end: Whether all lines are read.

    Raises:
        UnreadableSource: While the lines are read: the file cannot be opened, does not decode, or has a line that is
            too long.
    """

    def __init__(self, path: Path, *, errors: str = "strict") -> None:
        self.path = path
        self._errors = errors
        self.unfinished = ""
        self.is_at_end = False

    def __iter__(self) -> Iterator[str]:
        """Iterate over the lines, once."""
        encoding = "text"
        try:
            with open(self.path, "rb") as file:
                encoding = encoding_of(file.read(4))
            with open(self.path, encoding=encoding, errors=self._errors, newline="") as text:
                yield from self._finished(text)
        except UnicodeError as error:
            if not isinstance(error, UnicodeDecodeError) or error.reason not in _CUT_CHARACTERS:
                raise UnreadableSource(f"not text in {encoding} ({error})", where=str(self.path)) from None
            self.unfinished = "\N{REPLACEMENT CHARACTER}"
        except OSError as error:
            raise UnreadableSource(f"cannot be read ({error.strerror or error})", where=str(self.path)) from None
        self.is_at_end = True

    def all(self) -> Iterator[str]:
        """Iterate over the lines and an unfinished one, once."""
        yield from self
        if self.unfinished:
            yield self.unfinished

    def _finished(self, text: IO[str]) -> Iterator[str]:
        while line := text.readline(LONGEST_LINE + 1):
            if len(line) > LONGEST_LINE:
                raise UnreadableSource(f"a line is longer than {LONGEST_LINE} characters", where=str(self.path))
            if not line.endswith(("\n", "\r")):
                self.unfinished = line
                return
            yield line
