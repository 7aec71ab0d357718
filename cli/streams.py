"""Writes to standard output and error, and defines the exit statuses.

Handles pipes that close early and encodings that lack characters.
"""

from __future__ import annotations

import codecs
import json
import os
import sys
from io import TextIOWrapper
from typing import Final, NoReturn

from ..store.errors import DamagedLog

#: The command found something: a warning, a difference, a failed test.
FINDINGS: Final = 1

#: The command could not open its input. Usage errors have this status too.
CANNOT_OPEN: Final = 2

#: There is no answer: ``steptape compare`` needs more runs, or ``steptape health`` could evaluate no group.
NO_ANSWER: Final = 3

#: Ctrl-C: 128 + SIGINT, as shells report it for other tools.
INTERRUPTED: Final = 130

#: The reader of standard output closed the pipe, as ``head`` does: 128 + SIGPIPE.
CLOSED_PIPE: Final = 141

#: ASCII replacements for steptape's own symbols, if the encoding lacks them.
_PLAIN_SIGNS: Final = {"→": "->", "≥": ">=", "…": "...", "Δ": "d"}


class StandardOutput(TextIOWrapper):
    """Standard output that ends the process silently when the reader of the pipe is gone.

    SIGPIPE would do the same, but would also end a process that writes to a socket or to another process. Characters
    that the encoding lacks are written as JSON escapes, so that JSON is the same text in every locale.
    """

    def write(self, text: str, /) -> int:
        """Write text, as any text file does."""
        try:
            return super().write(text)
        except BrokenPipeError:
            self._leave()

    def flush(self) -> None:
        """Flush the buffer."""
        try:
            super().flush()
        except BrokenPipeError:
            self._leave()

    def _leave(self) -> NoReturn:
        os.dup2(os.open(os.devnull, os.O_WRONLY), self.fileno())  # The buffer drains into it as the process ends.
        sys.exit(CLOSED_PIPE)


def wrap_standard_output() -> None:
    """Replace ``sys.stdout`` by a ``StandardOutput``, unless it is closed or not a file."""
    codecs.register_error("json-escape", _as_json_escape)
    stream = sys.stdout
    if isinstance(stream, TextIOWrapper):
        encoding, is_terminal = stream.encoding, stream.line_buffering
        sys.stdout = StandardOutput(
            stream.detach(), encoding=encoding, errors="json-escape", line_buffering=is_terminal
        )


def print_line(text: str) -> None:
    """Print a line verbatim on stdout and flush, for programs that wait for it."""
    print(text, flush=True)


def write_text(text: str) -> None:
    """Write a part of a line verbatim to stdout; ``print_line`` ends the line."""
    sys.stdout.write(text)


def complain(text: str) -> None:
    """Print a line on stderr."""
    print(text, file=sys.stderr)


def complain_of_error(error: Exception) -> None:
    """Print an error on stderr. If a file of a run is damaged, name the command that says more."""
    line = f"error: {error}"
    if isinstance(error, DamagedLog) and error.where and not error.fix:
        folder = os.path.dirname(error.where)
        line += f". 'steptape doctor {folder if '/' in folder else f'./{folder}'}' says what is damaged"
    complain(line)


def can_show(text: str) -> bool:
    """Whether standard output's encoding has every character of a text."""
    try:
        text.encode(getattr(sys.stdout, "encoding", None) or "utf-8")
    except UnicodeEncodeError:
        return False
    return True


def showable(text: str) -> str:
    """Return the text as standard output can show it, with plain signs or escapes for what its encoding lacks."""
    if can_show(text):
        return text
    return "".join(sign if can_show(sign) else _PLAIN_SIGNS.get(sign, _escaped(sign)) for sign in text)


def _as_json_escape(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return _escaped(error.object[error.start : error.end]), error.end


def _escaped(text: str) -> str:
    return json.dumps(text)[1:-1]
