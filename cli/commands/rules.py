"""``steptape rules``: lists the shipped rule files, prints one, or prints the full form of rules."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from ...rules.policy_file.policy import expanded_text, policy_path, require_file, shipped_policies
from ..options import RulesArguments
from ..output import print_json_lines, print_table, say
from ..policy_lookup import rules_named

#: The first sentence of a file's first comment, up to a full stop or a colon. ``Fig. 3`` goes on.
_SUMMARY: Final = re.compile(r".*?(?=[.:](?:\s+[A-Za-z]|\s*$))")


def rules(asked: RulesArguments) -> None:
    """List the shipped rule files, or print one, or the full form of a file or of sentences."""
    if asked.expand is not None:
        say(expanded_text(rules_named(asked.expand)).removesuffix("\n"))
    if asked.show is not None:
        shown = shipped_policies().get(asked.show)
        path = require_file(policy_path(asked.show) if shown is None else shown)
        say(path.read_text(encoding="utf-8").removesuffix("\n"))
    if asked.expand is None and asked.show is None:
        listed = [(name, _summary(path)) for name, path in shipped_policies().items()]
        if asked.as_json:
            print_json_lines({"name": name, "summary": summary} for name, summary in listed)
        else:
            print_table(("name", "what it does"), listed)


def _summary(path: Path) -> str:
    """Return the first sentence of a rule file's first comment."""
    lines = path.read_text(encoding="utf-8").splitlines()
    end = next(number for number, line in enumerate(lines) if line in ("#", "") or not line.startswith("#"))
    text = " ".join(line.removeprefix("#").strip() for line in lines[:end])
    found = _SUMMARY.match(text)
    return found[0] if found else text
