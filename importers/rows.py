"""Groups the rows that a source logged into runs, attempts and events.

A row has several metrics at one step, as in tables, JSON lines and text logs. The names of metrics tell evaluations
from training, and so what events a row becomes.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from functools import partial
from typing import Any, Final, NamedTuple, TypeAlias

from ..store.metric_words import EVALUATION_WORDS, is_evaluation, words_in
from ..store.plan import Plan
from .source import Fact, ImportedRun, StepAxis

#: A source with more metrics is no training log; a store would hold them, but poorly.
MOST_METRICS: Final = 20_000

# --- the names of evaluations ----------------------------------------------------------------------------------------

#: Names of a row's position and duration. Alone they say nothing about the training; in an evaluation row they are part
#: of it.
PLACE_NAMES: Final = frozenset(
    (
        *("epoch", "train/epoch", "global_step", "train/global_step", "trainer/global_step", "time", "data_time"),
        *("step", "iter", "iteration", "total_steps", "percentage"),
    )
)

#: Names that alone make a row a ``log`` and no ``step_end``: Lightning's placeholder.
NO_STEP_NAMES: Final = frozenset(("hp_metric",))

#: An event's kind, and the names of the row's metrics that it carries.
_Parts: TypeAlias = tuple[tuple[str, tuple[str, ...]], ...]


#: Last words of names of the training whose partners end with another word: ``loss_train`` beside ``loss_val``.
_TRAINING_ENDS: Final = ("train", "training", "trn", "tr")


def _paired(names: Sequence[str]) -> frozenset[str]:
    """Return the names that end with a word for held-out data, where one of them has a partner of the training."""
    split = {name: words_in(name) for name in names}
    trained = {tuple(words[:-1]) for words in split.values() if words[-1:] and words[-1] in _TRAINING_ENDS}
    ends = {words[-1] for words in split.values() if len(words) > 1 and tuple(words[:-1]) in trained}
    return frozenset(name for name, words in split.items() if words[-1:] and words[-1] in ends & EVALUATION_WORDS)


@functools.lru_cache(maxsize=1024)
def parts_of(names: tuple[str, ...]) -> _Parts:
    """Return the events for a row of these names: training metrics as ``step_end``, evaluation metrics as ``evaluate``.

    >>> parts_of(("loss", "val_loss"))
    (('step_end', ('loss',)), ('evaluate', ('val_loss',)))
    >>> parts_of(("epoch", "val_loss"))
    (('evaluate', ('epoch', 'val_loss')),)
    >>> parts_of(("epoch",))
    (('log', ('epoch',)),)
    """
    evaluated = tuple(name for name in names if is_evaluation(name) or name in _paired(names))
    rest = tuple(name for name in names if name not in evaluated)
    if not evaluated:
        is_news = any(name not in PLACE_NAMES and name not in NO_STEP_NAMES for name in rest)
        return (("step_end" if is_news else "log", rest),)
    if PLACE_NAMES.issuperset(rest):
        return (("evaluate", names),)
    return ("step_end", rest), ("evaluate", evaluated)


def split_row(metrics: Mapping[str, float]) -> Iterator[tuple[str, Mapping[str, float]]]:
    """Yield the kind and the metrics of each event that a row becomes; nothing for an empty row."""
    if not metrics:
        return
    parts = parts_of(tuple(metrics))
    if len(parts) == 1:
        yield parts[0][0], metrics
        return
    for kind, names in parts:
        yield kind, {name: metrics[name] for name in names}


# --- rows ------------------------------------------------------------------------------------------------------------


class Row(NamedTuple):
    """One row of a source.

    Attributes:
        step: Its step.
        metrics: Its numbers.
        attrs: Its text.
        time_ns, elapsed_ns: Its clocks, as in ``Fact``.
        epoch: Epochs finished, as in ``Fact``.
        kinds: The events that it becomes, each with all metrics. By default the names of the metrics decide.
        run: The columns that tell its run from the table's others, and their values.
        step_unit: What its step counts, as in ``ImportedRun``.
        is_summary: Whether its values of the training sum up rows before it: they are a ``log``, and no update.
        axis: As in ``Fact``.
        planned_steps: The last step that the training plans, as the row says.
    """

    step: int
    metrics: Mapping[str, float]
    attrs: Mapping[str, Any]
    time_ns: int = 0
    elapsed_ns: int | None = None
    epoch: float | None = None
    kinds: tuple[str, ...] = ()
    run: tuple[tuple[str, str], ...] = ()
    step_unit: str = ""
    is_summary: bool = False
    axis: StepAxis | None = None
    planned_steps: int | None = None


def runs_of(
    rows: Iterable[Row],
    *,
    config: Callable[[], dict[str, object]] = dict,
    facts_of: Callable[[Row, int], Iterator[Fact]] | None = None,
) -> Iterator[ImportedRun]:
    """Yield the runs in a sequence of rows, one after another; a run's rows are read as its facts are consumed.

    Args:
        rows: Rows in the order of the source.
        config: Returns a run's configuration; called after its first row is read.
        facts_of: Returns the events of a row in an attempt; by default ``facts_by_name``.
    """
    lives = Lives()
    step_unit = ""

    def with_lives() -> Iterator[tuple[Life, Row]]:
        nonlocal step_unit
        for row in rows:
            step_unit = row.step_unit
            yield lives.of_row(row), row

    make = facts_of or facts_by_name
    for index, group in itertools.groupby(with_lives(), key=lambda entry: entry[0].run):
        planned: set[int] = set()
        facts = (fact.on_axis(row.axis) for life, row in _noted(group, planned) for fact in make(row, life.attempt))
        # The last row that was read is the first of this run.
        identity = str(index) if index else ""
        yield ImportedRun(facts, identity=identity, config=config(), plan=partial(_plan, planned), step_unit=step_unit)


def _noted(rows: Iterable[tuple[Life, Row]], planned: set[int]) -> Iterator[tuple[Life, Row]]:
    """Yield the rows of a run, and note each planned length that they say."""
    for life, row in rows:
        if row.planned_steps is not None:
            planned.add(row.planned_steps)
        yield life, row


def _plan(planned: Set[int]) -> Plan:
    """Return the plan of a run whose rows say one length; an empty plan where they say none, or several."""
    return Plan(total_steps=next(iter(planned)) if len(planned) == 1 else None)


def facts_by_name(row: Row, attempt: int) -> Iterator[Fact]:
    """Yield the events of a row: metrics split by name into training and evaluation, the text on the first event."""
    attrs = row.attrs
    parts = [(kind, row.metrics) for kind in row.kinds] or split_row(row.metrics)
    for kind, metrics in parts:
        kind = "log" if row.is_summary and kind == "step_end" else kind
        yield Fact(kind, row.step, metrics, row.epoch, row.time_ns, row.elapsed_ns, attrs, attempt)
        attrs = {}
    if not row.metrics and attrs:
        yield Fact("log", row.step, {}, None, row.time_ns, row.elapsed_ns, attrs, attempt)


def joined(rows: Iterable[Row]) -> Iterator[Row]:
    """Yield rows; those of one step that follow one another are one, where each has other names of the same event.

    Some tools write a step's loss and its learning rate in two lines. A rule's patience would count two events.
    """
    held: Row | None = None
    for row in rows:
        if held is not None and _is_one_event(held, row):
            held = held._replace(
                metrics={**held.metrics, **row.metrics},
                attrs={**held.attrs, **row.attrs},
                time_ns=max(held.time_ns, row.time_ns),
                elapsed_ns=held.elapsed_ns if row.elapsed_ns is None else row.elapsed_ns,
                planned_steps=held.planned_steps if row.planned_steps is None else row.planned_steps,
            )
            continue
        if held is not None:
            yield held
        held = row
    if held is not None:
        yield held


def _is_one_event(held: Row, row: Row) -> bool:
    if (held.step, held.is_summary) != (row.step, row.is_summary):
        return False
    if held.kinds or row.kinds or not held.metrics.keys().isdisjoint(row.metrics):
        return False
    return len({is_evaluation(name) for name in (*held.metrics, *row.metrics) if name not in PLACE_NAMES}) == 1


# --- resumes and restarts -------------------------------------------------------------------------------------------


class Life(NamedTuple):
    """The run and attempt that a row belongs to: indices of the source's run and of that run's attempt, both from 0."""

    run: int
    attempt: int


class Lives:
    """Assigns each row of a source, in order, to a run and an attempt.

    A row starts a new attempt when one of its metrics was logged before at a later step. Other metrics may lag behind,
    as evaluations do, without starting one. Where the new attempt begins at or before the run's first step, it is
    attempt 0 of another run instead.
    """

    def __init__(self) -> None:
        self._life = Life(0, 0)
        self._first_step: int | None = None
        self._newest: dict[str, int] = {}

    def of(self, step: int, names: Iterable[str]) -> Life:
        """Return the run and attempt of the next row.

        Args:
            step: The row's step.
            names: The metrics in the row.
        """
        names = tuple(names)
        newest = self._newest
        if any(newest.get(name, step) > step for name in names):
            self._begin(step)
            newest = self._newest
        if self._first_step is None or step < self._first_step:
            self._first_step = step
        for name in names:
            newest[name] = step
        return self._life

    def of_row(self, row: Row) -> Life:
        """Return the run and attempt of the next row by its metrics, without those of its place."""
        return self.of(row.step, (name for name in row.metrics if name not in PLACE_NAMES))

    def _begin(self, step: int) -> None:
        run, attempt = self._life
        if self._first_step is None or step <= self._first_step:
            self._life, self._first_step = Life(run + 1, 0), None
        else:
            self._life = Life(run, attempt + 1)
        self._newest = {}
