"""Parses ``--set PARAM=VALUES``: the values to try of each param, as lists and ranges."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from decimal import Decimal, InvalidOperation
from typing import Final

import typer

from ..rules.language.references import Param
from ..store.errors import TelemetryError
from .lookup import setting_value

#: Maximum number of values in one range.
_MAX_VALUES: Final = 10_000


def axes_of(settings: Sequence[str]) -> dict[str, list[Param]]:
    """Parse the settings into the params that they vary, with their values.

    Raises:
        TelemetryError: Two settings vary the same param.
    """
    axes: dict[str, list[Param]] = {}
    for setting in settings:
        name, values = _axis(setting)
        if name in axes:
            raise TelemetryError("a param has two --set options", got=name, fix="Give all of its values in one --set")
        axes[name] = values
    return axes


def _axis(setting: str) -> tuple[str, list[Param]]:
    name, equals, text = setting.partition("=")
    if not equals or not name or not text:
        raise typer.BadParameter(f"--set takes PARAM=VALUES; got {setting!r}")
    values = [value for part in text.split(",") for value in _values(part)]
    # A dict treats True and 1 as one key, but params of one name are of one type.
    return name, list(dict.fromkeys(values))


def check_numbers(axes: Mapping[str, Sequence[Param]], params: Mapping[str, Param]) -> None:
    """Refuse text for a number, such as ``1-2`` for a range."""
    for name, values in axes.items():
        text = next((value for value in values if isinstance(value, str)), None)
        if text is not None and not isinstance(params.get(name, ""), (str, bool)):
            shape = "a list, such as 1,2,3, or a range FIRST:LAST:STEP, such as 1:2:0.5"
            raise typer.BadParameter(f"--set {name} takes numbers: {shape}; got {text!r}")


def _values(text: str) -> list[Param]:
    """Parse one value, or a range ``first:last:step`` whose last value is included if the steps reach it."""
    if ":" not in text:
        return [setting_value(text)]
    try:
        first, last, step = map(Decimal, text.split(":"))
    except (ValueError, InvalidOperation):
        raise typer.BadParameter(f"a range is FIRST:LAST:STEP, such as 2:5:0.5; got {text!r}") from None
    if not (first.is_finite() and last.is_finite() and step.is_finite() and step > 0 and first <= last):
        raise typer.BadParameter(f"a range FIRST:LAST:STEP has FIRST <= LAST and STEP > 0; got {text!r}")
    if (last - first) / step >= _MAX_VALUES:
        raise typer.BadParameter(f"a range has at most {_MAX_VALUES:,} values; got {text!r}")
    steps = itertools.takewhile(lambda value: value <= last, (first + step * count for count in itertools.count()))
    return [setting_value(str(value)) for value in steps]
