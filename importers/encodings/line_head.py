"""Splits a line of a log into what a logger puts before it and the line itself.

A head is a sequence of clocks, levels, source positions, ranks, processes and names of loggers, in any order and in any
brackets. Heads of containers and of loggers follow one another. The first clock of a line is its time.
"""

from __future__ import annotations

import json
import re
from typing import Final, NamedTuple

from .numbers import nanoseconds, number, unix_ns

_CLOCK: Final = r"\d{1,2}:\d\d:\d\d(?:[.,:]\d{1,9})?(?!\d|:\d)"
_ZONE: Final = r"(?:\s?(?:Z|UTC|GMT|[+-]\d\d:?\d\d)(?![\w.]))?"
_MONTHS: Final = ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"]
_MONTH: Final = rf"(?:{'|'.join(_MONTHS)})[a-z]*"
_WEEKDAY: Final = r"(?:(?:mon|tue|wed|thu|fri|sat|sun)[a-z]*,?\s+)?"

#: A time with its year: ISO 8601 in its spellings, a date with the month's name, or seconds since 1970.
_DATED: Final = (
    rf"(?P<ymd>\d{{4}}(?P<dash>[-/.])\d\d(?P=dash)\d\d|20\d\d[01]\d[0-3]\d)(?:[T_-]|\s{{1,2}})(?P<clock>{_CLOCK})(?P<zone>{_ZONE})"
    rf"|{_WEEKDAY}(?P<month>{_MONTH})\s+(?P<day>\d{{1,2}})(?:,?\s(?P<year>\d{{4}}))?,?\s+(?P<clock2>{_CLOCK})"
    r"(?P<zone2>(?:\s(?:UTC|GMT))?)(?:\s(?P<year2>\d{4})(?![\d/:-]))?"
    rf"|{_WEEKDAY}(?P<day3>\d{{1,2}})[\s/-](?P<month3>{_MONTH})[\s/-](?P<year3>\d{{4}})[\s:]\s*(?P<clock3>{_CLOCK})"
    rf"(?P<zone3>{_ZONE})"
    r"|(?P<unix>1\d{9}(?:\.\d{1,9})?)(?=[\s\]):|,])"
)
#: A time of day, with a date whose order or year is unknown, or without a date.
_UNDATED: Final = (
    rf"(?:\d{{1,2}}/\d{{1,2}}(?:/\d{{2,4}})?,?\s+|[IWEF]?\d{{4,8}}\s+)?(?P<clock4>{_CLOCK})(?:\s?(?P<half>[AP])M\b)?"
)
_TIME: Final = re.compile(rf"(?<![\w.])(?:{_DATED}|{_UNDATED})", re.IGNORECASE)

_LEVEL: Final = r"(?:info|debug|(?:warn(?:ing)?|error|notice|trace|critical|success)\b(?!\s*[:=]?\s*[-+.\d]))\b"
_FILE: Final = r"[\w./<>-]{0,200}\w\.(?:py|ipynb|cc|cpp|cu|c|h|go|rs|jl|java|scala):\d+(?::\w+)?"
_PROCESS: Final = r"(?:local_?rank|rank|gpu|node|worker|default|pid|proc)[ :=#_]?\d{1,9}"

