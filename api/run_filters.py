"""Filters and sorts the runs of a list by query parameters such as ``field__op=``.

Parameters such as ``config.optimizer.lr__lt=0.01`` filter by configuration. The part before ``__`` is a dotted key of
the flattened configuration, as pages show it. A key may itself hold ``__``: only what follows the last one is an
operator, if it is one.
"""

from __future__ import annotations

import bisect
import json
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any, Final, Literal, Self

from pydantic import (
    AfterValidator,
    ConfigDict,
    Field,
    ModelWrapValidatorHandler,
    ValidationError,
    create_model,
    model_validator,
)
from pydantic_core import ErrorDetails, InitErrorDetails, PydanticCustomError

from ..store.events import JsonObject
from ..store.reading.catalog import Look
from ..store.reading.summary import Entry, RunSummary
from ..store.run_info import SHOWN_STATUSES, flattened
from .models import FormedQuery

_TEXTS: Final = ("run_id", "name", "group", "policy_digest")
_NUMBERS: Final = ("duration_s", "steps", "planned_steps", "attempts")
_TIMES: Final = ("started", "ended")

#: Operators on the run's value and the parameter's. A missing value matches none of them.
_OPERATORS: Final[Mapping[str, Callable[[Any, Any], bool]]] = {
    "eq": operator.eq,
    "ne": operator.ne,
    "gt": operator.gt,
    "gte": operator.ge,
    "lt": operator.lt,
    "lte": operator.le,
    "contains": lambda value, part: part.casefold() in value.casefold(),
    "startswith": lambda value, start: value.startswith(start),
    "in": lambda value, listed: value in listed.split(","),
}
_OF_TEXTS: Final = ("eq", "ne", "contains", "startswith", "in")
_OF_NUMBERS: Final = ("eq", "ne", "gt", "gte", "lt", "lte")
_OF_TIMES: Final = ("gt", "gte", "lt", "lte")

SORTABLE: Final = ("started", "run_id", "name", "group", "status", "ended", *_NUMBERS)

Sort = Annotated[str, Field(pattern=f"^-?({'|'.join(SORTABLE)})$")]

_Text = Annotated[str, Field(max_length=1000)]
_Finite = Annotated[float, Field(allow_inf_nan=False)]


def _in_utc(moment: datetime) -> datetime:
    """Convert a time to naive UTC, as runs have it; a time without a zone is already UTC."""
    try:
        return moment.astimezone(UTC).replace(tzinfo=None) if moment.tzinfo else moment
    except OverflowError:
        raise PydanticCustomError("time_out_of_range", "the time is outside the years 1 to 9999 in UTC") from None


_Time = Annotated[datetime, AfterValidator(_in_utc)]

_WORDS: Final = {
    "eq": "equals this value",
    "ne": "is present and differs from this value",
    "gt": "is greater than this value",
    "gte": "is this value or greater",
    "lt": "is less than this value",
    "lte": "is this value or less",
    "contains": "contains this text, case-insensitive",
    "startswith": "begins with this text",
    "in": "is one of these comma-separated values",
}


def _parameters() -> Mapping[str, Any]:
    """Build the fields of the query model: one for each run field and each operator that suits it."""
    found = {}
    groups = (
        (_TEXTS, _OF_TEXTS, _Text),
        (("status",), ("ne", "in"), _Text),
        (_NUMBERS, _OF_NUMBERS, _Finite),
        (_TIMES, _OF_TIMES, _Time),
    )
    for fields, operators, type_ in groups:
        for field in fields:
            for name in operators:
                text = f"Runs whose `{field}` {_WORDS[name]}."
                found[f"{field}__{name}"] = (type_ | None, Field(default=None, description=text))
    return found


def _again(entry: ErrorDetails) -> InitErrorDetails:
    """Return an error that can be raised beside others."""
    kind = PydanticCustomError(entry["type"], "{message}", {"message": entry["msg"]})
    return InitErrorDetails(type=kind, loc=entry["loc"], input=entry["input"])


