"""Renders the result of a policy test as lines for people and as JSON for programs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from ...store.event_json import encoded
from ..engine.decisions import Cleared, Decision
from .file import Expected
from .run import Comparison, ScenarioResult

#: Lines of a difference that are shown; the rest are only counted.
_SHOWN: Final = 20
#: Matching decisions that are shown before and after each difference.
_CONTEXT: Final = 2


def result_lines(result: ScenarioResult) -> list[str]:
    """Return the lines about a test that fails: a headline that editors can jump from, then the difference.

    In the difference, ``-`` marks a decision that was expected, ``+`` one that was made, and a blank one that was both.
    """
    test = result.test
    head = f"{test.source}:{test.place.line}:{test.place.column}: test '{test.name}' fails: {_summary(result)}"
    table = list(_difference(result))
    widths = [max((len(row[column]) for row in table), default=0) for column in range(5)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in table]
    lines = [f"  {line}".rstrip() for line in lines]
    if len(lines) > _SHOWN:
        lines = [*lines[:_SHOWN], f"    ... and {len(lines) - _SHOWN} more lines"]
    lines += [f"  rule error: {failure.error}" for failure in result.failures]
    lines += [f"  no rule error: controller '{name}' should have failed and did not" for name in result.unfailing]
    return [head, *lines, *(f"  hint: {hint}" for hint in result.hints)]


def result_json(result: ScenarioResult) -> dict[str, Any]:
    """Return the result of a test as ``steptape test --json`` prints it, one object per test."""
    test = result.test
    return {
        "source": test.source,
        "test": test.name,
        "line": test.place.line,
        "column": test.place.column,
        "ok": result.passes,
        "policy": {"source": test.policy.source, "digest": test.policy.digest},
        "steps": result.steps,
        "missing": [_expected_json(entry.expected) for entry in result.missing if entry.expected],
        "unexpected": [_decision_json(entry.decision) for entry in result.unexpected if entry.decision],
        "different": [
            {"expected": _expected_json(entry.expected), "decided": _decision_json(entry.decision)}
            for entry in result.different
            if entry.expected and entry.decision
        ],
        "rule_errors": [
            {"controller": failure.controller, "step": failure.step, "error": failure.error}
            for failure in result.failures
        ],
        "rule_errors_missing": list(result.unfailing),
        "hints": list(result.hints),
    }


def _summary(result: ScenarioResult) -> str:
    counts = {
        "missing": len(result.missing),
        "unexpected": len(result.unexpected),
        "different": len(result.different),
        "rule errors": len(result.failures) + len(result.unfailing),
    }
    told = ", ".join(f"{count} {what}" for what, count in counts.items() if count)
    return f"{told} (of {result.steps} steps)"


def _difference(result: ScenarioResult) -> Iterator[tuple[str, ...]]:
    """Yield rows of sign, step, controller, operations and note; a match appears only near a difference."""
    faults = [index for index, entry in enumerate(result.comparisons) if not entry.is_same]
    near = {index + offset for index in faults for offset in range(-_CONTEXT, _CONTEXT + 1)}
    for index, entry in enumerate(result.comparisons):
        if index in near:
            yield from _rows(entry)


def _rows(entry: Comparison) -> Iterator[tuple[str, ...]]:
    if entry.is_same and entry.decision:
        yield _row(" ", entry.decision, "")
        return
    if wanted := entry.expected:
        absence = "" if entry.decision else _absence(wanted)
        told = (wanted.trigger, wanted.member, _quoted(wanted.message), absence)
        yield _row("-", wanted, ", ".join(filter(None, told)))
    if entry.decision:
        yield _row("+", entry.decision, _explanation(entry.decision))


def _row(sign: str, entry: Expected | Decision | Cleared, note: str) -> tuple[str, ...]:
    if isinstance(entry, Cleared) or (isinstance(entry, Expected) and entry.is_cleared):
        orders = "cleared"
    else:
        orders = "" if entry.operations is None else f"[{', '.join(entry.operations)}]"
    return sign, f"step {entry.step}", entry.controller, orders, note


def _absence(expected: Expected) -> str:
    return "was not cleared" if expected.is_cleared else "did not fire"


def _explanation(decision: Decision | Cleared) -> str:
    """Return the trigger, the values on which a decision was made, and its message."""
    values = ", ".join(f"{name} = {value}" for name, value in decision.values.items())
    message = decision.message if isinstance(decision, Decision) else None
    told = (f"{decision.trigger}: {values}" if values else decision.trigger, decision.member, _quoted(message))
    return ", ".join(filter(None, told))


def _quoted(message: str | None) -> str:
    return f"message {message!r}" if message else ""


def _expected_json(expected: Expected) -> dict[str, Any]:
    return {
        "step": expected.step,
        "controller": expected.controller,
        "operations": None if expected.operations is None else list(expected.operations),
        "trigger": expected.trigger,
        "message": expected.message,
        "member": expected.member,
        **({"cleared": True} if expected.is_cleared else {}),
        "line": expected.place.line,
        "column": expected.place.column,
    }


def _decision_json(decision: Decision | Cleared) -> dict[str, Any]:
    return {
        "step": decision.step,
        "controller": decision.controller,
        **({"operations": list(decision.operations)} if isinstance(decision, Decision) else {"cleared": True}),
        "trigger": decision.trigger,
        **({"message": decision.message} if isinstance(decision, Decision) else {}),
        "member": decision.member,
        "values": encoded(decision.values),
    }
