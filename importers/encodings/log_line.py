"""Parses a line of a plain-text log: its counters of steps and epochs, its phase, and its names with their numbers.

What tools write differs in separators, brackets and blanks only: one grammar reads them all. ``_COUNTED`` is what
follows a name of steps, ``_VALUE`` what follows any other name.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from .line_head import without_head
from .numbers import NS, nanoseconds, number

#: A longer line is a dump of something, and is skipped.
_LONGEST: Final = 20_000

#: Colours and cursor movements of terminals.
ESCAPES: Final = re.compile(r"\x1b\[[\d;?]*[A-Za-z]")

#: Names of counters. A rank orders them: a line's steps are those of its counter with the lowest rank.
_RANKS: Final = {
    **dict.fromkeys(("num_updates", "global_step", "global step", "train_step"), 0),
    **dict.fromkeys(("step", "steps", "num_timesteps"), 1),
    **dict.fromkeys(("iteration", "iterations", "iter", "iters", "it", "s"), 2),
    **dict.fromkeys(("update", "updates"), 3),
    **dict.fromkeys(("batch", "batch_idx"), 4),
    **dict.fromkeys(("epoch", "epochs"), 5),
}
GLOBAL_RANK: Final = 0
BATCH_RANK: Final = 4
EPOCH_RANK: Final = 5

#: Names of counters in lower-case text, and what may follow: ``step 5/30``, ``Epoch [3/10]``, ``Iter(train) [5/160]``,
#: ``epoch 001:  100 / 1102``, ``epoch 1 | 100/ 2826 batches``, ``Epoch [1][50/962]``, ``Epoch: 1 [640/60000 (1%)]``.
#: Inner numbers count within epochs.
_COUNTER_NAME: Final = re.compile(
    r"(?<![\w.\-])(?<!\w\()(?<![A-Za-z_]/)(?:global[_ ]step|num_(?:updates|timesteps)|train_step|steps?"
    r"|iter(?:ation)?s?|it|s(?=:\d+ t[re]l:)|updates?|batch(?:_idx)?|epochs?)(?=[\s:=\#\[(])"
)
_COUNT: Final = r"\d{1,3}(?:,\d{3})+|\d{1,18}"
_COUNTED: Final = re.compile(
    r"(?:\((?P<mode>train|val|test)\))?(?:\s{0,20}[:=\#]\s{0,20}|\s{1,20}|(?=\[))"
    rf"(?P<open>\[\s*(?:\d{{1,18}}-)?)?(?P<count>{_COUNT})(?![\d.]*\d|[\w%]|,\d)"
    r"(?:\s{0,20}(?:/|of\s)\s{0,20}(?P<total>\d{1,18})(?![\d/]))?(?(open)\s*\])"
    rf"(?:\s{{0,20}}\[\s*(?P<inner>{_COUNT})\s*(?:/\s*(?P<within>\d{{1,18}})\s*)?(?:\(\s*\d+%\s*\)\s*)?\]"
    rf"|:\s{{0,20}}(?P<count2>{_COUNT})\s/\s(?P<within2>\d{{1,18}})"
    rf"|\s{{0,20}}\|\s{{0,20}}(?P<count3>{_COUNT})/\s{{0,20}}(?P<within3>\d{{1,18}})\sbatches)?"
)

#: LightGBM and XGBoost begin a line with the round in brackets, CatBoost with a colon after it and the best round.
_ROUND: Final = re.compile(r"\s*(?:\[(\d{1,18})\]\s|(\d{1,18}):\s+(?=(?:learn|test):))")
_BEST_SO_FAR: Final = re.compile(r"\sbest: \S+ \(\d+\)")
#: PyTorch's tutorials begin a line with the epoch and the batch.
_EPOCH_AND_BATCH: Final = re.compile(r"\s*\[(\d{1,9}),\s*(\d{1,18})\](?=:?\s)")
#: Values before a counter: ``loss = 0.5, step = 100``. Sockeye has tabs between them and the checkpoint's number first.
_PAIRS_BEFORE: Final = re.compile(
    r"\s*(?:\d+\t)?((?:[a-z_][\w./-]* ?[=:] ?[-+\d.e]+,\s)+|(?:[a-z_][\w./-]*=[-+\w.]+\t)+)", re.IGNORECASE
)

#: A progress bar's count and total: Keras, before and since version 3, and tqdm.
_KERAS_BAR: Final = re.compile(
    r"\s*(?:(\d{1,18})/(\d{1,18})\s*(?:\[[=>.]*\]|[━ ]*)?\s*-?\s*|-\s+)?(?=\d+(?:\.\d+)?m?s\s)"
)
_TQDM_BAR: Final = re.compile(r"\d+%\|[^|]*\|\s*(\d{1,18})/(\d{1,18})\s*\[[^\]]*?(?:,\s|\])(?=[\s\d?.]*\w+/\w+|\])")

#: A separator and a number, optionally with its total or unit, or in brackets. Commas group thousands. A number with
#: another comma does not match, since its meaning is ambiguous; nor does a version, a time of day or what was before.
_NUMBER: Final = (
    r"[+-]?(?:(?:[1-9]\d{0,2}(?:,\d{3})+|\d+)(?:\.\d*)?(?:[eE][+-]?\d+)?|\.\d+(?:[eE][+-]?\d+)?|nan|inf(?:inity)?)"
    r"(?!\.?\d|,\d|[\w.]*:\d|\s{0,2}[:=]|\s+days?\b|\s?--?>)"
)
_VALUE: Final = re.compile(
    # "number of nan iterations: 0" counts iterations.
    r"(?<=[\w)'@])(?P<sep>\s{0,20}[:=]\s{0,20}|\s{1,20}(?!(?:nan|inf)\s[A-Za-z][\w ]{0,20}[:=]))"
    rf"(?:(?P<list>\[\s*)(?P<item>{_NUMBER})(?:\s*,\s*(?P=item))*\s*\]|(?P<number>{_NUMBER})(?:/(?P<of>\d+))?)"
    r"(?P<unit>[A-Za-z%]*)(?P<apart>\s(?:secs?|seconds|ms|min|minutes|[kmgt]i?b|it/s|s/it)\b)?",
    re.IGNORECASE,
)
#: The name before a separator: words with one blank between them.
_WORD: Final = r"[A-Za-z_][\w./@'-]*"
_NAME: Final = re.compile(rf"(?<![\w./'-]){_WORD}(?: (?:{_WORD}|\(\w+\)|\.\d+))*\Z")
_LINKING_WORD: Final = re.compile(r"(?:with|and) ", re.IGNORECASE)
_LONGEST_NAME: Final = 120
_MOST_WORDS: Final = 7
_MOST_BLANK_WORDS: Final = 3
_MARK: Final = re.compile(r"(?:^|[|,;:()\[\]{}>*]|\s-|\s\s|\t|\d:\d\d)\s*\Z")
_END_OF_VALUE: Final = re.compile(r"\s*(?:$|[,;|()\[\]}*]|-\s)")

#: Short names from llm.c's logs, which others copied, with their long names.
_LONG_NAMES: Final = {"tel": "val_loss", "trl": "train_loss"}

#: Names of the time since the training began.
_STOPWATCHES: Final = ("train_time", "elapsed", "elapsed_time")
_UNIT_NS: Final = {"ms": NS // 1000, "s": NS, "sec": NS, "m": 60 * NS, "min": 60 * NS, "h": 3600 * NS, "d": 86_400 * NS}

#: Words of a line that measures on held-out data, and the words for them in front of its metrics' names.
_PHASES: Final = {
    **{word: word for word in ("val", "valid", "validation", "test", "eval", "evaluation", "dev")},
    **dict.fromkeys(("validate", "validating"), "validation"),
    **dict.fromkeys(("evaluate", "evaluating"), "eval"),
    "testing": "test",
}
_TRAINING: Final = ("train", "training")
#: Words that may stand before a counter; after others, such as "wait on step 1", it counts nothing.
_BEFORE: Final = frozenset(
    (
        *_PHASES,
        "train",
        "training",
        "trainer",
        "current",
        "optimizer",
        "finished",
        "completed",
        "end",
        "loss",
        "summary",
        "results",
        "learning",
    )
).union(("of", "at", "the", "in", "on", "for", "after"))
_MARKS_BEFORE: Final = re.compile(r"[|,;:()\[\]{}<>/]|\s--?\s|\s{2,}|\t|\b(?:info|debug|warning|error)\b")
#: The start of a line that is the result of an evaluation: ``Validation result (greedy) at epoch``.
_PHASE_FIRST: Final = re.compile(r"\s*([a-z]+)[^\d:=|]*\Z")
_PHASE_NEXT: Final = re.compile(r"\s+(\w+)\s(?=\w+\s?[=:])(?!.*\btrain)", re.IGNORECASE)
_PHASE_AFTER: Final = re.compile(r"\s*\bon (?:the )?'?(\w+)'? (?:set|subset|data)\b", re.IGNORECASE)
_SEGMENT: Final = re.compile(
    r"(?:^|\|)\s*\[?(\w+)\]?\s*\||^\s*\[?(\w+)\]?(?: set)?\s*:\s*(?![\s\d.+-]|nan|inf|n/a)"
    r"|\|\s*([a-z]+)(?: [a-z]+){1,3}:\s(?=[a-z]\w* ?[=:])|,\s*(\w+):\s(?=\w+\s?[=:])"
    r"|\]\s*(?:[a-z]+\s)?(\w+):\s(?=\w+[\s=:])",
    re.IGNORECASE,
)

#: A number of batches and their total, at the end of PyTorch's lines or after ``Test:``.
_BATCHES: Final = re.compile(r"(?P<phase>^\s*test:\s*)?\[\s*(\d{1,18})\s*/\s*(\d{1,18})\s*\]", re.IGNORECASE)

#: What a line of values may hold besides: times, remarks in brackets, levels of loggers.
_ASIDE: Final = re.compile(r"\([^()]*\)|\bsteps/s\b|\b\d+(?:\.\d+)?\s*m?s(?:/\w+)?\b|\b(?:INFO|DEBUG|set)\b")
_PROSE_WORD: Final = re.compile(r"[^\W\d_]{2,}")

#: Objects in a line: Python's, as Hugging Face's Trainer prints them, and JSON, as fairseq does.
_PYTHON_OBJECT: Final = re.compile(r"\{('[^{}]*)\}\s*$")
_PYTHON_ITEM: Final = re.compile(r"'([^']{1,100})': '?([^',}]*)'?(?:,|$)")
_JSON_OBJECT: Final = re.compile(r'\{".*\}\s*$')
#: A line that announces the results of an evaluation below it: ``Test Error:``, ``***** Evaluating perplexity *****``.
_ANNOUNCEMENT: Final = re.compile(rf"[\W_]*(?:running )?({'|'.join(_PHASES)})\b", re.IGNORECASE)
#: What Caffe writes before a result of the test whose iteration a line above names.
_CAFFE_TEST: Final = re.compile(r"^\s*Test net output #\d+: ")
#: What TensorFlow's Estimator writes before an evaluation, and repeats in it.
_ESTIMATOR: Final = re.compile(r"^\s*Saving dict for global step (\d{1,18}):|, global_step = \d+(?=,|$)")
#: Lines of some tools, and the words in which others write the same: timm and Swin, torchtune, Darknet, Marian.
_MARIAN: Final = re.compile(r"(\s*(?:\[valid\] )?)Ep\. (\d{1,9}) : Up\. (\d{1,18}) : ")
_FORMS: Final = {
    re.compile(
        r"\s*Train:\s*\[?(\d{1,9})(?:/\d{1,9}\])?\s*\[\s*(\d{1,18})/(\d{1,18})\s*(?:\(\s*\d+%\s*\))?\s*\]"
    ): r"Epoch: [\1][\2/\3] |",
    re.compile(r"\s*(\d{1,9})\|(\d{1,18})\|Loss: (\S+):.*"): r"epoch \1 | global_step \2 | Loss: \3",
    re.compile(
        r"\s*(\d{1,18}): (\S+), (\S+) avg(?: loss)?, (\S+) rate,.*"
    ): r"iter \1 | loss: \2 | avg loss: \3 | rate: \4",
    _MARIAN: r"\1epoch \2 | num_updates \3 | ",
}
_SENTENCES: Final = re.compile(r" : (?=[A-Z]|new best|stalled)")
#: A name in quotes: ``metric 'epoch_loss'=0.5``, ``{'Loss/total_loss': 0.5,``.
_QUOTED: Final = re.compile(r"'([A-Za-z_][\w/.-]*)'(?=\s?[:=])")

#: A line of Unity's ML-Agents: the behavior, the step and sentences. Before 1.0 it had a colon, and a point less.
_UNITY: Final = re.compile(r"(?:.*: )?\s*([^.:]{1,100})[.:] Step: (\d{1,18})\. (?=Time Elapsed:|(?:Mean|No) )(.*)")
_UNITY_VALUE: Final = re.compile(r"([A-Z][A-Za-z ]*): (-?\d+(?:\.\d+)?(?:e[+-]\d+)?|nan)(?= |\.|$)")
#: A line of StyleGAN's, and those of its measures.
_STYLEGAN: Final = re.compile(r"\s*tick (\d{1,18})\s+kimg\s")
_STYLEGAN_VALUE: Final = re.compile(r"([a-z][\w/]*) +(-?\d+(?:\.\d*)?)(?=\s|$)")
_STYLEGAN_TIME: Final = re.compile(r"\stime ((?:\d+[dhms] ?)+)")
_STYLEGAN_MEASURE: Final = re.compile(r'\s*(?:network-snapshot-\S+\s+time |\{"results": \{)')
_STYLEGAN_RESULT: Final = re.compile(r'(?<![\w/])((?:(?:fid|kid|is|pr|eq[tr])\d|ppl)\w*)"?:? +(-?\d+(?:\.\d+)?)')
#: A line without a digit says nothing.
_DIGIT: Final = re.compile(r"\d")
#: Source code, commands and arguments, which some scripts print first, and lines of processes that repeat rank 0's.
_ASIDE_LINE: Final = re.compile(
    r"\s*(?:#|//|@|\++ |\$ |\[[Rr]ank ?[1-9]\d*\]|[^=]*(?:Namespace|Args|Arguments|Config)\(\w+="
    r"|(?:def|class|import|from|elif|assert|raise|return)\s"
    r"|(?:if|for|while|with)\s.*(?::\s*$|\w\()|(?!\w+ = [-+.\de]+, step = \d)[\w.\[\]]+(?:, ?[\w.\[\]]+)* [-+*/]?=\s)"
)


class Counter(NamedTuple):
    """A counter of a line.

    Attributes:
        rank: Its rank: 0 counts updates of the whole training, 5 epochs.
        done, total: Its number, and the last one, where the line has it.
        inner, within: Number within the epoch and the last one, where they follow an epoch's number in brackets.
        is_from_zero: Whether the tool that writes it so counts epochs from 0.
        counts_evaluation: Whether it counts the batches of an evaluation.
        unit: What it counts, if it is no counter of epochs, as in ``ImportedRun.step_unit``.
    """

    rank: int
    done: int
    total: int | None = None
    inner: int | None = None
    within: int | None = None
    is_from_zero: bool = False
    counts_evaluation: bool = False
    unit: str = "updates"


class Bar(NamedTuple):
    """A progress bar.

    Attributes:
        done, total: Batches done, and all batches.
        is_tqdm: Whether it is tqdm's, whose values change until it is gone.
        counts_steps: Whether it is called ``steps``, and counts those of the training.
    """

    done: int
    total: int
    is_tqdm: bool = False
    counts_steps: bool = False


class LogLine(NamedTuple):
    """The counters and values of one line.

    Attributes:
        counters: Its counters by rank, at most one of each.
        phase: First word for the names of its metrics: ``val`` and the like for an evaluation, ``train`` for an
            epoch's summary; empty otherwise.
        metrics, attrs: Its numbers and its text.
        elapsed_ns: Time since the training began.
        bar: Its progress bar.
        is_object: Whether the names and values are those of an object.
        is_whole: Whether it holds nothing but names with their values; False for a line with a counter.
        repeated: A name with two different values; empty where there is none. The first value is taken.
        time_ns, indent: Its clock and its indentation, as in ``HeadedLine``.
    """

    counters: Mapping[int, Counter]
    phase: str
    metrics: Mapping[str, float]
    attrs: Mapping[str, Any]
    elapsed_ns: int | None = None
    bar: Bar | None = None
    is_object: bool = False
    is_whole: bool = False
    repeated: str = ""
    time_ns: int = 0
    indent: int = 0


def parsed_line(text: str) -> LogLine | None:
    """Parse a line; None where it holds neither a counter nor a name with a number.

    >>> line = parsed_line("Epoch 3/10 | train loss: 0.5 | val loss: 0.6")
    >>> line.counters[EPOCH_RANK].done, dict(line.metrics)
    (3, {'train loss': 0.5, 'val loss': 0.6})

    """
    if len(text) > _LONGEST or not _DIGIT.search(text):
        return None
    text = ESCAPES.sub("", text.rstrip("\b\r\n").rpartition("\b")[2])
    text, indent, time_ns = without_head(text)
    if _ASIDE_LINE.match(text):
        return None
    line = _of_unity(text) or _of_stylegan(text) or _of_object(text) or _of_pairs(_in_common_form(text))
    return None if line is None else line._replace(time_ns=time_ns, indent=indent)


def announced_phase(text: str, before: str = "") -> str:
    """Return the phase whose results a line without values announces; empty where it announces none.

    Args:
        text: The line.
        before: The phase announced before it, which a blank line or a progress bar leaves as it is.
    """
    text = without_head(text).text
    if match := _ANNOUNCEMENT.match(text):
        return _PHASES[match[1].casefold()]
    return before if not text.strip() or _TQDM_BAR.search(text) else ""


def _in_common_form(text: str) -> str:
    """Return a line of some tools in the words of the others, with its counters and its phase first."""
    text = _QUOTED.sub(r"| \1", text) if "'" in text else text
    for form, words in _FORMS.items():
        if form.match(text):
            text = form.sub(words, text, count=1)
            return _SENTENCES.sub(" | ", text) if form is _MARIAN else text
    estimator = _ESTIMATOR.match(text)
    if estimator is not None and estimator[1]:
        return f"eval global_step {estimator[1]}:{_ESTIMATOR.sub('', text)}"
    return _CAFFE_TEST.sub("test: ", text, count=1)


def _of_unity(text: str) -> LogLine | None:
    """Parse a line of ML-Agents. Its values are the behavior's: several train side by side."""
    match = _UNITY.match(text) if " Step: " in text else None
    if match is None:
        return None
    values = _Values()
    for name, shown in _UNITY_VALUE.findall(match[3]):
        if name == "Time Elapsed":
            values.elapsed_ns = nanoseconds(number(shown))
        else:
            values.add(f"{match[1].strip()}/{name}", float(shown))
    return LogLine({1: Counter(1, int(match[2]), unit="timesteps")}, "", values.metrics, {}, values.elapsed_ns)


