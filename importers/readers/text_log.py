"""Reads training values from plain text: ``step:100 val_loss:3.2``, ``Epoch 3/10 | loss: 2.1``, or lines of a regex.

``log_line`` parses a line, ``Positions`` finds its step. This module turns both into rows, and recognises files.
"""

from __future__ import annotations

import re
from collections import ChainMap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby, islice
from pathlib import Path
from typing import Final, NamedTuple

from ...store.metric_words import is_evaluation
from ..encodings.line_head import DAY_NS, unwrapped, without_head
from ..encodings.lines import TextLines, decoded_head
from ..encodings.log_line import (
    BATCH_RANK,
    EPOCH_RANK,
    GLOBAL_RANK,
    Bar,
    Counter,
    LogLine,
    announced_phase,
    parsed_line,
)
from ..encodings.numbers import INT64_MAX, number, step_of
from ..encodings.printed_table import PrintedTable
from ..encodings.settings_line import settings_line
from ..rows import PLACE_NAMES, Life, Lives, Row, joined, runs_of
from ..source import (
    UNFINISHED,
    DecimalCommas,
    ImportedRun,
    Omissions,
    ReadOptions,
    RefusedRun,
    RepeatedNames,
    SingleFile,
    UnreadableSource,
)

_SUFFIXES: Final = (".log", ".txt", ".out", ".err", "")

#: Lines inspected to recognise a file; ``_TELLING`` of them must have a step and a value of a training.
_LOOKED_AT: Final = 2_000_000
_TELLING: Final = 2

#: Parts of names of what trainings measure. Prose with "step 1" has other names, and each but once.
_MEASURED: Final = re.compile(
    r"loss|acc(?!um)|err|ppl|perplexity|bleu|f1|auc|mae|mse|iou|map\b|dice|reward|return|score|nll|cer|wer|bpb|lr\b|learning.rate"
    r"|(?:fid|kid|is|pr|eq[tr])\d",
    re.IGNORECASE,
)
#: So many runs of one length in one file are epochs, rather than runs.
_MANY_RUNS: Final = 12

#: How much earlier than the line before it a line may be.
_LATE_NS: Final = DAY_NS // 24

#: A heading in the middle of its line: what is below it is aligned at its colons (rsl_rl).
_CENTRED: Final = re.compile(r"\sLearning iteration \d+/\d+ ")

#: A name with a number in a block; no time, date or version.
_VALUE_OF_BLOCK: Final = re.compile(
    r"[\s|>*-]*[A-Za-z_][^:=]{0,100}[:=]\s*[\[(]?\s*[-+]?(?!\d+\.\d+\.\d)\.?\d[\d.,]*(?:e[-+]?\d+)?(?![\w:/-]*[\d:/-]).*",
    re.IGNORECASE,
)

#: Names of what earlier lines measured.
_STALE: Final = re.compile(r"\b(?:best|min|max|target|patience|final step|from)\b", re.IGNORECASE)

#: A setting: a name with one value, a heading, or an item of a list; a setting whose value is text.
_VALUE_OF_SETTING: Final = r"(?:'[^']*'|\"[^\"]*\"|\[[^\[\]]*\]|\([^()]*\)|\S+)"
_SETTING: Final = re.compile(rf"\s*(?:-\s+{_VALUE_OF_SETTING}|\#.*|[\w.-]+\s?:(?:\s+{_VALUE_OF_SETTING})?)\s*$")
_LISTED: Final = re.compile(rf"(?:[\w.-]\s?:\s*|[:-]\s+){_VALUE_OF_SETTING}?\s*$")
_SETTING_OF_TEXT: Final = re.compile(r"\s*[\w.-]+\s?:\s+(?!(?:nan|inf)\b)(?:[A-Za-z/]|['\"(\[])", re.IGNORECASE)
#: A result or a position, which no setting is called.
_RESULT: Final = re.compile(
    r"\s*(?:\w*_)?(?:loss|acc|accuracy|reward|return|ppl|perplexity|f1|auc|epoch|step|iter|iteration|update)\s?:\s+"
    r"(?:[-+]?[\d.]|nan|inf|\[)",
    re.IGNORECASE,
)
#: A listing of settings has so many lines at least, so many of them with text. A longer one is no listing.
_FEWEST_SETTINGS: Final = 4
_FEWEST_TEXTS: Final = 2
_MOST_SETTINGS: Final = 10_000