#: What follows a part of a head. Blanks at the end are left: they indent the line. ``| >`` begins a line of Coqui's.
_SEPARATORS: Final = r"(?:\s*(?:[\]),]+|\|(?!\s*>)|>>|:|-(?=\s)))*"
#: The parts of a head.
_TOKEN: Final = re.compile(
    rf"\s*(?:[\[(<|]{{1,3}}\s*)?(?:{_FILE}(?=[\s\])|:,])|{_LEVEL}(?::[A-Za-z_][\w.]*:(?!\s*[-+.\d]*\d\s*$))?"
    rf"|[IWEFD](?=\s+[\w./]+\.\w+:\d)|{_PROCESS}(?=\s*[\])|:,-])|\d{{1,9}}(?=\s+{_FILE}\])|std(?:out|err) [FP](?=\s)"
    rf"|[\w.]{{1,100}}:\d+(?=\t)){_SEPARATORS}",
    re.IGNORECASE,
)
_HEAD_TIME: Final = re.compile(rf"\s*(?:[\[(<|]{{1,3}}\s*)?(?:{_DATED}|{_UNDATED}){_SEPARATORS}", re.IGNORECASE)
#: What only begins a line: the name of a container, a number of a process, or a process of Ray or MPI.
_FIRST: Final = re.compile(
    r"\s*(?:[\w.-]{1,100}[-_]\d{1,9}\s+\||\d{1,4}:(?=\s)(?!\s+(?:learn:|test:|[\d.]+, ))"
    r"|\([^()]*\bpid=\d+[^()]*\)|\[\d+,\d+\]<std(?:out|err)>:?)"
)
#: The name of a logger, or host and program, after a time or a level.
_LOGGER: Final = re.compile(
    r"\s*(?:(?P<name>[A-Za-z_][\w.]*)(?::[\w<>.]+)*\s+[-|](?=\s)|\S{1,100}\s[\w./-]{1,100}\[\d+\]:(?=\s))",
    re.IGNORECASE,
)
_BRACKETED: Final = re.compile(r"\s*(?:\[([A-Za-z_\d][^\[\]={}]{0,100})\]|\(([^()={}]{0,100})\))" + _SEPARATORS)
#: A number in brackets that belongs to a head.
_NUMBERED: Final = re.compile(rf"{_FILE}|{_PROCESS}|pod/[\w./-]+|\w+:\d+$|[\w./-]+\.py \d+$", re.IGNORECASE)
_NUMBER: Final = re.compile(r"(?<![A-Za-z_])\d")
_WORDS: Final = re.compile(r"[a-z]+")

#: Words that belong to the line: phases, counters, measures, and what makes a value one of another line.
_WORDS_OF_LINES: Final = frozenset(
    (
        *("train", "training", "trainer", "val", "valid", "validation", "validate", "validating", "test", "testing"),
        *("eval", "evaluation", "evaluate", "evaluating", "dev", "step", "steps", "iter", "iters", "iteration"),
        *("iterations", "it", "update", "updates", "num", "batch", "epoch", "epochs", "round", "loss", "acc"),
        *("accuracy", "lr", "best", "min", "max", "final", "last", "previous", "target", "total"),
    )
)
_OTHER_RANK: Final = re.compile(r"\s*\[rank ?[1-9]", re.IGNORECASE)


#: Names of the line and of its time in an object that holds them.
_WRAPPED: Final = ("log", "message", "msg", "textPayload")
_WRAPPED_TIMES: Final = ("time", "timestamp", "ts", "@timestamp", "asctime")
#: Names in an object that holds a row itself.
_COUNTERS: Final = frozenset(("step", "global_step", "iteration", "iter", "epoch"))


class HeadedLine(NamedTuple):
    """A line without its head.

    Attributes:
        text: The line, with the blanks that indent it.
        indent: Number of these blanks; the one after a head is not counted.
        time_ns: Nanoseconds since 1970 (UTC) of a time in the head; 0 without one. Where its date or year is unknown,
            nanoseconds since a midnight that is past: 1 to ``DAY_NS``.
    """

    text: str
    indent: int
    time_ns: int


#: A day in nanoseconds: the largest time of a head without a date.
DAY_NS: Final = 86_400 * 1_000_000_000


def without_head(text: str) -> HeadedLine:
    """Split a line; a time without a zone is taken as UTC.

    >>> without_head("[2024-01-02 10:00:00,500] [INFO] [train.py:10] step 5")
    HeadedLine(text=' step 5', indent=0, time_ns=1704189600500000000)
    >>> without_head("01:00:02 step 5").time_ns
    3602000000000

    """
    end, time_ns = 0, 0
    while part := _part(text, end):
        if time_ns <= DAY_NS and (time := _TIME.search(text, end, part.end() + 1)):
            found_ns = _unix_ns(time)
            time_ns = found_ns if found_ns > DAY_NS or not time_ns else time_ns
        end = part.end()
    rest = text[end:]
    indent = len(rest) - len(rest.lstrip())
    return HeadedLine(rest, max(0, indent - bool(end)), time_ns)