def _of_stylegan(text: str) -> LogLine | None:
    """Parse a line of StyleGAN's ``log.txt``: a tick with its values, or what was measured on a snapshot."""
    tick = _STYLEGAN.match(text)
    if tick is None and not _STYLEGAN_MEASURE.match(text):
        return None
    time, rest = _STYLEGAN_TIME.search(text), _STYLEGAN_TIME.sub(" ", text)
    if tick is None:
        found = _STYLEGAN_RESULT.findall(rest)
        return LogLine({}, "eval", {name: float(value) for name, value in found}, {}, is_whole=True)
    parts = re.findall(r"(\d+)([dhms])", time[1]) if time else ()
    elapsed_ns = sum(int(count) * _UNIT_NS[unit] for count, unit in parts) or None
    metrics = {name: float(value) for name, value in _STYLEGAN_VALUE.findall(rest, tick.end(1))}
    return LogLine({1: Counter(1, int(tick[1]), unit="ticks")}, "", metrics, {}, elapsed_ns)


class _Values:
    """Collector of a line's values."""

    def __init__(self) -> None:
        self.metrics: dict[str, float] = {}
        self.attrs: dict[str, object] = {}
        self.elapsed_ns: int | None = None
        self.repeated = ""

    def add(self, name: str, value: float) -> None:
        """Add a number, unless the name has one."""
        held = self.metrics.setdefault(name, value)
        if held != value and held == held:
            self.repeated = self.repeated or name