class _RunsQuery(FormedQuery):
    """Filters for runs. A run must match all of them. Further parameters filter by configuration."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, _Text]

    status: Literal[SHOWN_STATUSES] | None = None  # type: ignore[valid-type]
    """The run's status."""
    group: str | None = None
    """The run's group, exactly."""
    tag: str | None = None
    """One of the run's tags."""
    name: str | None = None
    """Part of the run's name, case-insensitive."""
    sort: Sort = "-started"
    """Field to sort by; a leading `-` sorts in descending order. Runs without the field come last."""
    limit: int = Field(default=100, ge=1, le=1000)
    """Most items per page."""
    cursor: str | None = Field(default=None, max_length=1000)
    """`next` of the previous page."""

    @model_validator(mode="wrap")
    @classmethod
    def _check(cls, given: Mapping[str, str], validate: ModelWrapValidatorHandler[Self]) -> Self:
        """Report the faults of all parameters at once."""
        faults = faults_of({name: text for name, text in given.items() if name not in cls.model_fields})
        try:
            query = validate(given)
        except ValidationError as error:
            faults += [_again(entry) for entry in error.errors()]
        if faults:
            raise ValidationError.from_exception_data("parameters", faults)
        return query

    def filters(self) -> tuple[tuple[str, str], ...]:
        """Return filters and sort order as text that is equal for equal queries."""
        given = self.model_dump(exclude_none=True, exclude={"limit", "cursor", "format"}, mode="json")
        return tuple(sorted((name, str(value)) for name, value in given.items()))

    def conditions(self) -> list[Callable[[RunSummary], bool]]:
        """Return the predicates that a run must satisfy."""
        found: list[Callable[[RunSummary], bool]] = []
        if self.status is not None:
            found.append(lambda run: run.status == self.status)
        if self.group is not None:
            found.append(lambda run: run.group == self.group)
        if self.tag is not None:
            found.append(lambda run: self.tag in run.tags)
        if self.name is not None:
            found.append(_condition("name", "contains", self.name))
        found += [config_condition(parameter, wanted) for parameter, wanted in self.__pydantic_extra__.items()]
        for parameter in self.model_fields_set - self.__pydantic_extra__.keys():
            field, separator, name = parameter.partition("__")
            wanted = getattr(self, parameter)
            if separator and wanted is not None:
                found.append(_condition(field, name, wanted))
        return found


RunsQuery = create_model("RunsQuery", __base__=_RunsQuery, __doc__=_RunsQuery.__doc__, **_parameters())

#: An entry's position in an order: whether it lacks the field, its value, its id.
Position = tuple[bool, int | float | str, str]


def admitted(entries: Sequence[Entry], query: _RunsQuery) -> Sequence[Entry]:
    """Return the entries that match the query, in their order."""
    conditions = query.conditions()
    if not conditions:
        return entries
    return [entry for entry in entries if all(holds(entry.summary) for holds in conditions)]


def in_order(look: Look, sort: str) -> Sequence[Entry]:
    """Return the entries of a scan as ``sort`` says; sorted once for each scan."""
    return look.newest_first if sort == "-started" else look.kept(sort, lambda: _sorted(look.newest_first, sort))


def _sorted(entries: Sequence[Entry], sort: str) -> list[Entry]:
    field = sort.removeprefix("-")
    having = [entry for entry in entries if getattr(entry.summary, field) is not None]
    lacking = [entry for entry in entries if getattr(entry.summary, field) is None]
    having.sort(key=lambda entry: position_of(entry, sort), reverse=sort.startswith("-"))
    return having + sorted(lacking, key=lambda entry: entry.summary.run_id, reverse=sort.startswith("-"))


def position_of(entry: Entry, sort: str) -> Position:
    """Return the entry's position in an order."""
    value = getattr(entry.summary, sort.removeprefix("-"))
    if isinstance(value, datetime):
        value = value.isoformat(timespec="microseconds")
    return value is None, 0 if value is None else value, entry.summary.run_id


def after(entries: Sequence[Entry], sort: str, last: Position) -> Sequence[Entry]:
    """Return the entries after a position in an order, whether or not the run at that position still exists."""

    def follows(entry: Entry) -> bool:
        own = position_of(entry, sort)
        if own[0] != last[0]:
            return own[0]
        if type(own[1]) is not type(last[1]) and isinstance(last[1], str) != isinstance(own[1], str):
            return False
        return own[1:] < last[1:] if sort.startswith("-") else own[1:] > last[1:]

    return entries[bisect.bisect_left(entries, True, key=follows) :]


