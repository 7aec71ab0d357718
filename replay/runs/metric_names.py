"""Infers from a metric's name what it measures, and on which data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, TypeAlias

from ...store.errors import counted
from ...store.metric_words import is_loss_word, pieces_of, words_of_name


class Split(IntEnum):
    """The data on which a metric was measured, as its name says. Runs are judged by the first that they have.

    Attributes:
        VALIDATION: Held-out data that training may be steered by; also names that do not say.
        TEST: Data kept for the final comparison.
        TRAINING: The training data.
    """

    VALIDATION = 0
    TEST = 1
    TRAINING = 2


#: The words for held-out data, in the order in which runs are judged by them.
_HELD_OUT: Final = ("eval", "evaluation", "evals", "val", "valid", "validation", "dev", "heldout", "holdout")
_TEST: Final = ("test", "testing")
_TRAINING: Final = ("train", "training")
_LEFT_OUT: Final = frozenset((*_HELD_OUT, *_TEST, *_TRAINING, "epoch"))


def is_loss(metric: str) -> bool:
    """Whether a metric's name says that it is a loss."""
    return any(map(is_loss_word, words_of_name(metric)))


def is_plain_loss(metric: str) -> bool:
    """Whether a metric is the loss on some data, without any other word: ``val_loss``, but not ``val_box_loss``."""
    return measure_of(metric) == ("loss",)


def split_of(metric: str) -> Split:
    """Return the data on which a metric was measured."""
    words = words_of_name(metric)
    if words & set(_TRAINING):
        return Split.TRAINING
    return Split.TEST if words & set(_TEST) else Split.VALIDATION


def is_held_out(metric: str) -> bool:
    """Whether a metric's name says that it was measured on held-out data."""
    return not words_of_name(metric).isdisjoint((*_HELD_OUT, *_TEST))


def rank_of(metric: str) -> int:
    """Return the rank of a name's word for held-out data; names without one come last."""
    words = words_of_name(metric)
    return next((rank for rank, word in enumerate(_HELD_OUT) if word in words), len(_HELD_OUT))


def measure_of(metric: str) -> tuple[str, ...]:
    """Return what a metric measures: its words apart from those that name the data, and Lightning's ``epoch``.

    >>> measure_of("validation/loss"), measure_of("eval_acc")
    (('loss',), ('accuracy',))
    """
    pieces = (piece.casefold() for piece in pieces_of(metric))
    return tuple("accuracy" if piece == "acc" else piece for piece in pieces if piece not in _LEFT_OUT)


def meaning_of(metric: str) -> tuple[tuple[str, ...], Split]:
    """Return what a metric measures, on which data. Metrics of one meaning are one, whatever their names.

    >>> meaning_of("dev xent") == meaning_of("xent/val")
    True
    """
    return measure_of(metric) or (metric,), split_of(metric)


def nearest_metric(metric: str, names: Iterable[str]) -> str:
    """Return the name that measures the same on the same data, in other words; empty if none does.

    >>> nearest_metric("loss", ["val_loss"])
    ''
    """
    return next(iter(near_metrics(metric, names)), "")


def near_metrics(metric: str, names: Iterable[str]) -> list[str]:
    """Return the names that measure the same on the same data, in other words, the nearest first.

    Any word for held-out data is as good as another, and a name without a word for the data is of the training data.

    >>> near_metrics("eval_loss", ["train/loss", "test/loss", "validation/loss"])
    ['validation/loss', 'test/loss']
    """
    asked, is_evaluation = measure_of(metric), is_held_out(metric)
    alike = [name for name in names if is_held_out(name) == is_evaluation and measure_of(name) == asked]
    return sorted(alike, key=lambda name: (split_of(name), rank_of(name), name))


#: Pairs of an old and a new name, in the user's order.
Renames: TypeAlias = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class NearNames:
    """The names under which runs may have recorded a metric that they lack.

    Attributes:
        name: The metric, as rules call it.
        runs: Number of runs by name, the commonest first.
        is_alone: Whether no run has two of these names, so that each may be taken.
        judging: Those of the names that are near to nothing, but judge their runs.
    """

    name: str
    runs: dict[str, int]
    is_alone: bool
    judging: frozenset[str] = frozenset()

    @property
    def renames(self) -> dict[str, str]:
        """The new names by old ones; empty if none may be taken."""
        return dict.fromkeys(self.runs, self.name) if self.is_alone else {}

    def sentence(self) -> str:
        """Say what is taken for the metric, or why nothing is."""
        names = [f"{name} ({counted(count, 'run', ',')})" for name, count in self.runs.items()]
        if not self.is_alone:
            return f"{self.name} may be {' or '.join(names)}: none is taken. Name one with --rename OLD={self.name}"
        is_one = len(names) == 1
        read = f"{', '.join(names)} {'is' if is_one else 'are'} read as {self.name}"
        if self.judging.issuperset(self.runs):
            return f"{read}, which {'judges the' if is_one else 'judge their'} runs; no name is near"
        return f"{read}, the nearest name{'' if is_one else ' of each run'}"


def same_elsewhere(metric: str, recorded: Iterable[Collection[str]]) -> NearNames | None:
    """Return the names by which runs that lack a metric call it; None if there are none, or some run has two of them.

    Args:
        metric: The metric.
        recorded: The names of each run's metrics.
    """
    counts: Counter[str] = Counter()
    for names in recorded:
        if metric not in names:
            same = [name for name in near_metrics(metric, names) if split_of(name) is split_of(metric)]
            if len(same) > 1:
                return None
            counts.update(same)
    return NearNames(metric, commonest_first(counts), is_alone=True) if counts else None


def commonest_first(counts: Counter[str]) -> dict[str, int]:
    """Return names with their counts, the commonest first."""
    return dict(sorted(counts.items(), key=lambda one: (-one[1], one[0])))
