"""Separates evaluation metrics from training metrics by their names, and splits rows into events accordingly."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping
from typing import Final, TypeAlias

#: First words of names of metrics measured on held-out data: ``eval_loss``, ``val/acc``, ``test.bleu``, ``ValLoss``.
EVALUATION_WORDS: Final = frozenset(
    ("eval", "evaluation", "evals", "val", "valid", "validation", "test", "testing", "dev", "heldout", "holdout")
)

#: Names of a row's position and duration. Alone they say nothing about the training; in an evaluation row they are part
#: of it.
PLACE_NAMES: Final = frozenset(
    ("epoch", "train/epoch", "global_step", "train/global_step", "trainer/global_step", "time", "data_time")
)

#: Names that alone make a row a ``log`` and no ``step_end``: Lightning's placeholder.
NO_STEP_NAMES: Final = frozenset(("hp_metric",))

#: Words of a name: between separators, and at the capitals of ``valLoss`` and ``ValLoss``.
_WORD: Final = re.compile(r"[A-Z]?[^/_.\-\s'A-Z]+|[A-Z]+(?![a-z])")

#: Between parts of a name; W&B's export of a chart puts the run's name before the metric: ``bright-sun-7 - val_loss``.
_BETWEEN_PARTS: Final = re.compile(r"/| - ")

#: Results that tools measure on held-out data without a word for it: detectron2's ``bbox/AP``, MMEngine's
#: ``coco/bbox_mAP``, Ultralytics' ``metrics/mAP50(B)``.
_RESULT: Final = re.compile(
    r"(?:^|/)(?:bbox|segm|keypoints|sem_seg|panoptic_seg|box_proposals|coco|pascal_voc)/"
    r"|^metrics/(?:precision|recall|mAP|accuracy_top)"
)

#: An event's kind, and the names of the row's metrics that it carries.
_Parts: TypeAlias = tuple[tuple[str, tuple[str, ...]], ...]


@functools.lru_cache(maxsize=4096)
def is_evaluation(name: str) -> bool:
    """Whether a metric's name says that it was measured on held-out data.

    The first word of the name, or of a part after a slash or a dash between blanks, says so; a single word not after
    ``train/``.

    >>> [is_evaluation(name) for name in ("val_loss", "eval/acc", "ValLoss", "ptl/val_loss", "Loss/test", "bbox/AP")]
    [True, True, True, True, True, True]
    >>> [is_evaluation(name) for name in ("value_loss", "train/val", "validity")]
    [False, False, False]

    """
    parts = [[word.casefold() for word in _WORD.findall(part)] for part in _BETWEEN_PARTS.split(name)]
    found = [words for words in parts if words and words[0] in EVALUATION_WORDS]
    if found and parts[0][:1] in (["train"], ["training"]):
        found = [words for words in found if len(words) > 1]
    return bool(found) or _RESULT.search(name) is not None


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
    evaluated = tuple(name for name in names if is_evaluation(name))
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
