"""Finds the files that hold values of held-out data, and reads them with the file of the training beside them.

``val.csv``, ``test_error.tsv`` and ``eval/loss.tsv`` say in their names what they hold. Sources that differ in this
alone become one source, and its runs have the events of all files, by step.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final, NamedTuple

from ..store.errors import TelemetryError
from ..store.metric_words import EVALUATION_WORDS, is_evaluation, word_spans
from .axes import LOGGED_STEP, LoggedEntry, StepPlace, logged_step, places_of
from .rows import PLACE_NAMES
from .source import EPOCHS, Fact, ImportedRun, Reader, ReadOptions, RefusedRun, UnreadableSource, stem_of

#: Words for the training among names of parts.
_TRAINING_WORDS: Final = frozenset(("train", "training", "learn"))

#: Words that people also use for trials of a program. Alone they count before the word for a log only.
_AMBIGUOUS: Final = frozenset(("test", "testing", "dev"))
_LOG_WORDS: Final = frozenset(
    [
        *("log", "logs", "loss", "losses", "error", "acc", "accuracy", "score", "scores", "metric", "metrics"),
        *("result", "results", "history", "curve", "stats", "scalars", "measurements", "output"),
    ]
)


class DataPart(NamedTuple):
    """The part of the data, training or held out, that a file's path names.

    Attributes:
        word: The word for held-out data, such as ``val``; empty for the training.
        rest: The path without the word. Files of one run have the same.
        said: The name of the folder or file that holds the word.
        left: That name without the word.
        is_sure: Whether the path says so without a file of the training beside it.
    """

    word: str
    rest: Path
    said: str
    left: str
    is_sure: bool

    def without(self, name: str) -> str:
        """Return a run's name without the part; empty where nothing is left of it."""
        names = [self.left if name == self.said else name for name in name.split("/")]
        return "/".join(filter(None, names))

    def counterparts(self) -> Iterator[Path]:
        """Yield the paths of the training where the part is held out, and those of held-out data otherwise."""
        for word in sorted(_TRAINING_WORDS if self.word else EVALUATION_WORDS):
            for spelled in (word, word.capitalize()):
                yield self.rest.with_name(self.rest.name.replace("|", spelled))


def part_of(path: Path) -> DataPart | None:
    """Return the part that a path names: in the file's name, first or last, or as one of its folders.

    >>> [part.word for name in ("val.csv", "loss_test.csv", "eval/loss.tsv") if (part := part_of(Path(name)))]
    ['val', 'test', 'eval']
    >>> part_of(Path("validity.csv")), part_of(Path("learn_error.tsv")).without("a/learn_error")
    (None, 'a/error')
    """
    stem = stem_of(path.name)
    words = word_spans(stem)
    for index in dict.fromkeys((0, len(words) - 1)) if words else ():
        begin, end = words[index]
        if _is_part(word := stem[begin:end].casefold()):
            others = [stem[at:to].casefold() for place, (at, to) in enumerate(words) if place != index]
            is_sure = word not in _AMBIGUOUS or (index == 0 and _LOG_WORDS.issuperset(others))
            rest = path.with_name(f"{stem[:begin]}|{stem[end:]}{path.name[len(stem) :]}")
            return DataPart(_held_out(word), rest, stem, (stem[:begin] + stem[end:]).strip("_-. "), is_sure)
    for distance, folder in enumerate(path.parents):
        if _is_part(word := folder.name.casefold()):
            rest = folder.with_name("|") / path.relative_to(folder)
            return DataPart(_held_out(word), rest, folder.name, "", distance == 0 and word not in _AMBIGUOUS)
    return None


def folder_part(folder: Path) -> DataPart | None:
    """Return the part that the name of a folder says, first or last in it, whatever the folders above it are.

    >>> folder_part(Path("model/eval")).word, folder_part(Path("val/model"))
    ('eval', None)
    """
    part = part_of(folder)
    return part if part is not None and part.said == stem_of(folder.name) else None


def _is_part(word: str) -> bool:
    return word in EVALUATION_WORDS or word in _TRAINING_WORDS


