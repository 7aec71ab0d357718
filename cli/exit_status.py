"""Defines the exit statuses of the command line."""

from __future__ import annotations

from typing import Final

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