def _of_object(text: str) -> LogLine | None:
    """Parse a line that ends with an object."""
    if python := _PYTHON_OBJECT.search(text):
        start, items = python.start(), _PYTHON_ITEM.findall(python[1])
    elif found := _JSON_OBJECT.search(text):
        try:
            start, items = found.start(), [(name, str(held)) for name, held in json.loads(found[0]).items()]
        except (ValueError, RecursionError):
            return None
    else:
        return None
    counters: dict[int, Counter] = {}
    values = _Values()
    phase = _phase_before(text[:start]).strip()
    # Hugging Face's Trainer puts the epoch last; it is a fraction, also where that is whole.
    fraction = items[-1][0] if python and items else None
    for name, shown in items:
        first, _, rest = name.casefold().partition("_")
        rank = _RANKS.get(rest if first in _PHASES or first == "train" else name.casefold())
        if rank is not None and shown.isdigit() and len(shown) <= 18 and (name, rank) != (fraction, EPOCH_RANK):
            counters.setdefault(rank, Counter(rank, int(shown)))
            phase = "train" if first == "train" and not phase else phase
        elif (value := number(shown)) is not None:
            values.add(name, value)
        else:
            values.attrs[name] = shown
    is_object = True
    if not counters:
        counters, said, rest = _without_counters(text[:start])
        phase, is_object = phase or _segment_phase(rest) or said, not counters
    return LogLine(counters, phase, values.metrics, values.attrs, is_object=is_object, repeated=values.repeated)


