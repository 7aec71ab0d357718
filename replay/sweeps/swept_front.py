"""Reads the front of a sweep, as ``steptape sweep --json`` prints it, and finds a policy among its variants."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from ...rules.policy_file.policy import Policy
from ...store.errors import TelemetryError


@dataclass(frozen=True, slots=True)
class SweptVariant:
    """A variant on a front: what it saves of a run's steps on average, its mean regret, and its settings in words."""

    share_saved: float
    regret: float
    settings: str


@dataclass(frozen=True, slots=True)
class SweptFront:
    """The variants for which no other saves more steps at no more regret.

    Attributes:
        variants: Number of variants that the sweep tried.
        front: Those on the front, most saved first.
        own: The policy's own variant; None if its saving or regret is unknown.
    """

    variants: int
    front: tuple[SweptVariant, ...]
    own: SweptVariant | None


def read_front(path: Path, policy: Policy) -> SweptFront:
    """Read the lines of a sweep of this policy.

    Raises:
        TelemetryError: They are no sweep's, or none of its variants has the policy's params.
    """
    rows = list(_rows(path))
    if not rows:
        raise TelemetryError("holds no variant", where=str(path), fix="steptape sweep POLICY --set ... --json")
    own = [row for row in rows if _is_of(row, policy.params)]
    if not own:
        params = ", ".join(f"{name} = {value}" for name, value in policy.params.items())
        raise TelemetryError("no variant of the sweep has the policy's params", where=str(path), got=params or "none")
    swept = (_variant(row, policy) for row in rows if row["on_front"])
    front = sorted((one for one in swept if one is not None), key=lambda one: -one.share_saved)
    return SweptFront(len(rows), tuple(front), _variant(own[0], policy))


def _rows(path: Path) -> Iterator[dict[str, object]]:
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        try:
            row = json.loads(line)
        except ValueError:
            row = None
        if not isinstance(row, dict) or not {"share_saved", "mean_regret", "on_front"} <= row.keys():
            raise TelemetryError(
                "is no line of a sweep", where=f"{path}:{number}", got=line[:40], fix="steptape sweep POLICY --json"
            )
        yield row


def _is_of(row: Mapping[str, object], params: Mapping[str, object]) -> bool:
    """Whether a variant has these params. A sweep varies some of them, and keeps the others."""
    return all(row[name] == value for name, value in params.items() if name in row)


def _variant(row: Mapping[str, object], policy: Policy) -> SweptVariant | None:
    share, regret = row["share_saved"], row["mean_regret"]
    if not isinstance(share, (int, float)) or not isinstance(regret, (int, float)):  # NaN is a text in strict JSON.
        return None
    settings = ", ".join(f"{name} = {row[name]}" for name in policy.params if name in row)
    return SweptVariant(float(share), float(regret), settings)