#: What a row of bare batches, ``[10/78]``, holds besides results.
_DURATIONS: Final = PLACE_NAMES | {"data", "max mem"}


#: A loss that Hugging Face's Trainer prints without its filter, ``logging_nan_inf_filter``.
_NOT_FINITE: Final = re.compile(r"""'loss': ['"]?-?(?:nan|inf)""")

#: Why a line is left out: a rule's patience would count each.
_REPEATED: Final = "it repeats the line before it, as the ranks of a job do"


class _Line(NamedTuple):
    """A row, and what is known with it.

    Attributes:
        row: The row.
        repeated: A name with two values.
        bar: The number of its progress bar, from 1, if it is a bar's state: a later state of a bar replaces it.
    """

    row: Row
    repeated: str = ""
    bar: int = 0


class TextLogReader(SingleFile):
    """Reader for text with lines that hold a step or an epoch, and values; other lines are ignored."""

    kind = "text"
    title = "plain-text logs (step:100 val_loss:3.2, Epoch 3/10 | loss: 2.1; or --pattern)"

    def recognises(self, path: Path, head: bytes) -> bool:
        """Whether the suffix fits and at least two lines hold a step and a value, wherever they are."""
        if path.suffix.casefold() not in _SUFFIXES or b"\0\0" in head:
            return False
        if _is_log(line for _, line in _without_settings(_numbered(decoded_head(head).splitlines(), {}))):
            return True
        try:
            return path.stat().st_size > len(head) and _is_log(_lines_of(path))
        except (OSError, UnreadableSource):
            return False

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
        settings: dict[str, dict[str, object]] = {}
        omissions = Omissions(str(path))
        commas = DecimalCommas(str(path))
        repeated = RepeatedNames(str(path))
        is_trainers = False

        def lines_with_rows() -> Iterator[_Line]:
            nonlocal is_trainers
            lines = TextLines(path, errors="replace")
            line_number = 0
            parse = _parser(options.pattern, lambda why: omissions.add(f"line {line_number}", why))
            before: Row | None = None
            numbered = _numbered(lines, settings)
            for line_number, line in _without_settings(numbered) if options.pattern is None else numbered:
                parsed = parse(line)
                if parsed is not None and before is not None and _is_repeated(before, parsed):
                    omissions.add(f"line {line_number}", _REPEATED)
                elif parsed is not None:
                    before = parsed.row
                    is_trainers |= bool(parsed.row.kinds)
                    commas.look_at(parsed.row.attrs, line_number)
                    repeated.look_at(parsed.repeated, line_number)
                    yield parsed
            if not options.is_growing and any(parse(line) is not None for line in unwrapped(lines.unfinished)):
                omissions.add(f"line {line_number + 1}", UNFINISHED)

        def rows() -> Iterator[Row]:
            yield from _clocked(joined(_last_states(lines_with_rows())))
            omissions.tell()
            commas.tell()
            repeated.tell()

        found = False
        told_apart = _told_apart(rows(), lambda: map(_parser(options.pattern), _lines_of(path)), path)
        for run in runs_of(told_apart, config=lambda: dict(ChainMap(*settings.values()))):
            found = True
            yield replace(run, nan_filtered=("loss",)) if is_trainers and _is_finite(path) else run
        if not found:
            fix = (
                "Describe its lines with --pattern"
                if options.pattern is None
                else "The pattern matches none of its lines"
            )
            raise UnreadableSource("no line holds a step and a value", where=str(path), fix=fix)


def _numbered(lines: Iterable[str], settings: dict[str, dict[str, object]]) -> Iterator[tuple[int, str]]:
    """Yield lines and their numbers in the file. Containers wrap several lines in one.

    Args:
        lines: The lines of the file.
        settings: The newest configuration that they print, by what they call it; updated, and its lines left out.
    """
    for line_number, text in enumerate(lines, start=1):
        for line in unwrapped(text):
            if (found := settings_line(line)) is None:
                yield line_number, line
            else:
                settings[found.word] = found.values


def _lines_of(path: Path) -> Iterator[str]:
    """Yield the lines of a file."""
    for _, line in _without_settings(_numbered(TextLines(path, errors="replace"), {})):
        yield line


