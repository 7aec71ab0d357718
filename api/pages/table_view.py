"""The state of the runs table as its address holds it: what is shown, in which order, and which runs are selected.

The parameters of an address go in; a ``TableView`` comes out, with a sentence for each parameter that is wrong. A view
gives the address of another view that differs in some values.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Final
from urllib.parse import urlencode

from ...store.errors import shortened
from ...store.run_folder import RUN_ID

#: Most columns that stay in view, and most groups whose runs are shown.
MOST_PINNED: Final = 60
MOST_OPEN: Final = 20

#: Most runs of a selection: their ids are in the address.
MOST_SELECTED: Final = 1000

#: Separates the ids of a selection. No id contains it; alone it stands for all runs that match.
SEPARATOR: Final = "*"

_DIGITS: Final = "0123456789abcdefghijklmnopqrstuvwxyz"


@dataclass(frozen=True, slots=True)
class TableView:
    """The view of a table.

    Attributes:
        where: The question that its runs match.
        sort: The field that orders them; a leading ``-`` sorts in descending order.
        columns: Its fields, between commas; empty for those that suit the runs.
        pin: Number of columns that stay in view when the table is scrolled sideways.
        group: The field by whose values the runs are grouped; empty for none.
        open: The groups whose runs are shown, as texts of their values.
        selected: Ids of the selected runs; ``SEPARATOR`` alone for all that match.
        page: Number of the page, from 1.
    """

    where: str = ""
    sort: str = "-started"
    columns: str = ""
    pin: int = 0
    group: str = ""
    open: tuple[str, ...] = ()
    selected: tuple[str, ...] = ()
    page: int = 1

    def query(self, **changes: Any) -> str:
        """Return the query string of the view with these changes; empty for the first view."""
        return urlencode(list(_parameters(replace(self, **changes))))

    def hidden(self) -> list[tuple[str, str]]:
        """Return the parameters that a form keeps which asks another question or groups by another field."""
        return list(_parameters(replace(self, where="", group="", open=(), page=1)))

    def sorted_by(self, field: str, first: str) -> str:
        """Return the query string of a click on a heading: sorted by its field, or the other way round.

        Args:
            field: The field of the heading.
            first: ``-`` if the first click sorts in descending order; else empty.
        """
        order = {first + field: ("" if first else "-") + field}.get(self.sort, first + field)
        return self.query(sort=order, page=1)


_NAMES: Final = tuple(field.name for field in fields(TableView))
_FIRST: Final = TableView()


def _parameters(view: TableView) -> Iterator[tuple[str, str]]:
    """Yield the parameters of an address; values of the first view are left out."""
    for name in _NAMES:
        value = getattr(view, name)
        if value == getattr(_FIRST, name):
            continue
        if name == "selected":
            yield name, packed(value)
        elif isinstance(value, tuple):
            yield from ((name, one) for one in value)
        else:
            yield name, str(value)


def view_of(given: Sequence[tuple[str, str]]) -> tuple[TableView, list[str]]:
    """Return the view of an address, and a sentence for each parameter that is unknown or wrong and left out.

    >>> view_of([("sort", "lr"), ("pin", "two")])[1]
    ['pin: expected a whole number from 0 to 60; got two']
    """
    values: dict[str, Any] = {}
    faults = []
    for name in dict.fromkeys(name for name, _ in given):
        texts = [text for key, text in given if key == name]
        try:
            values[name] = _value(name, texts)
        except ValueError as error:
            faults.append(f"{shortened(name)}: {error}; got {shortened(', '.join(texts))}")
    return TableView(**values), faults


def _value(name: str, texts: list[str]) -> Any:
    if name not in _NAMES:
        raise ValueError(f"unknown parameter. Known here: {', '.join(_NAMES)}. To filter, write where=lr<0.01")
    if name == "open":
        return tuple(dict.fromkeys(texts[:MOST_OPEN]))
    if len(texts) > 1:
        raise ValueError("expected one value")
    if name == "selected":
        return unpacked(texts[0])
    if name in ("pin", "page"):
        least, most = (0, MOST_PINNED) if name == "pin" else (1, 1_000_000)
        if not (texts[0].isascii() and texts[0].isdecimal() and least <= int(texts[0][:9]) <= most):
            raise ValueError(f"expected a whole number from {least} to {most:,}")
        return int(texts[0])
    return texts[0] or getattr(_FIRST, name)


def packed(run_ids: Iterable[str]) -> str:
    """Write ids as text: sorted, each without the beginning that it shares with the one before, but for its length.

    The length is one digit of base 36. 500 ids of one day are 7 kB; written in full they are 14 kB.

    >>> packed(["20260101T000000-bbbbbb", "20260101T000000-aaaaaa"])
    '20260101T000000-aaaaaa*gbbbbbb'
    """
    parts: list[str] = []
    before = ""
    for run_id in sorted(set(run_ids)):
        shared = min(_shared(before, run_id), len(_DIGITS) - 1)
        parts.append(_DIGITS[shared] + run_id[shared:] if parts else run_id)
        before = run_id
    return SEPARATOR.join(parts)


def _shared(one: str, other: str) -> int:
    return next(
        (at for at, pair in enumerate(zip(one, other, strict=False)) if pair[0] != pair[1]), min(len(one), len(other))
    )


def unpacked(text: str) -> tuple[str, ...]:
    """Return the ids of a selection.

    Raises:
        ValueError: It is not a selection, or a larger one than an address may hold.
    """
    if text in ("", SEPARATOR):
        return (SEPARATOR,) if text else ()
    if text.count(SEPARATOR) >= MOST_SELECTED:
        raise ValueError(f"expected a selection of at most {MOST_SELECTED:,} runs")
    run_ids: list[str] = []
    for part in text.split(SEPARATOR):
        shared = _DIGITS.find(part[:1]) if run_ids else 0
        run_id = run_ids[-1][:shared] + part[1:] if run_ids else part
        if shared < 0 or not RUN_ID.fullmatch(run_id):
            raise ValueError("expected a selection as this page writes it")
        run_ids.append(run_id)
    return tuple(dict.fromkeys(run_ids))
