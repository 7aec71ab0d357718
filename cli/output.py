"""Prints tables and sentences for people and strict JSON for programs, and replaces a file when its text is whole."""

from __future__ import annotations

import base64
import itertools
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, redirect_stdout
from datetime import date, datetime, time
from typing import TYPE_CHECKING, Any, Final

from rich.cells import cell_len

from ..store.event_json import encoded
from .streams import print_line, showable, write_text

if TYPE_CHECKING:
    from ..replay.run_pool import Progress


from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..replay.run_pool import Progress


import shutil
from pathlib import Path
from typing import IO, Literal

from ..store.errors import TelemetryError

#: Control characters that would move the cursor of a terminal: bell, backspace, tabs and feeds but the line feed.
_MOVES: Final = dict.fromkeys((7, 8, 11, 12, 13))

#: Lines that are written at once.
_PART_LINES: Final = 1000

#: The most values of a decision in a table; ``--json`` prints all.
SHOWN_VALUES: Final = 6


def say(text: str = "") -> None:
    """Print a line on stdout, without the control characters that move the cursor."""
    print_line(showable(text).translate(_MOVES))


def print_table(headings: Sequence[str], rows: Iterable[Sequence[object]], *, numeric: Iterable[str] = ()) -> None:
    """Print a table on stdout: plain text, since rich took three quarters of the time of listing many runs.

    Args:
        headings: The headings of the columns.
        rows: The cells of each row.
        numeric: Headings of the right-aligned columns.
    """
    right = set(numeric)
    _print_parts(headings, [name in right for name in headings], [rows])


def print_blocks(blocks: Iterable[str | tuple[Sequence[str], Sequence[Sequence[object]], Sequence[str]]]) -> None:
    """Print lines and tables on stdout; a table is its headings, its rows, and the headings of columns of numbers."""
    for block in blocks:
        if isinstance(block, str):
            say(block)
        else:
            headings, rows, numeric = block
            print_table(headings, rows, numeric=numeric)


def print_rows(
    rows: Sequence[Mapping[str, Any]], columns: Sequence[str], *, more: Iterable[Sequence[Mapping[str, Any]]] = ()
) -> None:
    """Print query results as a table.

    Args:
        rows: The first rows. The widths of the columns fit them.
        columns: The columns, in order.
        more: Parts of further rows, printed one by one in these widths.
    """
    first = rows[0] if rows else {}
    is_right = [isinstance(first.get(name), (int, float)) for name in columns]
    parts = ([[row.get(name) for name in columns] for row in part] for part in itertools.chain([rows], more))
    _print_parts(columns, is_right, parts)


def _print_parts(
    headings: Sequence[str], is_right: Sequence[bool], parts: Iterable[Iterable[Sequence[object]]]
) -> None:
    """Print a table part by part, as wide as its first part needs."""
    top = [showable(shown(heading)) for heading in headings]
    widths: list[int] = []
    for part in parts:
        cells = [[showable(shown(cell)) for cell in row] for row in part]
        if not widths:
            widths = [max(map(cell_len, column)) for column in zip(top, *cells, strict=True)]
            print_line(_bold(_line(top, widths, is_right)))
        if cells:
            print_line("\n".join(_line(row, widths, is_right) for row in cells))


def _bold(text: str) -> str:
    return f"\x1b[1m{text}\x1b[0m" if sys.stdout.isatty() and os.environ.get("TERM") != "dumb" else text


def _line(cells: Sequence[str], widths: Sequence[int], is_right: Sequence[bool]) -> str:
    return "  ".join(map(_aligned, cells, widths, is_right)).rstrip(" ")


def _aligned(text: str, width: int, is_right: bool) -> str:
    gap = " " * (width - cell_len(text))
    return gap + text if is_right else text + gap


def print_json(value: Any) -> None:
    """Print one line of strict JSON on stdout and flush: non-finite numbers by name, times in ISO 8601 (UTC)."""
    print_line(_strict_json(value))


def print_json_with_list(value: Mapping[str, Any], name: str, entries: Iterable[Any]) -> None:
    """Print one line of strict JSON: a mapping with a long list as its last value, which is never whole in memory."""
    write_text(f"{_strict_json(value)[:-1]}, {_strict_json(name)}: [")
    for number, entry in enumerate(entries):
        write_text((", " if number else "") + _strict_json(entry))
    print_line("]}")


