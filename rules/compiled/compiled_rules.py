"""Compiles a rule and its readings, and finds the place in its text at which it has failed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import CodeType, TracebackType

from ..errors import ExpressionError, Fault
from ..language.bound_rule import BoundRule
from ..language.expressions import Expression
from ..language.leaves import leaves
from .compilation import Translator
from .names import Names


@dataclass(frozen=True, slots=True)
class CompiledRule:
    """A rule as code, before an engine binds its names to values.

    Attributes:
        code: Body of a function of the event that returns the rule's value.
        leaf_codes: The same for each reading that explains a decision, by its text.
    """

    code: CodeType
    leaf_codes: Mapping[str, CodeType]

    def failing_offset(self, traceback: TracebackType | None, expression: Expression) -> int | None:
        """Return the offset in the rule's text at which an exception was raised; None when unknown.

        It is taken from the innermost frame of the rule's own code.
        """
        codes = _nested_codes(self.code)
        offset = None
        while traceback is not None:
            code = traceback.tb_frame.f_code
            if code in codes:
                position = list(code.co_positions())[traceback.tb_lasti // 2]
                if position[0] is not None and position[2] is not None:
                    offset = expression.offset_at(position[0], position[2])
            traceback = traceback.tb_next
        return offset


def _nested_codes(code: CodeType) -> set[CodeType]:
    inner = [constant for constant in code.co_consts if isinstance(constant, CodeType)]
    return {code}.union(*(_nested_codes(constant) for constant in inner))


def compile_rule(rule: BoundRule, names: Names) -> CompiledRule:
    """Compile a bound rule and its leaves.

    Args:
        rule: The rule.
        names: The generated names of its policy, which gain those that the rule reads.

    Raises:
        ExpressionError: The rule is too large for Python's compiler.
    """
    translator = Translator(rule, names)
    try:
        return CompiledRule(
            translator.code(rule.expression.tree),
            {text: translator.code(node) for text, node in leaves(rule).items()},
        )
    except (ValueError, RecursionError, MemoryError, SyntaxError, OverflowError) as error:
        raise ExpressionError([Fault(0, "the rule is too large to compile", str(error))]) from error