def _without_settings(lines: Iterable[tuple[int, str]]) -> Iterator[tuple[int, str]]:
    """Yield lines without listings of settings, such as a configuration in YAML or the arguments of a script."""
    listing: list[tuple[int, str]] = []
    texts, is_listing = 0, True
    for numbered in lines:
        text = without_head(numbered[1]).text if _LISTED.search(numbered[1].rstrip()) else ""
        if not _SETTING.match(text):
            if len(listing) < _FEWEST_SETTINGS or texts < _FEWEST_TEXTS:
                yield from listing
            listing, texts, is_listing = [], 0, True
            yield numbered
            continue
        listing.append(numbered)
        texts += _SETTING_OF_TEXT.match(text) is not None
        is_listing &= _RESULT.match(text) is None and len(listing) < _MOST_SETTINGS
        if not is_listing:
            yield from listing
            listing.clear()
    if len(listing) < _FEWEST_SETTINGS or texts < _FEWEST_TEXTS:
        yield from listing


def _is_finite(path: Path) -> bool:
    """Whether Hugging Face's Trainer printed no loss of the training that is not finite, as it does with its filter."""
    return not any(map(_NOT_FINITE.search, TextLines(path, errors="replace")))


def _clocked(rows: Iterable[Row]) -> Iterator[Row]:
    """Yield rows; a time of day without a date becomes the time since the first one of its attempt.

    A clock that falls by more than an hour has passed midnight: lines of several processes may be a little late.
    """
    lives, clocked = Lives(), Life(-1, 0)
    began_ns = newest_ns = 0
    for row in rows:
        life = lives.of_row(row)
        if not 0 < row.time_ns <= DAY_NS:
            yield row
            continue
        newest_ns += (row.time_ns - newest_ns + _LATE_NS) % DAY_NS - _LATE_NS
        if life != clocked:
            clocked, began_ns = life, newest_ns
        elapsed_ns = max(0, newest_ns - began_ns) if row.elapsed_ns is None else row.elapsed_ns
        yield row._replace(time_ns=0, elapsed_ns=elapsed_ns)


def _told_apart(rows: Iterable[Row], lines: Callable[[], Iterable[_Line | None]], path: Path) -> Iterator[Row]:
    """Yield rows; where another run begins, look ahead whether all runs of the file are equally long.

    Raises:
        RefusedRun: They are, and there are many: epochs look so whose counter is not known.
    """
    lives = Lives()
    is_first = True
    for row in rows:
        if is_first and lives.of_row(row).run:
            is_first = False
            ends = list(_ends(line.row for line in lines() if line is not None))
            if len(ends) >= _MANY_RUNS and len(set(ends[:-1])) == 1:
                what = f"the steps begin again {len(ends) - 1} times, and end at {ends[0]} each time"
                fix = "If these are epochs, log a step that goes on. If they are runs, write each to its own file"
                raise RefusedRun(what, where=str(path), fix=fix)
        yield row


def _ends(rows: Iterable[Row]) -> Iterator[int]:
    """Yield the highest step of each run in the rows of a file."""
    lives = Lives()
    for _, group in groupby(rows, key=lambda row: lives.of_row(row).run):
        yield max(row.step for row in group)


def _is_repeated(before: Row, line: _Line) -> bool:
    """Whether a line has the step, the names and the losses of the row before it; without a loss, all values."""
    row = line.row
    if before.step != row.step or line.bar or row.kinds:
        return False
    if not row.metrics or before.metrics.keys() != row.metrics.keys():
        return False
    losses = [name for name in row.metrics if "loss" in name.casefold()] or row.metrics
    return all(repr(before.metrics[name]) == repr(row.metrics[name]) for name in losses)


def _is_log(lines: Iterable[str]) -> bool:
    """Whether enough lines have a step and what trainings measure, or a name that comes again at another step."""
    parse = _parser(None)
    telling = 0
    seen: dict[str, int] = {}
    for line in islice(lines, _LOOKED_AT):
        parsed = parse(line)
        if parsed is None:
            continue
        step, metrics = parsed.row.step, parsed.row.metrics
        comes_again = any(seen.get(name, step) != step for name in metrics)
        telling += _TELLING if comes_again else any(map(_MEASURED.search, metrics))
        seen.update(dict.fromkeys(metrics, step))
        if telling >= _TELLING:
            return True
    return False


def _parser(pattern: str | None, omit: Callable[[str], object] = str) -> Callable[[str], _Line | None]:
    """Return the function that parses a file's lines, one after another.

    Args:
        pattern: The user's regular expression.
        omit: Called with the reason why a value is left out.

    Raises:
        UnreadableSource: The pattern is no regular expression with a group called ``step``.
    """
    if pattern is None:
        return _Lines(omit).next
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
    attrs: dict[str, object] = {}
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
    return _Line(Row(step, metrics, attrs))


