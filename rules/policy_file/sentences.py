"""Reads rules that are written as sentences: ``stop if not isfinite(loss) for 3 steps``.

Takes the scalar of a sentence; returns the mapping of a controller in its full form, without its triggers, which follow
from the series that the condition reads. Each scalar of the mapping knows the places of its characters in the sentence,
so that the problems that readers of the full form find point into the sentence.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from decimal import Decimal, InvalidOperation
from typing import Final, NamedTuple

import yaml

from ...store.metric_words import is_evaluation
from ..errors import PolicyError, PolicyProblem, phrase, suggestion
from ..habits import SENTENCE_ACTIONS
from ..language.expressions import QUOTED
from ..readings.reading import Param
from .document import MAP_TAG, SEQUENCE_TAG, TEXT_TAG, PlacedScalar
from .fields import FieldReader
from .operations import WORDS

FORM: Final = "Write ACTION [and ACTION] if CONDITION [for N steps] [once] [at most every N steps] [after N steps]."

#: What may precede ``if``.
ACTIONS: Final = (*WORDS, 'warn "text"', "lr x 0.5")

#: Seconds of the units of time, and the units of spans that a sentence counts in.
_SECONDS: Final[Mapping[str, float]] = {"second": 1, "minute": 60, "hour": 3600, "day": 86400}
_UNITS: Final = ("step", "evaluation")

_IF: Final = re.compile(r"(?<!\S)if(?!\w)")
_AND: Final = re.compile(r"(?:^|\s+)and(?:\s+|$)|\s*,\s*(?:and\s+)?")
_MESSAGE: Final = re.compile(r"(warn|notify)\s*(['\"])(.*)\2", re.DOTALL)
_LR: Final = re.compile(r"lr\s*(?:x|\*|times)\s*(\(.*\)|\S+?)(?:\s+for\s+(\S+)\s+steps?)?")
#: A series: a name, a text, or a call with at most one call in it.
_SERIES: Final = r"(?<![^\s(])(?P<series>-?(?:\"[^\"]*\"|'[^']*'|[^\s()\"']+)(?:\((?:[^()]|\([^()]*\))*\))?)"
_NOT_IMPROVED: Final = re.compile(
    _SERIES + r"\s+has\s+not\s+improved(?:\s+by\s+(?P<by>[\w.+-]+))?"
    r"(?:\s+for\s+(?P<count>[\w.+-]+)\s+(?P<unit>[a-z]+?)s?(?!\w))?"
)
#: A metric's name that is no name of the language.
_SLASHED: Final = re.compile(r"[A-Za-z_][\w./-]*")

#: What may follow the condition, as patterns of the end of a sentence.
_AMOUNT: Final = r"(?P<amount>\S+)\s+(?P<unit>[a-z]+?)s?"
_CLAUSES: Final[Mapping[str, re.Pattern[str]]] = {
    "for": re.compile(rf"\s+for\s+{_AMOUNT}\s*$"),
    "once": re.compile(r"\s+once\s*$"),
    "at most every": re.compile(rf"\s+at\s+most\s+every\s+{_AMOUNT}\s*$"),
    "after": re.compile(rf"\s+after\s+(?:(?P<percent>[\w.]+)\s*%|{_AMOUNT})\s*$"),
}

_OPENING: Final = "([{"
_CLOSING: Final = ")]}"


class SentenceNode(yaml.MappingNode):
    """A controller that was written as a sentence.

    Attributes:
        unit: The unit that its condition is counted in, ``step`` or ``evaluation``; empty where it is not counted.
    """

    unit = ""


def is_sentence(text: str) -> bool:
    """Whether a text is a rule written as a sentence, and not the name of a file.

    >>> is_sentence("stop if loss > 3"), is_sentence("rules.yaml"), is_sentence("what-if.yaml")
    (True, False, False)
    """
    return _IF.search(_masked(text)) is not None


def sentences_in(text: str) -> list[str]:
    """Return the sentences of a text, which lines and semicolons separate.

    >>> sentences_in("stop if loss > 3; save if improved(eval_loss)")
    ['stop if loss > 3', 'save if improved(eval_loss)']
    """
    begin, found = 0, list[str]()
    for match in re.finditer(r"[;\n]|$", _masked(text)):
        found.append(text[begin : match.start()].strip())
        begin = match.end()
    return list(filter(None, found))


def rule_file_of(sentences: Sequence[str], params: Mapping[str, Param] | None = None) -> str:
    """Return the text of a rule file whose controllers are these sentences, as they are."""
    top = {"params": dict(params)} if params else {}
    return _dumped({**top, "controllers": list(sentences)})


def _dumped(top: Mapping[str, object]) -> str:
    return yaml.safe_dump(dict(top), sort_keys=False, allow_unicode=True, width=math.inf)


def _masked(text: str) -> str:
    """Return the text with everything in quotes and brackets replaced, character by character."""
    masked, depth = list(_without_quoted(text)), 0
    for index, character in enumerate(masked):
        depth -= character in _CLOSING and depth > 0
        if depth:
            masked[index] = "_"
        depth += character in _OPENING
    return "".join(masked)


def _without_quoted(text: str) -> str:
    """Return the text with everything in quotes replaced, character by character."""
    return QUOTED.sub(lambda match: "_" * len(match[0]), text)


# --- values to try --------------------------------------------------------------------------------------------------

#: Most values of one range.
_MOST_VALUES: Final = 10_000

#: Values to try: ``{3..10}``, ``{3..10..2}``, ``{1.5, 2, 3}``. What follows ``in`` is a set.
_CHOICE: Final = re.compile(r"(?<!\bin )\{([^{}:]*)\}")
_UNIT_AFTER: Final = re.compile(r"\s*(%|steps?|evaluations?|epochs?|seconds?)(?!\w)")
#: Names of params by what is before their values.
_NAMES: Final[Mapping[str, str]] = {
    "by": "min_gain",
    **dict.fromkeys(("x", "*", "times"), "factor"),
    **dict.fromkeys(("<", ">", "<=", ">=", "==", "!="), "limit"),
}


class Choices(NamedTuple):
    """Sentences in which the name of a param is in the place of values to try.

    Attributes:
        sentences: Their texts.
        indices: The index in the original sentence of each character of each text.
        values: The values by param.
    """

    sentences: list[str]
    indices: list[list[int]]
    values: dict[str, list[Param]]

    @property
    def params(self) -> dict[str, Param]:
        """The first value of each param."""
        return {name: values[0] for name, values in self.values.items()}


def choices_in(sentences: Sequence[str]) -> Choices:
    """Give the values to try in sentences, which are in braces, a param each.

    >>> choices_in(["stop if eval_loss has not improved for {3..6} evaluations"])[::2]
    (['stop if eval_loss has not improved for for_evaluations evaluations'], {'for_evaluations': [3, 4, 5, 6]})

    Raises:
        PolicyError: Some braces have no values. The places are lines and columns of the sentences.
    """
    source = "; ".join(sentences)
    taken = set(re.findall(r"\w+", source))
    found = Choices([], [], {})
    for line, sentence in enumerate(sentences, 1):
        text, indices, begin = "", list[int](), 0
        for match in _CHOICE.finditer(_without_quoted(sentence)):
            name = _param_name(sentence[: match.start()], sentence[match.end() :], taken)
            try:
                found.values[name] = values_to_try(match[1], _plain_number)
            except ValueError as error:
                message = phrase(str(error), repr(match[0]), "Write {3..10}, {3..10..2} or {1.5, 2, 3}.")
                raise PolicyError([PolicyProblem(source, line, match.start() + 1, message)]) from None
            text += sentence[begin : match.start()] + name
            indices += [*range(begin, match.start()), *[match.start()] * len(name)]
            begin = match.end()
        found.sentences.append(text + sentence[begin:])
        found.indices.append([*indices, *range(begin, len(sentence))])
    return found


def values_to_try(text: str, read: Callable[[str], Param]) -> list[Param]:
    """Return the values in ``1, 2, 5..9`` or ``1..9..2``, each once; a range has its last one if the steps reach it.

    Args:
        text: The values, with or without braces around them.
        read: Reads a value outside a range.

    Raises:
        ValueError: A range has other ends than numbers in their order, or more than 10,000 values.
    """
    listed = text.strip()
    listed = listed[1:-1] if listed.startswith("{") and listed.endswith("}") else listed
    parts = map(str.strip, listed.split(","))
    values = [value for part in parts for value in (_range(part) if ".." in part else [read(part)])]
    # A dict treats True and 1 as one key, but params of one name are of one type.
    return list(dict.fromkeys(values))


def _range(text: str) -> list[Param]:
    try:
        begin, end, by = map(Decimal, text.split("..") if text.count("..") > 1 else [*text.split(".."), "1"])
    except InvalidOperation:
        raise ValueError("a range FIRST..LAST..STEP is of numbers") from None
    except ValueError:
        raise ValueError("a range has FIRST..LAST..STEP") from None
    if not (begin.is_finite() and end.is_finite() and by.is_finite() and by > 0 and begin <= end):
        raise ValueError("a range FIRST..LAST..STEP has FIRST <= LAST and STEP > 0")
    if (end - begin) / by >= _MOST_VALUES:
        raise ValueError(f"a range FIRST..LAST..STEP has at most {_MOST_VALUES:,} values")
    values = itertools.takewhile(lambda value: value <= end, (begin + by * count for count in itertools.count()))
    return [_plain_number(str(value)) for value in values]


def _plain_number(text: str) -> Param:
    for convert in (int, float):
        with suppress(ValueError):
            number = convert(text)
            if math.isfinite(number):
                return number
    raise ValueError("values to try are numbers")


def _param_name(before: str, after: str, taken: set[str]) -> str:
    """Return a name for values, made of the words around them, that no sentence has; and take it."""
    word, unit = (before.split() or [""])[-1], _UNIT_AFTER.match(after)
    name = _NAMES.get(word, "value")
    if unit:
        units = "percent" if unit[1] == "%" else f"{unit[1].removesuffix('s')}s"
        name = f"{word.strip('_')}_{units}" if word.strip("_").isidentifier() else f"{units}_back"
    return _free(name, taken)


def _free(name: str, taken: set[str]) -> str:
    """Return the name, with a number if it is taken; and take it."""
    free, number = name, 2
    while free in taken:
        free, number = f"{name}_{number}", number + 1
    taken.add(free)
    return free


# --- parts ----------------------------------------------------------------------------------------------------------


class _Part(NamedTuple):
    """A part of a sentence: its ends, blanks around it left out, and its text."""

    begin: int
    end: int
    text: str


class _Sentence:
    """One sentence being taken apart."""

    def __init__(self, node: yaml.ScalarNode, where: str, reader: FieldReader) -> None:
        self.node, self.where, self.reader = node, where, reader
        self.text: str = node.value
        self.masked = _masked(self.text)
        self.indices = reader.document.indices(node)

    def part(self, begin: int, end: int) -> _Part:
        """Return a part without the blanks around it."""
        text = self.text[begin:end]
        begin += len(text) - len(text.lstrip())
        return _Part(begin, begin + len(text.strip()), text.strip())

    def refuse(self, at: int, what: str, got: str | None = None, fix: str = "") -> None:
        """Add a problem at a character of the sentence."""
        place = self.reader.document.place_in(self.node, min(at, max(0, len(self.text) - 1)))
        self.reader.refuse_at(place, self.where, what, got, fix)

    def scalar(self, part: _Part, value: str | None = None, tag: str = "str") -> PlacedScalar:
        """Return a scalar at a part: its text, or another value that stands for all of it."""
        indices = self.indices[part.begin : part.end] or self.indices[:1]
        if value is not None:
            indices = [indices[0]] * max(1, len(value))
        return PlacedScalar(part.text if value is None else value, indices, tag, self.reader.document)

    def mapping(self, entries: Mapping[str, yaml.Node], begin: int = 0) -> yaml.MappingNode:
        """Return a mapping of nodes, at a character of the sentence."""
        start = self.part(begin, len(self.text))
        pairs = [(self.scalar(start, key), node) for key, node in entries.items()]
        mark = self.reader.document.mark(self.indices[start.begin]) if begin else self.node.start_mark
        return yaml.MappingNode(MAP_TAG, pairs, mark, self.node.end_mark)


def expand_sentences(node: yaml.Node, reader: FieldReader) -> yaml.Node:
    """Return a list of controllers in which each sentence is a mapping; anything else as it is."""
    if not isinstance(node, yaml.SequenceNode) or not any(map(_is_text, node.value)):
        return node
    names = {entry["name"].value for entry in map(reader.keys_of, node.value) if _is_text(entry.get("name"))}
    items: list[yaml.Node] = []
    for item in node.value:
        entry = _expanded(item, names, reader) if _is_text(item) else item
        items += [] if entry is None else [entry]
    return yaml.SequenceNode(node.tag, items, node.start_mark, node.end_mark)


def _is_text(node: yaml.Node | None) -> bool:
    return isinstance(node, yaml.ScalarNode) and node.tag == TEXT_TAG


def _expanded(node: yaml.ScalarNode, names: set[str], reader: FieldReader) -> SentenceNode | None:
    sentence = _Sentence(node, "rule", reader)
    found = _IF.search(sentence.masked)
    if not _is_sound(sentence) or found is None:
        return None
    before = len(reader.problems)
    rule, clauses, unit = _condition(sentence, found.end())
    orders = _orders(sentence, sentence.part(0, found.start()))
    if len(reader.problems) > before:
        return None
    name = _free("_".join(re.findall(r"\w+", sentence.text))[:_LONGEST_NAME].rstrip("_"), names)
    whole = sentence.part(0, len(sentence.text))
    entries = {"name": sentence.scalar(whole, name), "rule": rule, **orders, **clauses}
    mapping = sentence.mapping(entries)
    entry = SentenceNode(mapping.tag, mapping.value, mapping.start_mark, mapping.end_mark)
    entry.unit = unit
    return entry


def _is_sound(sentence: _Sentence) -> bool:
    """Whether a text can be taken apart; refuse it otherwise."""
    unquoted = _without_quoted(sentence.text)
    quote, choice = re.search("[\"']", unquoted), _CHOICE.search(unquoted)
    if len(sentence.text) > _LONGEST:
        what, got = f"a sentence has at most {_LONGEST:,} characters", f"{len(sentence.text):,}"
        sentence.refuse(0, what, got, "Write a controller with its keys.")
    elif quote is not None:
        got, fix = sentence.text[quote.start() :], "Write another one after the text."
        sentence.refuse(quote.start(), "a quote is not closed", got, fix)
    elif choice is not None:
        what = "only 'sweep' and 'certify' of a sentence try several values"
        sentence.refuse(choice.start(), what, repr(choice[0]), "Write one value.")
    elif _IF.search(sentence.masked) is None:
        sentence.refuse(0, "no 'if' in the rule", repr(sentence.text), FORM)
    else:
        return True
    return False


#: Most characters of a sentence, and of the name that is made of its words.
_LONGEST: Final = 2_000
_LONGEST_NAME: Final = 60


# --- what it orders -------------------------------------------------------------------------------------------------


def _orders(sentence: _Sentence, part: _Part) -> dict[str, yaml.Node]:
    """Return the keys that say what a sentence orders: ``operations``, and those of a message."""
    operations: list[yaml.Node] = []
    entries: dict[str, yaml.Node] = {}
    for action in _actions(sentence, part):
        message = _MESSAGE.fullmatch(action.text)
        if message and "message" in entries:
            sentence.refuse(action.begin, "a rule has one message", repr(action.text), "Write its text once.")
        if message:
            text = sentence.part(action.begin + message.start(3), action.begin + message.end(3))
            entries["message"] = sentence.scalar(text)
        if message and message[1] == "warn":
            entries["severity"] = sentence.scalar(action, "warning")
            continue
        operation = _operation(message[1] if message else action.text)
        if operation is None:
            fix = _meant(" ".join(action.text.split()))
            sentence.refuse(action.begin, "unknown action", repr(action.text), fix)
            continue
        operations.append(sentence.scalar(action, operation))
    node = sentence.node
    return {"operations": yaml.SequenceNode(SEQUENCE_TAG, operations, node.start_mark, node.end_mark), **entries}


def _actions(sentence: _Sentence, part: _Part) -> Iterator[_Part]:
    """Yield the actions before ``if``; refuse an empty one."""
    begin = part.begin
    ends = [(match.start(), match.end()) for match in _AND.finditer(sentence.masked, part.begin, part.end)]
    for end, following in [*ends, (part.end, part.end)]:
        action = sentence.part(begin, end)
        if action.text:
            yield action
        else:
            sentence.refuse(begin, "an action is missing" if part.text else "no action before 'if'", fix=FORM)
        begin = following


def _meant(action: str) -> str:
    """Return a sentence on what to write in place of an unknown action."""
    first, _, rest = action.partition(" ")
    if first in WORDS and rest in WORDS:
        return f"Write '{first} and {rest}'."
    if first in SENTENCE_ACTIONS and action not in SENTENCE_ACTIONS:
        action = first
    known = suggestion(action, WORDS, SENTENCE_ACTIONS)
    return f'{known}, warn "text", notify "text", lr x 0.5' if known.startswith("Known") else known


def _operation(action: str) -> str | None:
    """Return the operation that an action means; None for an unknown word."""
    word = " ".join(action.split())
    if word in WORDS:
        return WORDS[word]
    scaled = _LR.fullmatch(word)
    if scaled:
        factor, updates = scaled.groups()
        return f"lr.reduce({factor})" if updates is None else f"lr.scale({factor}, over={updates}, blend=none)"
    return word if re.fullmatch(r"[A-Za-z_]\w*\.\w+(?:\(.*\))?", word) else None


# --- when it decides ------------------------------------------------------------------------------------------------


def _condition(sentence: _Sentence, begin: int) -> tuple[PlacedScalar, dict[str, yaml.Node], str]:
    """Return the rule of a sentence, the keys of the clauses after it, and the unit that the rule is counted in."""
    end = len(sentence.text)
    improvements = list(_NOT_IMPROVED.finditer(sentence.text, begin))
    unit = next((match["unit"] for match in improvements if match["unit"] == "evaluation"), "")
    # What belongs to the words "has not improved" is no clause of the sentence.
    begin_of_clauses = improvements[-1].end() if improvements else begin
    entries: dict[str, yaml.Node] = {}
    least: list[str] = []
    found = _last_clause(sentence.masked, begin_of_clauses, end)
    while found is not None:
        name, match = found
        clause = sentence.part(match.start(), end)
        if name in entries or (name == "after" and least):
            sentence.refuse(clause.begin, f"'{name}' occurs twice in one rule", fix="Leave one of them out.")
        elif name == "once":
            entries["once"] = sentence.scalar(clause, "true", "bool")
        elif name == "after":
            _read_start(sentence, clause, match, entries, least)
        else:
            span, counted = _span(sentence, match, name)
            entries |= {} if span is None else {"for" if name == "for" else "cooldown": span}
            unit = (counted if name == "for" else "") or unit
        end = match.start()
        found = _last_clause(sentence.masked, begin_of_clauses, end)
    return _rule(sentence, sentence.part(begin, end), improvements, least), entries, unit


def _last_clause(masked: str, begin: int, end: int) -> tuple[str, re.Match[str]] | None:
    """Return the clause at the end of a part of a sentence; None where a condition ends it."""
    matches = ((name, pattern.search(masked, begin, end)) for name, pattern in _CLAUSES.items())
    # Searching ends at ``end``, where ``$`` matches.
    return next(((name, match) for name, match in matches if match), None)


def _span(sentence: _Sentence, match: re.Match[str], name: str) -> tuple[yaml.Node | None, str]:
    """Return the span of a clause, and the unit of events that it counts; None for an unknown unit."""
    unit, amount = match["unit"], sentence.part(*match.span("amount"))
    begin = sentence.part(*match.span()).begin
    if unit in _UNITS and name == "for":
        return _number(sentence, amount), unit
    if unit in _UNITS:
        return sentence.mapping({f"{unit}s": _number(sentence, amount)}, begin), unit
    if unit == "second":
        return sentence.mapping({"seconds": _number(sentence, amount)}, begin), ""
    if unit in _SECONDS and not re.fullmatch(_NUMBER, amount.text):
        sentence.refuse(
            amount.begin, f"'{name}' takes a number of {unit}s", repr(amount.text), "A param counts seconds."
        )
        return None, ""
    if unit in _SECONDS:
        seconds = sentence.scalar(amount, f"{float(amount.text) * _SECONDS[unit]:.12g}", "float")
        return sentence.mapping({"seconds": seconds}, begin), ""
    fix = f"The units are {', '.join(f'{each}s' for each in (*_UNITS, *_SECONDS))}."
    sentence.refuse(match.start("unit"), f"unknown unit after '{name}'", repr(match["unit"]), fix)
    return None, ""


#: The whole run, in percent.
_WHOLE: Final = 100

_NUMBER: Final = r"\d+(?:\.\d+)?(?:[eE][+-]?\d+)?"


def _number(sentence: _Sentence, part: _Part) -> PlacedScalar:
    """Return a number, or the name of a param."""
    text = part.text.replace(",", "")
    tag = "int" if text.isdecimal() else "float" if re.fullmatch(_NUMBER, text) else "str"
    return sentence.scalar(part, text, tag)


def _read_start(
    sentence: _Sentence, clause: _Part, match: re.Match[str], entries: dict[str, yaml.Node], least: list[str]
) -> None:
    """Read ``after N steps`` into ``between``, and a share of the run or epochs into a further condition."""
    share, amount = match["percent"], match["percent"] or match["amount"]
    is_share = bool(share) or match["unit"] == "epoch"
    if is_share and not _is_number(amount) and amount not in _params(sentence):
        at = match.start("percent" if share else "amount")
        sentence.refuse(at, "'after' takes a number", repr(amount), "A param that is one can also be named here.")
    elif share:
        is_number = re.fullmatch(_NUMBER, share)
        if is_number and float(share) > _WHOLE:
            sentence.refuse(
                match.start("percent"), "a share of the run is at most 100%", f"{share}%", "Write after 10%."
            )
        least.append(f"progress >= {float(share) / 100:.12g}" if is_number else f"progress >= {share} / 100")
    elif match["unit"] == "epoch":
        least.append(f"epoch >= {amount}")
    elif match["unit"] == "step":
        ends: list[yaml.Node] = [_number(sentence, sentence.part(*match.span("amount")))]
        ends.append(sentence.scalar(clause, "null", "null"))
        entries["between"] = yaml.SequenceNode(
            SEQUENCE_TAG, ends, sentence.node.start_mark, sentence.node.end_mark, flow_style=True
        )
    else:
        fix = "Write steps, epochs or a share of the run, as in after 10%."
        sentence.refuse(match.start("unit"), "unknown unit after 'after'", repr(match["unit"]), fix)


def _rule(sentence: _Sentence, part: _Part, improvements: list[re.Match[str]], least: list[str]) -> PlacedScalar:
    """Return the condition in the rule language."""
    if not part.text:
        sentence.refuse(part.begin, "no condition after 'if'", fix=FORM)
    value, indices, begin = "", list[int](), part.begin

    def add(text: str, at: int | None = None) -> None:
        """Add text that stands in the sentence at an offset, or that stands for what is there next."""
        nonlocal value
        value += text
        here = begin if at is None else at
        indices.extend(
            sentence.indices[here : here + len(text)] if at is not None else [sentence.indices[here]] * len(text)
        )

    for condition in least:
        add(f"{condition} and (")
    for match in improvements:
        add(sentence.text[begin : match.start()], begin)
        begin = match.start()
        series, is_counted = match["series"], _is_counted(sentence, match)
        quote = '"' if _SLASHED.fullmatch(series) and not series.isidentifier() else ""
        add("streak(not improved(" if is_counted else "not improved(")
        add(quote)
        add(series, match.start("series"))
        add(quote)
        if match["by"]:
            add(", by=")
            add(match["by"], match.start("by"))
        add(")")
        if is_counted:
            add(") >= ")
            add(match["count"], match.start("count"))
        begin = match.end()
    add(sentence.text[begin : part.end], begin)
    begin = part.begin
    for _ in least:
        add(")")
    return PlacedScalar(value, indices or sentence.indices[:1], "str", sentence.reader.document)


def _is_number(text: str) -> bool:
    with suppress(ValueError):
        return math.isfinite(float(text)) and not text.startswith(("+", "-"))
    return False


def _params(sentence: _Sentence) -> Mapping[str, yaml.Node]:
    """Return the params of the file."""
    reader = sentence.reader
    params = None if reader.document.root is None else reader.keys_of(reader.document.root).get("params")
    return {} if params is None else reader.keys_of(params)


def _is_counted(sentence: _Sentence, match: re.Match[str]) -> bool:
    """Whether ``has not improved`` counts values; refuse what it cannot count."""
    count, unit = match["count"], match["unit"]
    if count is None:
        return False
    if count not in _params(sentence) and (not count.isdecimal() or int(count) < 1):
        what = "'has not improved for' takes a whole number from 1"
        sentence.refuse(match.start("count"), what, repr(count), "A param with such a value can also be named here.")
    elif unit not in _UNITS:
        sentence.refuse(match.start("unit"), "it counts values", repr(f"{unit}s"), "Write evaluations, or steps.")
    elif unit == "step" and is_evaluation(match["series"].strip("'\"")):
        fix = "Write the number of evaluations."
        sentence.refuse(match.start("unit"), f"{match['series']} has values at evaluations alone", "'steps'", fix)
    return True