def _condition(field: str, name: str, wanted: Any) -> Callable[[RunSummary], bool]:
    compare = _OPERATORS[name]

    def holds(run: RunSummary) -> bool:
        value = getattr(run, field)
        return value is not None and compare(value, wanted)

    return holds


PREFIX: Final = "config."

_Test = Callable[[Any, str], bool]


def _number(text: str) -> float:
    """Parse a finite number; NaN when it is none."""
    try:
        number = float(text)
    except ValueError:
        return math.nan
    return number if math.isfinite(number) else math.nan


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _text(value: Any) -> str:
    """Return a value as a parameter spells it: text as it is, anything else as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _equals(value: Any, wanted: str) -> bool:
    return bool(value == _number(wanted)) if _is_number(value) else _text(value) == wanted


#: Operators on numbers. A value that is none matches none of them.
_ORDERS: Final[dict[str, _Test]] = {
    "gt": lambda value, wanted: _is_number(value) and value > _number(wanted),
    "gte": lambda value, wanted: _is_number(value) and value >= _number(wanted),
    "lt": lambda value, wanted: _is_number(value) and value < _number(wanted),
    "lte": lambda value, wanted: _is_number(value) and value <= _number(wanted),
}

_CONFIG_OPERATORS: Final[dict[str, _Test]] = {
    "eq": _equals,
    "ne": lambda value, wanted: not _equals(value, wanted),
    **_ORDERS,
    "contains": lambda value, wanted: wanted.casefold() in _text(value).casefold(),
    "startswith": lambda value, wanted: _text(value).startswith(wanted),
    "in": lambda value, wanted: any(_equals(value, one) for one in wanted.split(",")),
}

#: The OpenAPI parameter that stands for all of these: each property of the object is one query parameter.
PARAMETER: Final[JsonObject] = {
    "name": "config",
    "in": "query",
    "required": False,
    "style": "form",
    "explode": True,
    "description": (
        "Runs by their configuration, such as `config.optimizer.lr=0.001`. Keys of nested mappings are joined by dots. "
        "An operator may follow, as for the other fields: `config.lr__lt=0.01`. Operators: "
        f"{', '.join(_CONFIG_OPERATORS)}. Numbers compare as numbers; `true`, `false`, `null` and lists as JSON. "
        "A run without the key matches none."
    ),
    "schema": {
        "type": "object",
        "propertyNames": {"pattern": r"^config\..+$"},
        "additionalProperties": {"type": "string", "maxLength": 1000},
    },
}


def faults_of(given: Mapping[str, str]) -> list[InitErrorDetails]:
    """Return a fault for each parameter that does not filter by configuration."""
    faults = {name: _fault(name, text) for name, text in given.items()}
    return [InitErrorDetails(type=fault, loc=(name,), input=given[name]) for name, fault in faults.items() if fault]


def _fault(parameter: str, wanted: str) -> str | PydanticCustomError | None:
    """Return what is wrong with a parameter; None if nothing is."""
    if not parameter.startswith(PREFIX) or parameter == PREFIX:
        return "extra_forbidden"
    _, operator = _key_and_operator(parameter)
    if operator in _ORDERS and math.isnan(_number(wanted)):
        return PydanticCustomError("finite_number", "must be a finite number")
    return None


def config_condition(parameter: str, wanted: str) -> Callable[[RunSummary], bool]:
    """Return the predicate of one parameter."""
    key, operator = _key_and_operator(parameter)
    test = _CONFIG_OPERATORS[operator]

    def holds(run: RunSummary) -> bool:
        config = flattened(json.loads(run.config))
        return key in config and test(config[key], wanted)

    return holds


def _key_and_operator(parameter: str) -> tuple[str, str]:
    name = parameter.removeprefix(PREFIX)
    key, separator, operator = name.rpartition("__")
    return (key, operator) if separator and operator in _CONFIG_OPERATORS else (name, "eq")
