"""A policy: a rule file that is read, checked, and identified by a digest of its meaning."""

from __future__ import annotations

import ast
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from ...store.errors import TelemetryError, require_version
from ...store.run_info import Attempt, PolicyRecord
from ..control import Effect, InvalidCall, is_call, parse_call
from ..errors import suggestion
from ..language.references import Param
from ..language.timing import Span, StepWindow
from .blueprint import Blueprint, draw_blueprint
from .declarations import (
    SHADOW,
    AdmittedSeries,
    Controller,
    Declarations,
    Ends,
    Escalation,
    MetricDeclaration,
    OperationDeclaration,
    Rule,
    StateDeclaration,
)
from .document import Document, read_text
from .metrics import METRIC_CLASSES
from .operations import OPERATION_CLASSES
from .schema import read_declarations

#: Increases when the same policy and the same events may give different decisions than before.
SEMANTICS_VERSION: Final = 4

_SHIPPED: Final = Path(__file__).parents[1] / "policies"

#: The policies that pickles described, by all that they described.
_UNPICKLED: Final[dict[tuple[object, ...], Policy]] = {}
_MOST_UNPICKLED: Final = 16


@dataclass(frozen=True, eq=False)
class Policy:
    """A policy that loads. Two are equal when their digests are.

    Attributes:
        source: The origin of the text, as error messages name it.
        text: The file, unchanged.
        digest: SHA-256, in hexadecimal, of the policy's meaning; comments, blanks, name, description and ranges do
            not count.
        name: As in the file; empty when absent.
        description: As in the file; empty when absent.
        params: Params with their values, overrides applied.
        series: Names of the series that rules may read; None when the file does not list them.
        definitions: The text of each defined expression, by name.
        ranges: The least and the greatest value of metrics, by name, as far as the file says.
        admitted: The definitions that have ``admit``, in file order.
        metrics: Controller metrics, in file order.
        states: States, in file order.
        operations: Operations, in file order; ``hfcontrols`` is always among them.
        controllers: Controllers, in file order.
        blueprint: The parts that its engines share.
    """

    source: str
    text: str
    digest: str
    name: str
    description: str
    params: Mapping[str, Param]
    series: frozenset[str] | None
    definitions: Mapping[str, str]
    ranges: Mapping[str, Ends]
    admitted: tuple[AdmittedSeries, ...]
    metrics: tuple[MetricDeclaration, ...]
    states: tuple[StateDeclaration, ...]
    operations: tuple[OperationDeclaration, ...]
    controllers: tuple[Controller, ...]
    blueprint: Blueprint = field(repr=False)

    @property
    def reads_samples(self) -> bool:
        """Whether the events that it is folded over must carry their sample losses and vectors."""
        classes = [METRIC_CLASSES[declaration.class_name] for declaration in self.metrics]
        return any(metric.reads_samples or metric.reads_vectors for metric in classes)

    @property
    def reads_ranks(self) -> frozenset[str]:
        """The metrics whose newest values on all ranks rules read: those that an agreement of the ranks gathers."""
        return frozenset[str]().union(*(controller.ranks for controller in self.controllers))

    @property
    def calls(self) -> tuple[str, ...]:
        """The operations with arguments that its controllers order, in file order, each once."""
        named = (name for one in self.controllers if not one.is_shadow for name in one.operations if is_call(name))
        return tuple(dict.fromkeys(named))

    @property
    def is_self_contained(self) -> bool:
        """Whether it uses only steptape's own classes. The code of other classes is not part of the digest."""
        return all(METRIC_CLASSES.is_own(declaration.class_name) for declaration in self.metrics) and all(
            OPERATION_CLASSES.is_own(declaration.class_name) for declaration in self.operations
        )

    def to_record(self) -> PolicyRecord:
        """Return what a run records of it."""
        return PolicyRecord(self.digest, self.source, self.text, dict(self.params), SEMANTICS_VERSION)

    def effects(self, operation: str) -> Effect:
        """Return the effect on the training loop of an operation, written ``name.action`` or as a call.

        Raises:
            TelemetryError: The policy has no such operation.
        """
        if is_call(operation):
            return _effect_of_call(operation, self.source)
        name, _, action = operation.partition(".")
        for declaration in self.operations:
            if declaration.name == name:
                effect = OPERATION_CLASSES[declaration.class_name].actions.get(action)
                if effect is not None:
                    return effect
        raise TelemetryError("no such operation", where=self.source, got=operation)

    def trigger_log_level(self, name: str, trigger: str, operations: Sequence[str]) -> str:
        """Return the level at which the live side logs a decision.

        Controllers may share a name: the trigger and the operations of the decision then identify the controller.
        """
        for controller in self.controllers:
            is_it = controller.name == name and controller.may_order(tuple(operations))
            if is_it and trigger in controller.triggers:
                return controller.trigger_log_level
        return "DEBUG"

    def __eq__(self, other: object) -> bool:
        return self.digest == other.digest if isinstance(other, Policy) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.digest)

    def __reduce__(self) -> tuple[Any, ...]:
        # Compiled rules cannot be pickled; the other process parses the text again.
        return _unpickled, (self.text, self.source, tuple(self.params.items()))


