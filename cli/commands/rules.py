"""``steptape rules``: lists the shipped rule files, prints one, or prints the full form of rules.

``docs/generated.py`` makes the page of shipped rules from the same list.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from ...rules.policy_file.policy import expanded_text, load_policy, policy_path, require_file, shipped_policies
from ...rules.readings.reading import Param
from ..options import RulesArguments
from ..output import print_json_lines, say
from ..policy_lookup import rules_named

#: Matches a text up to its first full stop or colon that ends a sentence. The one in ``Fig. 3`` does not.
_SUMMARY: Final = re.compile(r".*?(?=[.:](?:\s+[A-Za-z]|\s*$))")


#: Most series and params of a rule file that its line names.
_NAMED: Final = 6


class ShippedRules(NamedTuple):
    """The description of a rule file in a list.

    Attributes:
        name: The name by which it is armed.
        summary: What it does.
        reads: The series, controller metrics and facts that its rules read.
        params: Its params with their values.
    """

    name: str
    summary: str
    reads: Sequence[str]
    params: Mapping[str, Param]

    def line_of_reads(self) -> str:
        """Return the first names of what it reads."""
        return _first(self.reads)

    def line_of_params(self) -> str:
        """Return the first params, as ``--set`` takes them."""
        return _first([f"{name}={value}" for name, value in self.params.items()])

    def to_json(self) -> dict[str, Any]:
        """Return all of it."""
        return {**self._asdict(), "reads": list(self.reads), "params": dict(self.params)}


def shipped_rules() -> list[ShippedRules]:
    """Return the shipped rule files, in order of their names."""
    return [_described(name, path) for name, path in shipped_policies().items()]


def rules(asked: RulesArguments) -> None:
    """List the shipped rule files, or print one, or the full form of a file or of sentences."""
    if asked.expand is not None:
        say(expanded_text(rules_named(asked.expand)).removesuffix("\n"))
    if asked.show is not None:
        shown = shipped_policies().get(asked.show)
        path = require_file(policy_path(asked.show) if shown is None else shown)
        say(path.read_text(encoding="utf-8").removesuffix("\n"))
    if asked.expand is None and asked.show is None:
        if asked.as_json:
            print_json_lines(each.to_json() for each in shipped_rules())
            return
        for each in shipped_rules():
            parts = {"reads": each.line_of_reads(), "params": each.line_of_params()}
            say(
                "\n".join(
                    [each.name, f"  {each.summary}.", *(f"  {key}: {text}" for key, text in parts.items() if text)]
                )
            )


def _described(name: str, path: Path) -> ShippedRules:
    policy = load_policy(path)
    return ShippedRules(name, _summary(path), policy.reads, policy.params)


def _first(parts: Sequence[str]) -> str:
    more = len(parts) - _NAMED
    return ", ".join([*parts[:_NAMED], *([f"{more} more"] if more > 0 else [])])


def _summary(path: Path) -> str:
    """Return the first sentence of a rule file's first comment."""
    lines = path.read_text(encoding="utf-8").splitlines()
    end = next(number for number, line in enumerate(lines) if line in ("#", "") or not line.startswith("#"))
    text = " ".join(line.removeprefix("#").strip() for line in lines[:end])
    found = _SUMMARY.match(text)
    return found[0] if found else text
