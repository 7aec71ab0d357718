"""Reads training values from plain text: ``step:100 val_loss:3.2``, ``iter 5, loss 2.1``, or lines of a given regex."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from ...store.plan import Plan
from ..encodings.lines import TextLines, decoded_head
from ..encodings.numbers import NS, nanoseconds, number, step_of
from ..errors import UnreadableSource
from ..omissions import UNFINISHED, DecimalCommas, Omissions
from ..rows import Row, runs_of
from ..source import ImportedRun, ReadOptions, SingleFile

_SUFFIXES: Final = (".log", ".txt", ".out", ".err", "")

#: A name, a separator (colon, equals sign or blank) and a number, optionally with its total (``125/3040``) or unit.
#: Commas group thousands. A number with another comma does not match, since its meaning is ambiguous; nor does a
#: version or a time of day.
_PAIR: Final = re.compile(
    r"(?<![\w./-])([A-Za-z][\w./-]{0,100}?)\s{0,3}(?:[:=]\s{0,3}|\s)"
    r"([+-]?(?:(?:[1-9]\d{0,2}(?:,\d{3})+|\d+)(?:\.\d*)?(?:[eE][+-]?\d+)?|\.\d+|nan|inf(?:inity)?)"
    r"(?!\.?\d|,\d|[\w.]*:\d))"
    r"(?:/(\d+))?([A-Za-z%]*)",
    re.IGNORECASE,
)

#: Names that count a line's steps; then short names from llm.c's logs, which others copied, with their long names.
_STEP_NAMES: Final = ("step", "global_step", "iter", "iteration", "s", "it", "update", "batch")
_LONG_NAMES: Final = {"tel": "val_loss", "trl": "train_loss"}

#: Names of the time since the training began.
_STOPWATCHES: Final = ("train_time", "elapsed", "elapsed_time")
_UNIT_NS: Final = {"ms": NS // 1000, "s": NS, "sec": NS, "m": 60 * NS, "min": 60 * NS, "h": 3600 * NS}

#: Lines inspected to recognise a file; ``_TELLING`` of them must have a step and a value.
_LOOKED_AT: Final = 400

#: A longer line is a dump of something, and is skipped.
_LONGEST: Final = 20_000
_TELLING: Final = 2


class _Line(NamedTuple):
    row: Row
    total_steps: int | None


class TextLogReader(SingleFile):
    """Reader for text with lines that hold a step and its values; other lines are ignored."""

    kind = "text"
    title = "plain-text logs (step:100 val_loss:3.2; or --pattern)"

    def recognises(self, path: Path, head: bytes) -> bool:
        """Whether the suffix fits and at least two lines hold a step and a value."""
        if path.suffix.casefold() not in _SUFFIXES or b"\0\0" in head:
            return False
        lines = decoded_head(head).splitlines()[:_LOOKED_AT]
        return sum(_parsed(line) is not None for line in lines) >= _TELLING

    def could_read(self, path: Path, head: bytes, options: ReadOptions) -> bool:  # noqa: ARG002
        """Return False: nothing but the kind ``text`` and a pattern makes other lines readable.

        Raises:
            UnreadableSource: The suffix is that of a text log.
        """
        if path.suffix and path.suffix.casefold() in _SUFFIXES and b"\0\0" not in head:
            fix = "Describe its lines: steptape import text FILE --pattern REGEX"
            raise UnreadableSource("no two lines hold a step and a value", where=str(path), fix=fix)
        return False

    def read(self, files: Sequence[Path], options: ReadOptions) -> Iterator[ImportedRun]:
        """Yield the runs of a file."""
        (path,) = files
        parse = _parser(options.pattern)
        totals: list[int] = []
        omissions = Omissions(str(path))
        commas = DecimalCommas(str(path))

        def rows() -> Iterator[Row]:
            lines = TextLines(path, errors="replace")
            line_number = 0
            for line_number, line in enumerate(lines, start=1):
                parsed = parse(line)
                if parsed is not None:
                    if parsed.total_steps is not None:
                        totals[:] = [parsed.total_steps]
                    commas.look_at(parsed.row.attrs, line_number)
                    yield parsed.row
            if not options.is_growing and parse(lines.unfinished) is not None:
                omissions.add(f"line {line_number + 1}", UNFINISHED)
            omissions.tell()
            commas.tell()

        found = False
        for run in runs_of(rows(), plan=lambda: Plan(total_steps=totals[0] if totals else None)):
            found = True
            yield run
        if not found:
            fix = (
                "Describe its lines with --pattern"
                if options.pattern is None
                else "The pattern matches none of its lines"
            )
            raise UnreadableSource("no line holds a step and a value", where=str(path), fix=fix)


def _parser(pattern: str | None) -> Callable[[str], _Line | None]:
    """Return the function that parses a line.

    Raises:
        UnreadableSource: The pattern is no regular expression with a group called ``step``.
    """
    if pattern is None:
        return _parsed
    try:
        compiled = re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        raise UnreadableSource(f"--pattern is not a valid regular expression ({error})", got=pattern) from None
    if "step" not in compiled.groupindex:
        raise UnreadableSource("--pattern has no group named 'step'", got=pattern, fix=r"Write (?P<step>\d+)")
    return lambda line: _matched(compiled, line)


def _matched(pattern: re.Pattern[str], line: str) -> _Line | None:
    match = pattern.search(line)
    if match is None:
        return None
    metrics: dict[str, float] = {}
    attrs: dict[str, Any] = {}
    for name, value in match.groupdict().items():
        if value is None or name == "step":
            continue
        held = number(value)
        if held is None:
            attrs[name] = value
        else:
            metrics[name] = held
    try:
        step = step_of(match["step"], "")
    except UnreadableSource:
        return None
    return _Line(Row(step, metrics, attrs), None)


def _parsed(line: str) -> _Line | None:
    """Parse a line's step and values; None where it holds no step, or nothing but a step.

    A value with a unit stays text: a percentage of time is no loss. The time since the training began is the exception:
    it is the row's clock.
    """
    if len(line) > _LONGEST:
        return None
    step: int | None = None
    total: int | None = None
    elapsed_ns: int | None = None
    metrics: dict[str, float] = {}
    attrs: dict[str, Any] = {}
    for match in _PAIR.finditer(line):
        name, shown, of, unit = match[1], match[2].replace(",", ""), match[3], match[4]
        folded = name.casefold()
        if step is None:
            if folded not in _STEP_NAMES or not shown.lstrip("+").isdigit() or unit:
                continue
            if len(shown) > 18 or (of is not None and len(of) > 18):
                return None
            step, total = int(shown), int(of) if of else None
        elif folded in _STOPWATCHES and unit in _UNIT_NS:
            elapsed_ns = _time_ns(shown, unit)
        elif unit or of:
            attrs[name] = match[0].removeprefix(name).lstrip(" :=\t")
        elif (value := number(shown)) is not None:
            metrics[_LONG_NAMES.get(name, name)] = value
    if step is None or not metrics:
        return None
    return _Line(Row(step, metrics, attrs, 0, elapsed_ns), total)


def _time_ns(shown: str, unit: str) -> int:
    """Convert a number of units to nanoseconds."""
    return nanoseconds((number(shown) or 0.0) * _UNIT_NS[unit] / NS)
