"""Infers from a metric's name whether it was measured on held-out data, and in which direction it improves."""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Sequence
from enum import StrEnum
from typing import Final

# --- held-out data --------------------------------------------------------------------------------------------------

#: First words of names of metrics measured on held-out data: ``eval_loss``, ``val/acc``, ``test.bleu``, ``ValLoss``.
EVALUATION_WORDS: Final = frozenset(
    ("eval", "evaluation", "evals", "val", "valid", "validation", "test", "testing", "tst", "dev", "heldout", "holdout")
)

#: Words of a name: between separators, and at the capitals of ``valLoss`` and ``ValLoss``.
_WORD: Final = re.compile(r"[A-Z]?[^/_.\-\s'A-Z]+|[A-Z]+(?![a-z])")


def word_spans(name: str) -> list[tuple[int, int]]:
    """Return where each word of a name begins and ends."""
    return [match.span() for match in _WORD.finditer(name)]


def words_in(name: str) -> list[str]:
    """Return the words of a name, case folded.

    >>> words_in("Valid_lossTotal")
    ['valid', 'loss', 'total']
    """
    return [word.casefold() for word in _WORD.findall(name)]


#: Between parts of a name; W&B's export of a chart puts the run's name before the metric: ``bright-sun-7 - val_loss``.
_BETWEEN_PARTS: Final = re.compile(r"/| - ")

#: Results that tools measure on held-out data without a word for it: detectron2's ``bbox/AP``, MMEngine's
#: ``coco/bbox_mAP``, Ultralytics' ``metrics/mAP50(B)``.
_RESULT: Final = re.compile(
    r"(?:^|/)(?:bbox|segm|keypoints|sem_seg|panoptic_seg|box_proposals|coco|pascal_voc)/"
    r"|^metrics/(?:precision|recall|mAP|accuracy_top)"
)

#: A measure and where it was taken: ``Accuracy on the test set``.
_ON_HELD_OUT: Final = re.compile(r"\bon (?:the )?(\w+)[ _-]?(?:set|split|data)\b", re.IGNORECASE)


@functools.lru_cache(maxsize=4096)
def is_evaluation(name: str) -> bool:
    """Whether a metric's name says that it was measured on held-out data.

    The first word of the name, or of a part after a slash or a dash between blanks, says so; a single word not after
    ``train/``. A word for a mean or a part may be before it, if a measure is after it.

    >>> [is_evaluation(name) for name in ("val_loss", "eval/acc", "ValLoss", "ptl/val_loss", "Loss/test", "bbox/AP")]
    [True, True, True, True, True, True]
    >>> [is_evaluation(name) for name in ("avg_val_loss", "mini_val_loss", "mean_dev", "avg_value")]
    [True, True, False, False]
    >>> is_evaluation("Accuracy on Test-Set"), is_evaluation("loss on train set")
    (True, False)
    >>> [is_evaluation(name) for name in ("value_loss", "train/val", "validity", "dev0/mem", "test1/AUC")]
    [False, False, False, False, True]

    """
    if (match := _ON_HELD_OUT.search(name)) is not None and _is_held_out(match[1].casefold()):
        return True
    parts = [words_in(part) for part in _BETWEEN_PARTS.split(name)]
    found = [words for words in parts if words and _is_held_out(words[_is_qualified(words)])]
    if found and parts[0][:1] in (["train"], ["training"]):
        found = [words for words in found if len(words) > 1]
    return bool(found) or _RESULT.search(name) is not None


def _is_qualified(words: Sequence[str]) -> bool:
    """Whether a measure's name begins with a word for its mean or its part: ``avg_val_loss``, not ``mean_dev``."""
    return len(words) > 2 and words[0] in ("avg", "average", "mean", "ema", "mini", "full", "epoch")