def _held_out(word: str) -> str:
    return "" if word in _TRAINING_WORDS else word


def runs_of_parts(
    reader: Reader, files: Sequence[Path], words: Sequence[str], options: ReadOptions
) -> Iterator[ImportedRun]:
    """Yield the runs of a training's file with the evaluations of the other files; then runs of these alone.

    Args:
        reader: The reader of each file.
        files: The files.
        words: The word for held-out data of each file; empty for the training.
        options: As for ``Reader.read``.

    Raises:
        TelemetryError: A file cannot be read, or not to its end.
    """
    problems: list[TelemetryError] = []
    found: list[_HeldOutRun] = []
    for file, word in zip(files, words, strict=True):
        found += _held_out_runs(reader, file, word, options, problems) if word else ()
    training = [file for file, word in zip(files, words, strict=True) if not word]
    try:
        for file in training:
            for run in reader.read((file,), options):
                others = [held for held in found if _is_of(held.run, run)]
                found = [held for held in found if not _is_of(held.run, run)]
                told, problems = problems, []
                yield replace(run, facts=_merged(run, others, told, options))
    except TelemetryError as error:
        problems.insert(0, error)
    by_run: dict[tuple[str, str], list[_HeldOutRun]] = {}
    for held in found:
        by_run.setdefault((held.run.identity, held.run.step_unit), []).append(held)
    yield from _runs_alone(by_run.values(), has_training=bool(training))
    _raise(problems)


def _is_of(held: ImportedRun, run: ImportedRun) -> bool:
    """Whether a run of held-out data is of a training: epochs have a place among its steps, other counts have not."""
    return held.identity == run.identity and held.step_unit in (run.step_unit, EPOCHS)


class _HeldOutRun(NamedTuple):
    """A run of a file of held-out data, with its facts."""

    file: Path
    word: str
    run: ImportedRun
    facts: list[Fact]


def _runs_alone(found: Iterable[Sequence[_HeldOutRun]], *, has_training: bool) -> Iterator[ImportedRun]:
    """Yield the runs without a training: those of one identity and unit together, unless that is a training's."""
    taken: set[str] = set()
    for together in found:
        for own in [[held] for held in together] if has_training else [together]:
            held, run = own[0], own[0].run
            if has_training or run.identity in taken:
                named = run.name or f"{held.file.parent.resolve().name}/{stem_of(held.file.name)}"
                run = replace(run, identity=f"{held.word}/{run.identity}", name=named)
            taken.add(run.identity)
            yield replace(run, facts=iter(_joined(own)))


def _held_out_runs(
    reader: Reader, file: Path, word: str, options: ReadOptions, problems: list[TelemetryError]
) -> Iterator[_HeldOutRun]:
    """Yield the runs of a file; what cannot be read is added to the problems."""
    try:
        for run in reader.read((file,), options):
            facts: list[Fact] = []
            try:
                # What precedes an error is kept.
                for fact in run.facts:
                    facts.append(fact)  # noqa: PERF402
            except TelemetryError as error:
                problems.append(error)
                if isinstance(error, RefusedRun):
                    facts.clear()
            if facts:
                yield _HeldOutRun(file, word, run, list(_as_evaluations(facts, word)))
    except TelemetryError as error:
        problems.append(error)


def _as_evaluations(facts: Sequence[Fact], word: str) -> Iterator[Fact]:
    """Yield the facts as evaluations, their metrics named after the part, unless their names tell the two apart."""
    names = {name for fact in facts for name in fact.metrics}
    if any(is_evaluation(name) or name.casefold().startswith("train") for name in names - PLACE_NAMES):
        yield from facts
        return
    called = {name: name if name in PLACE_NAMES else f"{word}/{name}" for name in names}
    for fact in facts:
        metrics = {called[name]: value for name, value in fact.metrics.items()}
        yield fact._replace(kind="evaluate" if metrics else fact.kind, metrics=metrics)


