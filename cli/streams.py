"""Standard output and error: pipes that close early, encodings that lack characters."""

from __future__ import annotations

import codecs
import json
import os
import sys
from io import TextIOWrapper
from typing import Final, NoReturn

from .exit_status import CLOSED_PIPE

#: What steptape's own signs become where the encoding lacks them.
_PLAIN_SIGNS: Final = {"→": "->", "≥": ">=", "…": "...", "Δ": "d"}


class StandardOutput(TextIOWrapper):
    """Standard output that ends the process, and says nothing, when nobody reads it any more.

    The signal would do the same, and would also end a process that writes to a socket or to another process. Characters
    that the encoding lacks are written as JSON's escapes of them, so that JSON is the same text in every locale.
    """

    def write(self, text: str, /) -> int:
        """Write text, as any text file does."""
        try:
            return super().write(text)
        except BrokenPipeError:
            self._leave()

    def flush(self) -> None:
        """Hand over what is buffered."""
        try:
            super().flush()
        except BrokenPipeError:
            self._leave()

    def _leave(self) -> NoReturn:
        os.dup2(os.open(os.devnull, os.O_WRONLY), self.fileno())  # What is buffered goes there as the process ends.
        sys.exit(CLOSED_PIPE)


def wrap_standard_output() -> None:
    """Make ``sys.stdout`` one of these; one that is no file, or is closed, stays as it is."""
    codecs.register_error("json-escape", _as_json_escape)
    stream = sys.stdout
    if isinstance(stream, TextIOWrapper):
        encoding, is_terminal = stream.encoding, stream.line_buffering
        sys.stdout = StandardOutput(
            stream.detach(), encoding=encoding, errors="json-escape", line_buffering=is_terminal
        )


def print_line(text: str) -> None:
    """Print a line on stdout at once, as it is, for programs that wait for it."""
    print(text, flush=True)


def complain(text: str) -> None:
    """Print a line on stderr."""
    print(text, file=sys.stderr)


def can_show(text: str) -> bool:
    """Whether the encoding of standard output has every character of a text."""
    try:
        text.encode(getattr(sys.stdout, "encoding", None) or "utf-8")
    except UnicodeEncodeError:
        return False
    return True


def showable(text: str) -> str:
    """The text as standard output can show it to people: plain signs, or escapes, for what its encoding lacks."""
    if can_show(text):
        return text
    return "".join(sign if can_show(sign) else _PLAIN_SIGNS.get(sign, _escaped(sign)) for sign in text)


def _as_json_escape(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return _escaped(error.object[error.start : error.end]), error.end


def _escaped(text: str) -> str:
    return json.dumps(text)[1:-1]