def _is_held_out(word: str) -> bool:
    """Whether a word names held-out data; CatBoost calls a second set ``test1``. ``dev0`` is a device."""
    return word in EVALUATION_WORDS or (word.rstrip("0123456789") in EVALUATION_WORDS and not word.startswith("dev"))


# --- direction ------------------------------------------------------------------------------------------------------


class Mode(StrEnum):
    """Whether a lower or a higher value of a metric is better."""

    MIN = "min"
    MAX = "max"


_LOWER: Final = frozenset(
    (
        *("perplexity", "ppl", "nll", "xent", "crossent", "ce", "bce", "bpb", "bpc", "bpd", "kld"),
        *("error", "errors", "err", "errs", "wer", "cer", "eer"),
        *("mae", "mse", "rmse", "nrmse", "rmsle", "mape", "smape"),
        *("fid", "kid", "lpips", "brier", "ece"),
    )
)
_HIGHER: Final = frozenset(
    (
        *("acc", "accuracy", "accuracies", "top1", "top5", "precision", "recall", "f1", "mcc", "matthews", "kappa"),
        *("auc", "auroc", "rocauc", "auprc", "aupr", "ap", "map", "ndcg", "mrr"),
        *("iou", "miou", "giou", "dice", "psnr", "ssim"),
        *("bleu", "sacrebleu", "chrf", "meteor", "rouge", "rougel", "rougelsum", "em", "likelihood"),
        *("r2", "spearman", "spearmanr", "pearson", "pearsonr", "correlation"),
        *("reward", "rewards", "return", "returns", "success"),
    )
)
#: The same for words that say it only together.
_LOWER_TOGETHER: Final = (frozenset(("cross", "entropy")),)
_HIGHER_TOGETHER: Final = (frozenset(("exact", "match")), frozenset(("win", "rate")))
#: Words that turn a metric around, such as scikit-learn's ``neg_mean_squared_error``.
_NEGATED: Final = frozenset(("neg", "negative"))

#: Most pieces of a word, as in ``mIoU``.
_MOST_PIECES: Final = 3

_CHUNK: Final = re.compile(r"[A-Za-z0-9]+")
#: Part of a name in camel case: capitals, a word, or digits.
_PIECE: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")


def mode_of(metric: str) -> Mode | None:
    """Infer from a metric's name whether lower or higher is better; None if the name does not say.

    >>> [str(mode_of(name)) for name in ("val/loss", "evalAnswerF1", "metrics/mAP50(B)", "eval_throughput_accel")]
    ['min', 'max', 'max', 'None']
    """
    words = words_of_name(metric)
    if any(map(is_loss_word, words)):
        # A negated loss may be a loss on negatives.
        return Mode.MIN if words.isdisjoint(_NEGATED) else None
    is_negated = not words.isdisjoint(_NEGATED)
    if words & _LOWER or any(each <= words for each in _LOWER_TOGETHER):
        return Mode.MAX if is_negated else Mode.MIN
    if words & _HIGHER or any(each <= words for each in _HIGHER_TOGETHER):
        return Mode.MIN if is_negated else Mode.MAX
    return None


def is_loss_word(word: str) -> bool:
    """Whether a word of a name says that the metric is a loss."""
    return word.endswith("loss") or word == "losses"


@functools.lru_cache(maxsize=4096)
def words_of_name(metric: str) -> frozenset[str]:
    """Return every run of neighbouring pieces of each chunk, in lower case: ``mAP50`` holds ``map`` and ``map50``."""
    words: set[str] = set()
    for chunk in _CHUNK.findall(metric):
        pieces = [piece.casefold() for piece in _PIECE.findall(chunk)]
        for begin, length in itertools.product(range(len(pieces)), range(1, _MOST_PIECES + 1)):
            words.add("".join(pieces[begin : begin + length]))
    return frozenset(words)


def pieces_of(metric: str) -> list[str]:
    """Return the pieces of a name, which separators and changes of case divide."""
    return _PIECE.findall(metric)
