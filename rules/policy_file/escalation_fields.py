"""Reads ``escalate:``, the stages of a controller's operations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import yaml

from .. import habits
from .controller_fields import ControllerFieldReader
from .declarations import Escalation, Stage
from .fields import Fields

_KEYS: Final = ("stages", "cycle", "cap", "forget_after")
_STAGE_KEYS: Final = ("operations", "times")


class EscalationFieldReader(ControllerFieldReader):
    """Reads stages, and what says when they begin anew and end."""

    def escalation(
        self, fields: Fields, where: str, operations: Callable[[Fields, str], tuple[str, ...]]
    ) -> Escalation | None:
        """Return the escalation of a controller; None without one, or when it is refused.

        Args:
            operations: Reads the operations of an entry.
        """
        if "escalate" not in fields:
            return None
        if "operations" in fields:
            self.refuse(fields["operations"], f"{where}, operations", "'escalate' has them", "Leave one of them out.")
        where += ", escalate"
        entry = self.fields(fields["escalate"], where, _KEYS, ("stages",), habits.ESCALATION_KEYS)
        cap = self.at_least(entry["cap"], f"{where}, cap", 1) if "cap" in entry else None
        forget_after = self.span(entry["forget_after"], f"{where}, forget_after") if "forget_after" in entry else None
        cycles = "cycle" in entry and self.flag(entry["cycle"], f"{where}, cycle") is True
        if "stages" not in entry:
            return None
        nodes = entry["stages"].value if isinstance(entry["stages"], yaml.SequenceNode) else []
        if not nodes:
            fix = "Write one '- operations: [...]' per line."
            self.refuse(entry["stages"], f"{where}, stages", "must be a list of stages", fix)
            return None
        stages = [self._stage(node, f"{where}, stage {number}", operations) for number, node in enumerate(nodes, 1)]
        return Escalation(tuple(stages), cycles, cap, forget_after)

    def _stage(self, node: yaml.Node, where: str, operations: Callable[[Fields, str], tuple[str, ...]]) -> Stage:
        entry = self.fields(node, where, _STAGE_KEYS, ("operations",), habits.CONTROLLER_KEYS)
        times = self.at_least(entry["times"], f"{where}, times", 1) if "times" in entry else 1
        return Stage(operations(entry, where), times or 1)