def text_as_judged(policy: Policy) -> str:
    """Return the text of a policy's file with the values of its params in place of those that were overridden."""
    return Document(policy.text, policy.source).with_values("params", policy.params)


def load_policy(path: str | Path, *, params: Mapping[str, Param] | None = None) -> Policy:
    """Read, check and compile a policy file.

    Args:
        path: The file, UTF-8, or the name of a shipped policy.
        params: Values that override those of the file's params.

    Raises:
        PolicyError: The file cannot be read, or anything in it is wrong. The error holds all problems.
    """
    path = policy_path(str(path))
    return parse_policy(read_text(path), source=str(path), params=params)


def parse_policy(text: str, *, source: str = "<policy>", params: Mapping[str, Param] | None = None) -> Policy:
    """Check and compile the text of a policy; see ``load_policy``."""
    declared = read_declarations(Document(text, source), params or {})
    admitted, states = tuple(declared.admitted.values()), tuple(declared.states.values())
    return Policy(
        source=source,
        text=text,
        digest=_digest(declared),
        name=declared.name,
        description=declared.description,
        params=declared.params,
        series=declared.series,
        definitions=declared.definitions,
        ranges=declared.ranges,
        admitted=admitted,
        metrics=declared.metrics,
        states=states,
        operations=declared.operations,
        controllers=declared.controllers,
        blueprint=draw_blueprint(declared.controllers, states, admitted, declared.names),
    )


def require_semantics(attempt: Attempt, folder: Path) -> None:
    """Refuse an attempt of a run whose rules had other semantics: they may decide otherwise today.

    Raises:
        UnsupportedVersion: Its policy was recorded under another version.
    """
    if attempt.policy is not None:
        where = f"{folder}, policy of attempt {attempt.attempt}"
        require_version("rule semantics", attempt.policy.semantics_version, SEMANTICS_VERSION, where=where)


def triggering_kinds(rules: str | Path | Policy | None) -> frozenset[str]:
    """Return the kinds of events at which the controllers of rules are judged; empty without rules.

    Raises:
        PolicyError: The rules do not load.
        TelemetryError: They are neither a file nor a shipped policy.
    """
    if rules is None:
        return frozenset()
    policy = rules if isinstance(rules, Policy) else load_policy(existing(policy_path(str(rules))))
    return frozenset(trigger.removeprefix("on_") for each in policy.controllers for trigger in each.triggers)


# --- files ----------------------------------------------------------------------------------------------------------


def policy_path(name: str) -> Path:
    """Return the rule file that a name refers to: a path, or the name of a shipped policy."""
    path = Path(name)
    return path if path.exists() else shipped_policies().get(name, path)


def tests_path(name: str) -> Path:
    """Return the file of tests that a name refers to: a path, or the name of a shipped policy."""
    path = Path(name)
    return path if path.exists() else shipped_tests().get(name, path)


def existing(path: Path) -> Path:
    """Return the path of a rule file, or of a pipe that carries one.

    Raises:
        TelemetryError: There is none. The error suggests shipped policies.
    """
    if path.is_dir() or not path.exists():
        what = "no such file, and steptape ships no policy of that name"
        raise TelemetryError(what, where=str(path), fix=suggestion(str(path), shipped_policies()))
    return path


def shipped_policies() -> Mapping[str, Path]:
    """Return the policies that come with steptape: name to path."""
    tests = set(shipped_tests().values())
    return MappingProxyType({path.stem: path for path in sorted(_SHIPPED.glob("*.yaml")) if path not in tests})


def shipped_tests() -> Mapping[str, Path]:
    """Return the tests of the shipped policies: name of the policy to path."""
    return MappingProxyType({path.name.partition(".")[0]: path for path in sorted(_SHIPPED.glob("*.test.yaml"))})


# --- pickles and effects --------------------------------------------------------------------------------------------


def _effect_of_call(operation: str, source: str) -> Effect:
    try:
        return parse_call(operation).effect
    except InvalidCall as error:
        raise TelemetryError("no such operation", where=source, got=operation) from error