def print_json_lines(values: Iterable[Any]) -> None:
    """Print many lines of strict JSON, as ``print_json`` does, in parts."""
    lines = map(_strict_json, values)
    while part := list(itertools.islice(lines, _PART_LINES)):
        print_line("\n".join(part))


def shown(value: object) -> str:
    """Format a value as a table cell."""
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, datetime):
        return value.strftime("%Y-%m-%d %H:%M:%S")
    if isinstance(value, dict):
        return ", ".join(f"{shown(key)} = {shown(entry)}" for key, entry in value.items())
    if isinstance(value, (list, tuple)):
        return ", ".join(shown(entry) for entry in value)
    text = str(value)
    return text if text.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def shown_values(values: Mapping[str, object]) -> str:
    """Format the values of a decision: the first ones. A rule that names its parts has dozens."""
    more = f" and {len(values) - SHOWN_VALUES} more" if len(values) > SHOWN_VALUES else ""
    return shown(dict(itertools.islice(values.items(), SHOWN_VALUES))) + more


@contextmanager
def progress(what: str, total: float | None) -> Iterator[Callable[..., None]]:
    """Show a progress bar if stderr is a terminal. Yields a function of how much is done, and of a new total."""
    if not sys.stderr.isatty():
        yield lambda *_: None
        return
    # Loaded late: rich takes 35 ms, and scripts draw no bar.
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=total)
        yield lambda done, total=None: bar.update(task, completed=done, total=total)


def messages_on_stderr() -> AbstractContextManager[object]:
    """Send what libraries print to stderr: Ray prints lost nodes to stdout, amid the lines of ``--json``."""
    return redirect_stdout(sys.stderr)


@contextmanager
def reading_runs() -> Iterator[Callable[[Progress], None]]:
    """Show one progress bar for everything that reads runs. Yields a callback that takes the progress."""
    with progress("reading runs", None) as show, messages_on_stderr():
        yield lambda come: show(come.done, come.total)


def _strict_json(value: Any) -> str:
    try:
        return _dumps(value)
    except (TypeError, ValueError):
        # Only values with non-finite numbers are copied, because the copy takes longer than the text.
        return _dumps(encoded(value))


def _dumps(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, default=_json_value)


def _json_value(value: Any) -> Any:
    """Return a value that JSON has no type for as one that it has."""
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, datetime):
        return value.isoformat() + ("" if value.tzinfo else "Z")
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    return value.isoformat() if isinstance(value, (date, time)) else str(value)


def check_output(path: Path) -> None:
    """Check that a file can be written there.

    Raises:
        TelemetryError: It cannot be written. The message says why.
    """
    folder = path.parent
    if path.is_dir():
        raise TelemetryError("this is a folder", where=str(path), fix="Name a file in it")
    if not folder.is_dir():
        what = "is not a folder" if folder.exists() else "there is no such folder"
        raise TelemetryError(what, where=str(folder), fix=f"Create it, or write {path.name} elsewhere")
    if not os.access(path if _is_written_in_place(path) else folder, os.W_OK):
        raise TelemetryError("cannot be written (permission denied)", where=str(path), fix="Name another file")


@contextmanager
def output_file(path: Path, mode: Literal["w", "wb"] = "w") -> Iterator[IO[Any]]:
    """Open a file for writing, text in UTF-8. An existing file is replaced only after everything was written.

    Devices, pipes, and files in a read-only folder are written in place instead.

    Raises:
        TelemetryError: It cannot be written.
    """
    check_output(path)
    # Replace the file that a link points to, not the link.
    target = path.resolve()
    in_place = _is_written_in_place(target)
    aside = target if in_place else target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        with open(aside, mode, encoding="utf-8" if mode == "w" else None) as file:
            yield file
        if not in_place:
            if target.exists():
                shutil.copymode(target, aside)
            aside.replace(target)
    except OSError as error:
        # Not about this file: the reader of a pipe closed it, or reading a run failed meanwhile.
        if isinstance(error, BrokenPipeError) or error.filename not in (None, str(aside)):
            raise
        raise TelemetryError(f"cannot be written ({error.strerror or error})", where=str(path)) from None
    finally:
        if not in_place:
            aside.unlink(missing_ok=True)


def _is_written_in_place(path: Path) -> bool:
    """Whether it is a device or a pipe, or a file whose folder takes no temporary file."""
    return path.exists() and not (path.is_file() and os.access(path.parent, os.W_OK))
