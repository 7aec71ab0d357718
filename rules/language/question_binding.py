"""Binds questions about controllers, states, milestones and all ranks."""

from __future__ import annotations

import ast
from collections.abc import Mapping

from ..errors import suggestion
from ..functions.table import ANY_RANK, OF_NOW, RAISED, Function
from . import references as ref
from .milestone_arguments import milestone_of
from .node_binding import NO_KIND, OWN_RANK, NodeBinder, literal_text


class QuestionBinder(NodeBinder):
    """Binds calls that ask what others have done: controllers, states, ranks."""

    def _visit_decision_call(self, node: ast.Call, function: Function) -> None:
        """Bind a question about a controller, whose name must be a literal."""
        name = literal_text(node.args[0]) if len(node.args) == 1 and not node.keywords else None
        if name is None:
            what = f"{function.name} takes a controller's name as a string literal"
            self.refuse(node, what, f"Write {function.signature}.")
        elif name not in self.scope.controllers:
            self.refuse(node.args[0], "unknown controller", suggestion(name, self.scope.controllers))
        elif function.name in OF_NOW and name not in self.scope.above:
            fix = f'Put it before this one, or ask fired("{name}") of earlier events.'
            self.refuse(node.args[0], "not a controller above in the file", fix)
        elif function.name == RAISED and name not in self.scope.clearing:
            self.refuse(
                node.args[0], f"controller '{name}' has no 'clear'", f'Write holding("{name}"), or give it one.'
            )
        else:
            self.references[node] = ref.PastDecisions(function.name, name)

    def _visit_state_call(self, node: ast.Call, function: Function) -> None:
        """Bind a question about a state, whose name must be a literal."""
        name = literal_text(node.args[0]) if len(node.args) == 1 and not node.keywords else None
        if name is None:
            what = f"{function.name} takes a state's name as a string literal"
            self.refuse(node, what, f"Write {function.signature}.")
        elif name not in self.scope.states:
            fix = suggestion(name, self.scope.states) or "Sort the run into classes under 'states:'."
            self.refuse(node.args[0], "unknown state", fix)
        else:
            self.references[node] = ref.StateChange(function.name, name)
            self.metrics[name] = None

    def _visit_milestone(self, node: ast.Call, variables: Mapping[str, str]) -> None:
        """Bind a question about the run's length."""
        milestone = milestone_of(node, self.scope, variables, self.refuse)
        if milestone is not None:
            self.references[node] = milestone
            self._visit_arguments(node, variables)

    def _visit_rank_call(self, node: ast.Call, function: Function, variables: Mapping[str, str]) -> None:
        """Bind a function of all ranks: of a condition, or of a series that is named."""
        if len(node.args) != 1 or node.keywords:
            self.refuse(node, f"{function.name} takes one argument", f"Write {function.signature}.")
        elif self._is_of_ranks:
            self.refuse(node, f"{function.name} cannot be asked within {ANY_RANK}")
        elif function.name == ANY_RANK:
            self._is_of_ranks, before = True, len(self.faults)
            self.visit(node.args[0], variables)
            self._is_of_ranks = False
            read = (self.references.get(part) for part in ast.walk(node.args[0]))
            if len(self.faults) == before and not any(isinstance(reference, ref.RankValue) for reference in read):
                self.refuse(node, f"{ANY_RANK} reads no series", "Write any_rank(not isfinite(loss)).")
            self.references[node] = ref.AcrossRanks(ANY_RANK)
        else:
            self._visit_rank_series(node, function, variables)

    def _visit_rank_series(self, node: ast.Call, function: Function, variables: Mapping[str, str]) -> None:
        key = self._series_key(node.args[0], variables)
        if key is None:
            self.refuse(node.args[0], f"{function.name} takes a series", f"Write {function.signature}.")
        elif key.kind is not None or key.is_derived:
            self.refuse(node.args[0], OWN_RANK if key.is_derived else NO_KIND)
        elif key.is_of_member:
            self.refuse(node.args[0], "functions of all ranks take no pattern")
        elif not self.scope.lists(key.name):
            self.refuse(node.args[0], "unknown series", suggestion(key.name, self.scope.series or ()))
        else:
            self.references[node] = ref.AcrossRanks(function.name, key.name)
            self._read_on_ranks(key.name)
