"""``steptape push``: brings runs to a server or another folder."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from pathlib import Path
from typing import Final

import typer

from ...api.logs import LogFormat, LogLevel, write_log
from ...shipping.push_protocol import TargetAway
from ...shipping.store_push import Backoff, RunPushed, environments_token, push_on, push_once, target_of
from ...store.errors import StoreNotFound, TelemetryError, counted
from ..lookup import store_named
from ..options import PushArguments
from ..output import print_json, say
from ..streams import FINDINGS, INTERRUPTED, complain

_LOGGER: Final = logging.getLogger("steptape.push")


def push(asked: PushArguments) -> None:
    """Bring runs to a server, another folder or object storage, and prove that both logs are equal."""
    store = store_named(asked.store)
    if not store.is_dir():
        raise StoreNotFound("no such store", where=asked.store)
    outcomes: list[RunPushed] = []
    note = _noting(asked.log_level and LogLevel(asked.log_level), asked.log_format and LogFormat(asked.log_format))

    def report(outcome: RunPushed) -> None:
        outcomes.append(outcome)
        if asked.as_json:
            _print_json(outcome)
        elif not outcome.refused:
            say(_text(outcome))
        note(_text(outcome), logging.ERROR if outcome.refused else logging.INFO)

    wait_s = asked.wait if asked.wait is not None else math.inf if asked.follow else 60.0
    place = target_of(asked.target, _token(asked.token_file), wait_s=wait_s)
    try:
        (push_on if asked.follow else push_once)(store.absolute(), place, report, Backoff(note, wait_s))
    except TargetAway as error:
        note(f"error: {error}\nNothing is lost. Repeat the command to push the rest", logging.ERROR)
        raise typer.Exit(FINDINGS) from None
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None
    if not outcomes and not asked.as_json:
        say(f"no runs in {asked.store}")
    if any(outcome.refused for outcome in outcomes):
        raise typer.Exit(FINDINGS)


def _noting(level: LogLevel | None, format_: LogFormat | None) -> Callable[..., None]:
    """Return what writes to stderr: records of a log if it is asked for, else the text of warnings and errors."""
    if level is None and format_ is None:
        return lambda text, severity=logging.WARNING: complain(text) if severity > logging.INFO else None
    write_log(level or LogLevel.WARNING, format_ or LogFormat.TEXT)
    return lambda text, severity=logging.WARNING: _LOGGER.log(severity, text.replace("\n", ". "))


def _text(outcome: RunPushed) -> str:
    name, sent = outcome.folder.name, f"{counted(outcome.events, 'event')} pushed"
    if outcome.refused:
        return f"{name}: not pushed: {outcome.refused}"
    if outcome.is_live:
        return f"{name}: {sent}. A process still writes to it; --follow pushes it to its end"
    if outcome.uncompared:
        return f"{name}: {sent}. The logs were not compared: {outcome.uncompared}"
    return f"{name}: {sent}. Both logs are equal"


def _print_json(outcome: RunPushed) -> None:
    state = "refused" if outcome.refused else "running" if outcome.is_live else "pushed"
    why = outcome.refused or outcome.uncompared
    print_json({"run_id": outcome.folder.name, "state": state, "events_pushed": outcome.events, "reason": why or None})


def _token(path: Path | None) -> str:
    """Return the token of the file, or else of the environment; empty without one.

    Raises:
        TelemetryError: The file cannot be read, or others can read it.
    """
    if path is None:
        return environments_token()
    try:
        if path.stat().st_mode & 0o077:
            raise TelemetryError("other users can read the token", where=str(path), fix=f"Run chmod 600 {path}")
        return path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise TelemetryError(f"the token cannot be read ({type(error).__name__})", where=str(path)) from None
