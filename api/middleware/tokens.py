"""Parses bearer tokens from lines of text, and maps a request's token to its holder and scope."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Final

from ...store.errors import TelemetryError

#: Length of the shortest accepted token: 16 characters of base64 are 96 bits.
MIN_LENGTH: Final = 16


class Scope(IntEnum):
    """The permissions of a token; ``WRITE`` includes ``READ``, and ``ADMIN`` includes all.

    ``RECORD`` pushes runs and reads nothing: a training job needs no more. ``READ`` reads, including SQL queries and
    rule checks. ``WRITE`` annotates runs, asks running ones to stop, save or evaluate, starts jobs and cancels its own.
    ``ADMIN`` pushes, too, and cancels the jobs of all tokens.
    """

    RECORD = 0
    READ = 1
    WRITE = 2
    ADMIN = 3

    def allows(self, needed: Scope) -> bool:
        """Whether a token of this scope may do what needs the other one.

        >>> Scope.WRITE.allows(Scope.READ), Scope.WRITE.allows(Scope.RECORD), Scope.ADMIN.allows(Scope.RECORD)
        (True, False, True)
        """
        return self in (needed, Scope.ADMIN) or (needed > Scope.RECORD and self > needed)


@dataclass(frozen=True, slots=True)
class Holder:
    """The name and scope of a token's owner."""

    name: str
    scope: Scope


#: The holder where no tokens are needed: a client on this machine.
LOCAL: Final = Holder("local", Scope.ADMIN)


class Tokens:
    """The tokens that a server knows, kept as hashes and compared in constant time.

    Args:
        holders: Pairs of token and holder.
    """

    def __init__(self, holders: Iterable[tuple[str, Holder]]) -> None:
        self._holders = [(_hashed(token), holder) for token, holder in holders]

    def __len__(self) -> int:
        return len(self._holders)

    def holder_of(self, token: str) -> Holder | None:
        """Return the holder of a token; None when it is unknown. Takes the same time in every case."""
        hashed = _hashed(token)
        found: Holder | None = None
        for known, holder in self._holders:
            if hmac.compare_digest(known, hashed):
                found = holder
        return found


def parse_tokens(text: str, *, source: str) -> Tokens:
    """Parse lines of ``token scope name``; blank lines and those that begin with ``#`` are skipped.

    Raises:
        TelemetryError: A line does not parse, or there are no tokens. The message shows no token.
    """
    holders: list[tuple[str, Holder]] = []
    for number, line in enumerate(text.splitlines(), start=1):
        words = line.split(maxsplit=2)
        if not words or words[0].startswith("#"):
            continue
        where = f"{source}:{number}"
        if len(words) < 3 or words[1].upper() not in Scope.__members__:
            raise TelemetryError(
                "a line must hold a token, a scope and a name",
                where=where,
                fix="Scopes are record, read, write and admin",
            )
        if len(words[0]) < MIN_LENGTH:
            raise TelemetryError(
                f"a token must have at least {MIN_LENGTH} characters",
                where=where,
                fix="To make one: python -c 'import secrets; print(secrets.token_urlsafe(24))'",
            )
        holders.append((words[0], Holder(words[2].strip(), Scope[words[1].upper()])))
    if not holders:
        raise TelemetryError("there are no tokens", where=source, fix="Each line holds a token, a scope and a name")
    return Tokens(holders)


def read_tokens(path: Path) -> Tokens:
    """Read tokens from a file.

    Raises:
        TelemetryError: It cannot be read, others than its owner can read it, or a line is wrong.
    """
    try:
        if path.stat().st_mode & 0o077:
            raise TelemetryError(
                "other users can read the tokens", where=str(path), fix=f"Run chmod 600 {path}, and change the tokens"
            )
        return parse_tokens(path.read_text(encoding="utf-8"), source=str(path))
    except (OSError, UnicodeDecodeError) as error:
        raise TelemetryError(f"tokens cannot be read ({type(error).__name__})", where=str(path)) from None


def _hashed(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()