def _of_pairs(text: str) -> LogLine | None:
    bar, text = _without_bar(text)
    counters, phase, rest = _without_counters(text)
    phase = _segment_phase(rest) or phase
    values = _Values()
    remainder = rest
    for name, start, _, match in _pairs(rest):
        if not counters:
            remainder = remainder.replace(rest[start : match.end()], " ", 1)
            phase = phase or _PHASES.get(name.casefold().split()[0], "")
        shown, unit = (match["item"] or match["number"]).replace(",", ""), match["unit"]
        if name.casefold() in _STOPWATCHES and unit in _UNIT_NS and (value := number(shown)) is not None:
            values.elapsed_ns = nanoseconds(value * _UNIT_NS[unit] / NS)
        elif unit not in ("", "%") or match["of"]:
            values.attrs.setdefault(name, rest[match.end("sep") : match.end()])
        elif (value := number(shown)) is not None:
            values.add(_LONG_NAMES.get(name, name), value)
    if not counters and not values.metrics and not values.attrs:
        return None
    is_whole = not counters and not any(
        word.casefold() not in _PHASES for word in _PROSE_WORD.findall(_ASIDE.sub(" ", remainder))
    )
    return LogLine(
        counters, phase, values.metrics, values.attrs, values.elapsed_ns, bar, False, is_whole, values.repeated
    )