def _unpickled(text: str, source: str, params: tuple[tuple[str, Param], ...]) -> Policy:
    """Return the policy that a pickle describes. A pool's answers hold the same one, so it is parsed once."""
    key = text, source, repr(params)
    policy = _UNPICKLED.get(key)
    if policy is None:
        policy = parse_policy(text, source=source, params=dict(params))
        # Another class may be registered under the name of one from outside steptape.
        if policy.is_self_contained:
            if len(_UNPICKLED) == _MOST_UNPICKLED:
                _UNPICKLED.clear()
            _UNPICKLED[key] = policy
    return policy


def _digest(declared: Declarations) -> str:
    canonical = {
        "language": SEMANTICS_VERSION,
        "params": {name: _constant(value) for name, value in declared.params.items()},
        "series": None if declared.series is None else sorted(declared.series),
        "metrics": [_canonical_entry(entry, METRIC_CLASSES[entry.class_name].version) for entry in declared.metrics],
        "operations": [
            _canonical_entry(entry, OPERATION_CLASSES[entry.class_name].version) for entry in declared.operations
        ],
        "controllers": [_canonical_controller(controller) for controller in declared.controllers],
        # Left out when there are none: a key that joins the language leaves the digests of other files alone.
        **({"states": [_canonical_state(state) for state in declared.states.values()]} if declared.states else {}),
        **({"admitted": list(map(_canonical_admitted, declared.admitted.values()))} if declared.admitted else {}),
    }
    return hashlib.sha256(json.dumps(canonical, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _canonical_entry(entry: MetricDeclaration | OperationDeclaration, version: str) -> list[Any]:
    """Return name, class, arguments, and the version of a class that has one."""
    return [entry.name, entry.class_name, dict(entry.arguments), *([version] if version else [])]


def _canonical_state(state: StateDeclaration) -> list[Any]:
    classes = [[name, _canonical_rule(rule)] for name, rule in state.classes]
    return [state.name, state.triggers, classes]


def _canonical_admitted(series: AdmittedSeries) -> list[Any]:
    return [series.name, _canonical_rule(series.value), _canonical_rule(series.admit)]


def _canonical_rule(rule: Rule) -> Any:
    return _canonical_tree(rule.bound.expression.tree, rule.bound.expression.defined)


def _canonical_controller(controller: Controller) -> dict[str, Any]:
    patience, cooldown = controller.patience, controller.cooldown
    # Unused keys are left out: a key that joins the language leaves the digests of other files alone.
    timing = {
        "for": None if controller.hold is None else _canonical_span(controller.hold),
        "cooldown": None if cooldown is None else [*_canonical_span(cooldown.span), cooldown.name],
        "once": controller.is_once or None,
        "between": None if controller.between == StepWindow() else [controller.between.first, controller.between.last],
        "severity": controller.severity or None,
        "message": None if controller.message is None else controller.message.text,
        "mode": SHADOW if controller.is_shadow else None,
        "requires": [key.name for key in controller.requires] or None,
        "for_each": None if controller.each is None else controller.each.name,
        "every": controller.awaits_value or None,
        "clear": None if controller.clear is None else _canonical_rule(controller.clear),
        "escalate": None if controller.escalation is None else _canonical_escalation(controller.escalation),
        "changing": controller.changing or None,
    }
    return {
        **{key: value for key, value in timing.items() if value is not None},
        "name": controller.name,
        "triggers": controller.triggers,
        "rule": _canonical_rule(controller.rule),
        "patience": [patience.threshold, patience.mode] if patience else None,
        "operations": controller.operations,
        "trigger_log_level": controller.trigger_log_level,
    }


def _canonical_escalation(escalation: Escalation) -> list[Any]:
    forget = None if escalation.forget_after is None else _canonical_span(escalation.forget_after)
    stages = [[stage.operations, stage.times] for stage in escalation.stages]
    return [stages, escalation.cycles, escalation.cap, forget]


def _canonical_span(span: Span) -> list[str]:
    return [float(span.amount).hex(), str(span.unit)]


def _canonical_tree(node: object, defined: Mapping[ast.AST, str]) -> Any:
    """Return a syntax tree as JSON, the same in every version of Python (whose own dump and unparse are not).

    Args:
        defined: The names that stand for parts of it.
    """
    if isinstance(node, list):
        return [_canonical_tree(item, defined) for item in node]
    if isinstance(node, ast.Constant):
        tree = _constant(node.value)
    elif isinstance(node, ast.AST):
        fields = [_canonical_tree(value, defined) for name, value in ast.iter_fields(node) if name != "ctx"]
        tree = [type(node).__name__, *fields]
    else:
        return node
    return ["define", defined[node], tree] if node in defined else tree


def _constant(value: object) -> list[str]:
    """Return a constant as its type and text: floats exactly, and whole numbers of any length."""
    if isinstance(value, float):
        return ["float", value.hex()]
    if isinstance(value, int) and not isinstance(value, bool):
        return ["int", hex(value)]
    return [type(value).__name__, ascii(value)]