class _Block(NamedTuple):
    """A heading, a counter or the word of a phase, with indented values below it.

    Attributes:
        indent: Indentation of the heading; the values are indented more.
        phase: The phase that the heading announces; empty below a counter.
        time_ns: Clock of the heading.
    """

    indent: int
    phase: str
    time_ns: int


class _Lines:
    """Parser of a file's lines without a pattern."""

    def __init__(self, omit: Callable[[str], object] = str) -> None:
        self._omit = omit
        self._positions = Positions()
        self._logged = 0
        self._epoch = 0.0
        self._bars = 0
        #: Whether batches were rows, since the newest summary of an epoch and before it, and its epoch.
        self._is_counted = self._was_counted = False
        self._ended_epoch: int | None = None
        self._state: tuple[int, int, Mapping[str, float]] = (0, 0, {})
        self._announced = ""
        self._block: _Block | None = None
        self._table = PrintedTable()

    def next(self, text: str) -> _Line | None:
        """Parse the next line; None where it holds no values, or no step."""
        announced, self._announced = self._announced, ""
        line = self._table.row_of(text) or parsed_line(text)
        if line is None or not line.metrics:
            self._announced = announced_phase(text, announced)
        self._block = self._block_of(text, line)
        if line is None:
            return None
        if self._block is not None and line.is_whole:
            line = line._replace(phase=line.phase or self._block.phase, time_ns=max(line.time_ns, self._block.time_ns))
        elif announced and line.is_whole:
            line = line._replace(phase=line.phase or announced)
            self._announced = announced
        elif announced and (counter := self._positions.counter_of_evaluation(line)) is not None:
            line = line._replace(phase=line.phase or announced, counters={counter.rank: counter})
            self._announced = announced
        if line.is_object and not line.counters:
            return self._trainer_row(line)
        place = self._positions.place_of(line)
        if not line.metrics and (self._block is None or not line.attrs):
            self._bars += bool(line.counters)  # "Epoch 2/15" is above another bar.
            return None
        if place is None or not self._is_row(line):
            return None
        metrics = _named(line)
        is_summary = self._is_summary(line)
        epoch = line.counters.get(EPOCH_RANK)
        if epoch is not None and len(line.counters) > 1:
            metrics.setdefault("epoch", float(epoch.done))
        row = Row(
            place.step,
            metrics,
            line.attrs,
            line.time_ns,
            line.elapsed_ns,
            step_unit=self._positions.step_unit,
            is_summary=is_summary,
            planned_steps=place.total_steps,
        )
        return _Line(row, line.repeated, 0 if line.bar is None else self._state[0])

    def _block_of(self, text: str, line: LogLine | None) -> _Block | None:
        """Return the block that a line heads or belongs to; None where it does neither.

        A block ends where its indentation does. A value of it that is not read is an omission.
        """
        if line is not None and line.counters:
            return None if line.metrics else _Block(-1 if _CENTRED.search(text) else line.indent, "", line.time_ns)
        head = without_head(text) if self._announced or self._block is not None else None
        if head is None:
            return None
        if not head.text.strip():
            return self._block if self._block is not None and self._block.indent < 0 else None
        if head.text.startswith("####"):
            return None
        if self._announced:
            return _Block(head.indent, self._announced, head.time_ns)
        if self._block is None or head.indent <= self._block.indent:
            return None
        if (line is None or not line.is_whole) and (value := _VALUE_OF_BLOCK.match(head.text)):
            self._omit(f"a block is read without {value[0].strip()!r:.80}")
        return self._block

    def _is_row(self, line: LogLine) -> bool:
        """Whether a line's values are those of its position, and not of a part or of something else."""
        if line.bar is not None:
            return self._is_result(line.bar, line.metrics)
        if line.counters:
            return line.counters.keys() != {BATCH_RANK} or not line.metrics.keys() <= _DURATIONS
        is_measured = self._block is not None or any(map(_MEASURED.search, line.metrics))
        return line.is_whole and is_measured and not any(map(_STALE.search, line.metrics))

    def _is_summary(self, line: LogLine) -> bool:
        """Whether a line sums up an epoch whose batches were rows before."""
        epoch = line.counters.get(EPOCH_RANK)
        if epoch is not None and (line.phase == "train" or (len(line.counters) == 1 and epoch.inner is None)):
            if epoch.done != self._ended_epoch:
                self._ended_epoch, self._was_counted, self._is_counted = epoch.done, self._is_counted, False
            return self._was_counted
        self._is_counted |= bool(line.counters) and not line.phase
        return False

    def _is_result(self, bar: Bar, metrics: Mapping[str, float]) -> bool:
        """Whether a state of a progress bar is the last one of its epoch, or of a training without epochs."""
        is_step = bar.counts_steps or (bar.is_tqdm and self._positions.is_counted_by_bars)
        if bar.done != bar.total and not is_step:
            return False
        number, total, held = self._state
        if bar.is_tqdm:
            self._state = (self._bars + 1, bar.total, metrics)
            return True
        if number == self._bars + 1:
            # Keras adds its validation to the same values. With others it is the bar of ``evaluate``, after ``fit``.
            is_longer = total == bar.total and all(metrics.get(name) == value for name, value in held.items())
            if not is_longer:
                return False
        self._state = (self._bars + 1, bar.total, metrics)
        return True

    def _trainer_row(self, line: LogLine) -> _Line | None:
        """Return a row that Hugging Face's Trainer printed: it has no step, so training rows are counted."""
        epoch = line.metrics.get("epoch")
        if epoch is None or len(line.metrics) < 2:
            return None
        metrics = {name: value for name, value in line.metrics.items() if name != "epoch"}
        if epoch < self._epoch:
            self._logged = 0
        self._epoch = epoch
        kinds: tuple[str, ...] = ("step_end", "log")
        if any(map(is_evaluation, metrics)):
            kinds = ("evaluate",)
        elif "train_runtime" in metrics:
            kinds = ("log",)
        else:
            self._logged += 1
        return _Line(Row(self._logged, metrics, line.attrs, line.time_ns, epoch=epoch, kinds=kinds))