def unwrapped(line: str) -> list[str]:
    r"""Return the lines in an object that Docker or a logger of JSON wrote, each after its time; else the line itself.

    >>> unwrapped('{"log":"step 5 loss 0.5\\n","stream":"stdout","time":"2024-01-02T10:00:00Z"}')
    ['2024-01-02T10:00:00Z step 5 loss 0.5\n']
    >>> unwrapped('{"step": 5, "loss": 0.5, "message": "trained"}')
    ['{"step": 5, "loss": 0.5, "message": "trained"}']
    """
    if not line.startswith('{"'):
        return [line]
    try:
        held = json.loads(line)
    except (ValueError, RecursionError):
        return [line]
    text = next((held[name] for name in _WRAPPED if isinstance(held.get(name), str)), None)
    if text is None or not _COUNTERS.isdisjoint(map(str.casefold, held)):
        return [line]
    time = str(next((held[name] for name in _WRAPPED_TIMES if name in held), ""))
    head = "" if without_head(f"{time} ").text.strip() else f"{time} "
    return [head + part for part in text.splitlines(keepends=True)]


def _part(text: str, start: int) -> re.Match[str] | None:
    """Return the part of a head at a position; None where the line itself begins."""
    if _OTHER_RANK.match(text, start):
        return None
    if (match := _BRACKETED.match(text, start)) and _is_head(match[1] or match[2] or "", is_first=not start):
        return match
    if not start and (match := _FIRST.match(text)):
        return match
    if match := _HEAD_TIME.match(text, start) or _TOKEN.match(text, start):
        return match
    is_logger = start and (match := _LOGGER.match(text, start)) and not _is_of_line(match["name"] or "")
    return match if is_logger else None


def _is_of_line(words: str) -> bool:
    return not _WORDS_OF_LINES.isdisjoint(_WORDS.findall(words.casefold()))


def _is_head(content: str, *, is_first: bool) -> bool:
    """Whether brackets hold a time, a place or a process, or after a head a name; and no value, counter or phase."""
    rest = _NUMBERED.sub("", _TIME.sub("", content))
    return (rest != content or not is_first) and not _is_of_line(rest) and not _NUMBER.search(rest)


def _unix_ns(time: re.Match[str]) -> int:
    """Return the nanoseconds since 1970 of a time, or since midnight where its year is unknown; 0 for no time."""
    if time["unix"] is not None:
        return nanoseconds(number(time["unix"])) or 0
    year = time["year"] or time["year2"] or time["year3"]
    if time["ymd"] is not None:
        digits = re.sub(r"\D", "", time["ymd"])
        date, clock, zone = f"{digits[:4]}-{digits[4:6]}-{digits[6:]}", time["clock"], time["zone"]
    elif year is not None:
        month, day = time["month"] or time["month3"], time["day"] or time["day3"]
        date = f"{year}-{_MONTHS.index(month[:3].casefold()) + 1:02}-{int(day):02}"
        clock, zone = time["clock2"] or time["clock3"], time["zone2"] or time["zone3"] or ""
    else:
        date, clock, zone = "1970-01-01", time["clock2"] or time["clock4"], ""
    hours, minutes, seconds = re.split(r":", clock, maxsplit=2)
    if time["half"] is not None:
        hours = str(int(hours) % 12 + 12 * (time["half"] in "pP"))
    whole, fraction = (*re.split(r"[.,:]", seconds), "")[:2]
    named = "+00:00" if zone.strip().isalpha() else zone.strip()
    told = unix_ns(f"{date}T{int(hours):02}:{minutes}:{whole}{named}")
    return 0 if told is None else told + int(f"{fraction:0<9}") or DAY_NS