def _without_bar(text: str) -> tuple[Bar | None, str]:
    """Return a line's progress bar, and the line without it."""
    keras, tqdm = _KERAS_BAR.match(text), _TQDM_BAR.search(text)
    match = keras or tqdm
    if match is None:
        return None, text
    before = text[: match.start()]
    counts_steps = keras is None and before.strip().casefold() == "steps:"
    return Bar(int(match[1] or 1), int(match[2] or 1), keras is None, counts_steps), f"{before} | {text[match.end() :]}"


def _without_counters(text: str) -> tuple[dict[int, Counter], str, str]:
    """Return a line's counters and phase, and the text after the first counter, without the others."""
    counters: dict[int, Counter] = {}
    phase = ""
    kept: list[str] = []
    end = 0
    lower = text.lower() if text.isascii() else "".join(map(_lower, text))
    for name in _COUNTER_NAME.finditer(lower):
        match = _COUNTED.match(lower, name.end())
        if match is None or name.start() < end:
            continue
        words = _MARKS_BEFORE.split(lower[end : name.start()])[-1].split()
        rank = _RANKS[name[0]]
        if rank in counters or not _BEFORE.issuperset(words):
            continue
        counter = _counter(rank, match)._replace(unit="timesteps" if name[0] == "num_timesteps" else "updates")
        if not counters:
            phase = _phase_of_counter(words, lower[: name.start()], match)
            if phase and rank == BATCH_RANK and counter.total is not None:
                counter = counter._replace(counts_evaluation=True)
            before = _PAIRS_BEFORE.fullmatch(text, 0, name.start())
            kept.append(f"{_phase_before(text[: name.start()]) if before is None else before[1]}|")
        else:
            # "epoch: [1/25] val step: 0" counts the batches of the evaluation. The word is part of the counter.
            word = words[-1] if words and rank != EPOCH_RANK and words[-1] in (*_PHASES, *_TRAINING) else ""
            between = text[end : name.start()].rstrip()
            kept.append(between[: len(between) - len(word)])
            if word in _PHASES:
                phase, counter = phase or _PHASES[word], counter._replace(counts_evaluation=True)
        counters[rank] = counter
        kept.append(" | ")
        end = match.end()
    if not counters:
        return _without_bare_counters(text)
    if (after := _PHASE_AFTER.match(text, end)) and after[1].casefold() in _PHASES:
        phase, end = _PHASES[after[1].casefold()], after.end()
    elif not phase and (after := _PHASE_NEXT.match(text, end)):
        phase = _PHASES.get(after[1].casefold(), "")
    return counters, phase, "".join(kept) + text[end:]