def _named(line: LogLine) -> dict[str, float]:
    """Return the metrics of a line, with the line's phase in front of the names that do not say it."""
    phase = line.phase
    if not phase:
        return dict(line.metrics)
    return {
        name if is_evaluation(name) or name == "epoch" or name.startswith(phase) else f"{phase}/{name}": value
        for name, value in line.metrics.items()
    }


def _last_states(lines: Iterable[_Line]) -> Iterator[Row]:
    """Yield the rows of lines, of a progress bar only its last state at a step."""
    held: Row | None = None
    bar = 0
    for line in lines:
        if held is not None and line.bar and line.bar == bar and held.step == line.row.step:
            time_ns = line.row.time_ns or held.time_ns
            held = line.row._replace(metrics={**held.metrics, **line.row.metrics}, time_ns=time_ns)
            continue
        if held is not None:
            yield held
        held, bar = (line.row if line.bar else None), line.bar
        if held is None:
            yield line.row
    if held is not None:
        yield held


# --- steps of lines -------------------------------------------------------------------------------------------------


class LinePlace(NamedTuple):
    """A line's step, and the last step that the training plans."""

    step: int
    total_steps: int | None = None


class Positions:
    """The position of a training, line by line.

    A line counts the steps of the training, those of its epoch, or only epochs. A count within an epoch continues the
    previous epoch's when it begins again: 100/600 of the second epoch is step 700. A log that counts nothing finer has
    epochs as steps. A line without a counter, such as a validation below ``Epoch 3/15``, has the newest position.
    """

    def __init__(self) -> None:
        self._epoch: int | None = None
        self._epochs: int | None = None
        self._first_epoch = 1
        self._step: int | None = None
        self._steps_per_epoch: int | None = None
        self._counted_epoch = 0
        #: The steps before each epoch, and the newest epoch's own count.
        self._before: dict[int, int] = {}
        self._count = 0
        self._total: int | None = None
        self._unit = "updates"
        #: Whether a line counted the steps of the whole training: numbers in brackets count none elsewhere.
        self._is_global = False

    @property
    def is_counted_by_bars(self) -> bool:
        """Whether nothing but progress bars has counted steps."""
        return self._step is None and self._epoch is None

    @property
    def step_unit(self) -> str:
        """The unit of the steps so far, as in ``ImportedRun``; empty where only progress bars count."""
        if self._step is not None or self._steps_per_epoch is not None:
            return self._unit
        return "" if self._epoch is None else "epochs"

    def counter_of_evaluation(self, line: LogLine) -> Counter | None:
        """Return the counter of a line below an announcement, if its total says that it counts no training."""
        counter = line.counters.get(min(line.counters, default=EPOCH_RANK))
        if counter is None or counter.rank == EPOCH_RANK or None in (counter.total, self._total):
            return None
        return None if counter.total == self._total else counter._replace(counts_evaluation=True)

    def place_of(self, line: LogLine) -> LinePlace | None:
        """Return the step of the next line; None where nothing tells it, or where it shows how far an evaluation is."""
        place = self._place_of(line)
        if place is None or place.step > INT64_MAX:
            return None
        return place if (place.total_steps or 0) <= INT64_MAX else LinePlace(place.step)

    def _place_of(self, line: LogLine) -> LinePlace | None:
        finest = min(line.counters, default=None)
        if finest is None or (finest == BATCH_RANK and self._is_global):
            return self._uncounted(line)
        counter = line.counters[finest]
        epoch = line.counters.get(EPOCH_RANK)
        if epoch is not None:
            self._epoch, self._epochs = epoch.done, epoch.total
            if epoch.done == 0 or epoch.is_from_zero:
                self._first_epoch = 0
        if counter.counts_evaluation:
            return self._evaluated(counter)
        if finest == EPOCH_RANK and counter.inner is None:
            return LinePlace(*self._after_epoch(counter))
        place = self._counted(counter)
        self._is_global |= finest == GLOBAL_RANK
        self._step, self._unit = place.step, counter.unit
        return place

    def _uncounted(self, line: LogLine) -> LinePlace | None:
        """LinePlace a line without counters."""
        if line.bar is not None and line.bar.counts_steps and self._epoch is not None:
            self._step = line.bar.done
            return LinePlace(line.bar.done, line.bar.total)
        if self._step is not None:
            return LinePlace(self._step)
        if self._epoch is not None:
            return LinePlace(self._epoch)
        return None if line.bar is None else LinePlace(line.bar.done, line.bar.total)

    def _evaluated(self, counter: Counter) -> LinePlace | None:
        """LinePlace an evaluation that counts its own batches; between its batches it has no result yet."""
        at, last = (counter.done, counter.total) if counter.inner is None else (counter.inner, counter.within)
        if last is None and counter.rank != EPOCH_RANK:
            last = at + (at != self._count)  # A count without an end is that of the training, or says nothing.
        if last is not None and at < last:
            return None
        return LinePlace(*self._after_epoch(counter)) if counter.rank == EPOCH_RANK else self._newest()

    def _newest(self) -> LinePlace | None:
        return None if self._step is None else LinePlace(self._step)

    def _after_epoch(self, epoch: Counter) -> LinePlace:
        """LinePlace what is known when an epoch is over."""
        if self._steps_per_epoch is not None:
            # open_clip's evaluation counts the epochs that are over, its training those before.
            done = min(epoch.done, self._counted_epoch)
            return LinePlace((done - self._first_epoch + 1) * self._steps_per_epoch)
        return LinePlace(epoch.done, epoch.total) if self._step is None else LinePlace(self._step)

    def _counted(self, counter: Counter) -> LinePlace:
        self._total = counter.total
        if counter.rank == EPOCH_RANK and counter.inner is not None:
            if counter.within is None:
                return LinePlace(self._continued(counter.done, counter.inner, None))
            self._steps_per_epoch, self._counted_epoch = counter.within, counter.done
            total = None if counter.total is None else counter.total * counter.within
            return LinePlace((counter.done - self._first_epoch) * counter.within + counter.inner, total)
        if counter.rank == GLOBAL_RANK or self._epoch is None:
            return LinePlace(counter.done, counter.total)
        step = self._continued(self._epoch, counter.done, counter.total)
        if counter.total is None or len(self._before) == 1:
            return LinePlace(step)
        # A count that has begun again with an epoch is of the epoch.
        epochs = self._epochs if any(self._before.values()) else 1
        return LinePlace(step, None if epochs is None else epochs * counter.total)

    def _continued(self, epoch: int, count: int, total: int | None) -> int:
        """Return the step of a count that may begin again with each epoch."""
        if epoch not in self._before:
            newest = max(self._before, default=epoch)
            held = self._before.get(newest, 0)
            # Without its total, an epoch has at least the batches that it shows. They may be counted from 0.
            length = total or self._count + (count == 0)
            self._before[epoch] = held + length if self._before and count <= self._count else held
        self._count = count
        return self._before[epoch] + count