def _joined(runs: Iterable[_HeldOutRun]) -> list[Fact]:
    """Return the facts of several files in order of attempt and step; those of one step are one event."""
    ordered = sorted((fact for held in runs for fact in held.facts), key=_order)
    joined: list[Fact] = []
    for fact in ordered:
        last = joined[-1] if joined else None
        if last is not None and _is_one_event(last, fact):
            metrics = {**fact.metrics, **last.metrics}
            newest_ns = max(last.time_ns, fact.time_ns)
            joined[-1] = last._replace(metrics=metrics, attrs={**fact.attrs, **last.attrs}, time_ns=newest_ns)
            continue
        joined.append(fact)
    return joined


def _order(fact: Fact) -> tuple[float, ...]:
    return fact.attempt, fact.step, fact.attrs.get(LOGGED_STEP, -1.0 if fact.epoch is None else fact.epoch)


def _is_one_event(last: Fact, fact: Fact) -> bool:
    is_alike = _place(last) == _place(fact)
    return is_alike and last.metrics.keys().isdisjoint(fact.metrics.keys() - PLACE_NAMES)


def _place(fact: Fact) -> tuple[object, ...]:
    """Return what facts of one event have in common."""
    return fact.kind, fact.step, fact.attempt, fact.epoch, fact.attrs.get(LOGGED_STEP)


def _merged(
    run: ImportedRun, others: Sequence[_HeldOutRun], problems: list[TelemetryError], options: ReadOptions
) -> Iterator[Fact]:
    """Yield the facts of a training, each evaluation after those of its step; then raise the problems.

    An evaluation later than all steps of its attempt belongs to the next one, which resumed there.
    """
    if not others:
        yield from _until_error(run.facts, problems)
        _raise(problems)
        return
    facts = list(_until_error(run.facts, problems))
    waiting = _joined(_on_one_axis(run, facts, others, options))
    waiting.reverse()
    attempt = 0
    for fact in facts:
        attempt = fact.attempt
        while waiting and waiting[-1].attempt <= attempt and waiting[-1].step < fact.step:
            yield waiting.pop()._replace(attempt=attempt)
        yield fact
    for fact in reversed(waiting):
        yield fact._replace(attempt=attempt)
    _raise(problems)


def _until_error(facts: Iterator[Fact], problems: list[TelemetryError]) -> Iterator[Fact]:
    """Yield the facts; an error becomes the first of the problems."""
    try:
        yield from facts
    except TelemetryError as error:
        problems.insert(0, error)


def _on_one_axis(
    run: ImportedRun, facts: Sequence[Fact], others: Sequence[_HeldOutRun], options: ReadOptions
) -> list[_HeldOutRun]:
    """Return the runs of held-out data with the steps of the training. Nothing but a clock relates several files."""
    entries = [_entry(fact, run.step_unit, 0) for fact in facts]
    begins = []
    for stream, held in enumerate(others, start=1):
        begins.append(len(entries))
        entries += [_entry(fact, held.run.step_unit, stream) for fact in held.facts]
    places = places_of(entries, options.steps_per_epoch, context=len(facts))
    placed = []
    for begin, held in zip(begins, others, strict=True):
        own = [
            _placed(fact, places.by_index.get(begin + index))
            for index, fact in enumerate(held.facts)
            if not (options.is_growing and begin + index in places.undecided)
        ]
        placed.append(held._replace(facts=own))
    return placed


def _entry(fact: Fact, unit: str, stream: int) -> LoggedEntry:
    names = tuple(name for name in fact.metrics if name not in PLACE_NAMES)
    epoch = fact.metrics.get("epoch", fact.epoch)
    return LoggedEntry(names, fact.step, fact.time_ns, epoch, unit, stream)


def _placed(fact: Fact, place: StepPlace | None) -> Fact:
    if place is None:
        return fact
    attrs = {**fact.attrs, **logged_step(fact.step, place)}
    return fact._replace(step=place.step, epoch=place.epoch, attrs=attrs).on_axis(place.axis)


def _raise(problems: Sequence[TelemetryError]) -> None:
    """Raise the problem, or one error for several."""
    if len(problems) > 1:
        raise UnreadableSource("; ".join(map(str, problems)))
    for problem in problems:
        raise problem