def _without_bare_counters(text: str) -> tuple[dict[int, Counter], str, str]:
    """Return counters that have no name, and the rest of the line, as ``_without_counters`` does."""
    if match := _ROUND.match(text):
        return {2: Counter(2, int(match[1] or match[2]))}, "", _BEST_SO_FAR.sub("", text[match.end() :])
    if match := _EPOCH_AND_BATCH.match(text):
        return {5: Counter(5, int(match[1])), 4: Counter(4, int(match[2]))}, "", f"|{text[match.end() :].lstrip(': ')}"
    if match := _BATCHES.search(text):
        is_test = match["phase"] is not None
        batches = Counter(4, int(match[2]), int(match[3]), counts_evaluation=is_test)
        return {4: batches}, "test" if is_test else "", f"{text[: match.start()]} | {text[match.end() :]}"
    return {}, "", text


def _phase_of_counter(words: Sequence[str], before: str, match: re.Match[str]) -> str:
    """Return the phase that the words before a counter or its mode say; empty where they say none."""
    phase = next((_PHASES[word] for word in words if word in _PHASES), "")
    if not phase and (first := _PHASE_FIRST.match(before.rpartition(" - ")[2])):
        phase = _PHASES.get(first[1], "")
    return phase or (match["mode"] or "").removeprefix("train")


def _lower(character: str) -> str:
    """Return a letter's small form, if that is one letter, too."""
    return character.lower() if len(character.lower()) == 1 else character


def _counter(rank: int, match: re.Match[str]) -> Counter:
    return Counter(
        rank,
        _whole(match["count"]) or 0,
        _whole(match["total"]),
        _whole(match["inner"] or match["count2"] or match["count3"]),
        _whole(match["within"] or match["within2"] or match["within3"]),
        is_from_zero=match["open"] is not None and ":" in match[0],
        counts_evaluation=match["mode"] in ("val", "test"),
    )


def _whole(shown: str | None) -> int | None:
    return None if shown is None else int(shown.replace(",", ""))


def _phase_before(text: str) -> str:
    """Return the last segment before the first counter, if it is a word of a phase: ``valid | epoch 001``."""
    *_, last = re.split(r"[|\[\]]", text.rstrip(" |]")) if text.rstrip().endswith(("|", "]")) else ("",)
    word = last.strip().casefold()
    return f"{word} " if word in _PHASES or word == "train" else ""


def _segment_phase(text: str) -> str:
    """Return the phase that a part of a line names: ``train |`` (fairseq), ``Test set:``, ``Dev score: BLEU = 0.2``."""
    for match in _SEGMENT.finditer(text):
        word = str(next(filter(None, match.groups()))).casefold()
        if word in _PHASES or word in _TRAINING:
            return _PHASES.get(word, "train")
    return "val" if text.lstrip().startswith("* ") else ""


class _Pair(NamedTuple):
    """A name and a number.

    Attributes:
        name: The name.
        start: Where it begins.
        is_alone: Whether it begins where a line, a pair or a mark ends.
        match: The separator and the number.
    """

    name: str
    start: int
    is_alone: bool
    match: re.Match[str]


def _pairs(text: str) -> Iterator[_Pair]:
    """Yield names and numbers.

    With nothing but blanks between name and number, both must stand alone: "Loss 2.5, lr 0.1", but not "in 5 steps". A
    name of several words stands alone; elsewhere the last word is the name.
    """
    found = list(_candidates(text))
    for index, pair in enumerate(found):
        end = pair.match.end()
        count = pair.name.count(" ") + 1
        if pair.match["sep"].strip():
            last_word = pair.name.rpartition(" ")[2]
            yield pair if count == 1 or (pair.is_alone and count <= _MOST_WORDS) else pair._replace(name=last_word)
        elif pair.is_alone and count <= _MOST_BLANK_WORDS and not pair.match["apart"]:
            following = found[index + 1].start if index + 1 < len(found) else -1
            if _END_OF_VALUE.match(text, end) or text[end:following].isspace():
                yield pair


def _candidates(text: str) -> Iterator[_Pair]:
    end = 0
    for match in _VALUE.finditer(text):
        start = max(end, match.start() - _LONGEST_NAME)
        name = _NAME.search(text, start, match.start())
        if name is not None:
            before = text[start : name.start()]
            yield _Pair(_LINKING_WORD.sub("", name[0], count=1), name.start(), bool(_MARK.search(before)), match)
            end = match.end()
