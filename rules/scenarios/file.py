"""Loads a YAML file of policy tests: imagined runs, and the decisions that the policy must make in each.

Returns tests, each with its policy loaded and every name in it checked. Otherwise raises every problem of the file at
once, with line and column.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import yaml

from ..control.calls import InvalidCall, is_call, parse_call
from ..errors import PolicyError, suggestion
from ..language.references import Param
from ..policy_file.document import Document, Place, read_text
from ..policy_file.fields import Fields, is_null
from ..policy_file.policy import Policy, load_policy, parse_policy, shipped_policies
from ..policy_file.schema import is_trigger, trigger_advice
from .fields import STEPS, RunReader
from .scenario import MAX_STEPS, Scenario

_ROOT_KEYS: Final = ("policy", "tests")
_TEST_KEYS: Final = (
    "name",
    "series",
    "samples",
    "vectors",
    "expect",
    "silent",
    "only",
    "errors",
    "params",
    "plan",
    "steps",
    "step_s",
    "events",
    "after_stop",
)
_EXPECTED_KEYS: Final = ("step", "controller", "operations", "trigger", "message", "member", "cleared")
_AFTER_STOP: Final = ("end", "go_on")

#: Most expected decisions in one file.
MAX_EXPECTED: Final = 100_000


@dataclass(frozen=True, slots=True)
class Expected:
    """A decision that a test expects, or that a raised controller is cleared.

    Attributes:
        step: The event's step.
        controller: The controller that fires.
        operations: The operations that it orders; None for any.
        trigger: The trigger at which it fires; None for any.
        message: Its message; None for any.
        member: The member of a family whose controller it is; None for any.
        place: Where the test file declares it.
        is_cleared: Whether the controller is cleared, and does not fire.
    """

    step: int
    controller: str
    operations: tuple[str, ...] | None
    trigger: str | None
    message: str | None
    member: str | None
    place: Place
    is_cleared: bool = False


@dataclass(frozen=True, slots=True)
class ScenarioTest:
    """One test: an imagined run, and the decisions that the policy must make in it.

    Attributes:
        source: The file.
        name: The test's name.
        place: Where the test begins in the file.
        policy: The policy, with the test's params.
        scenario: The run.
        expected: The expected decisions, one entry each.
        errors: Controllers whose rule must fail.
        watched: The controllers whose decisions count.
        ends_at_stop: Whether the run ends with the step in which a decision stops it, as a real run does.
    """

    source: str
    name: str
    place: Place
    policy: Policy
    scenario: Scenario
    expected: tuple[Expected, ...]
    errors: frozenset[str]
    watched: frozenset[str]
    ends_at_stop: bool


def load_tests(path: str | Path) -> list[ScenarioTest]:
    """Read and check a file of tests, and load the policy that it names.

    Args:
        path: The file, UTF-8. It names its policy by a path relative to itself, or by the name of a shipped policy.

    Raises:
        PolicyError: The file cannot be read, anything in it is wrong, or its policy does not load. The error holds all
            problems of a file.
    """
    return parse_tests(read_text(path), source=str(path))


def parse_tests(
    text: str, *, source: str = "<tests>", policies: Mapping[str, Policy] | None = None
) -> list[ScenarioTest]:
    """Check the text of a file of tests; see ``load_tests``.

    Args:
        policies: The policies that it may name. When they are given, no file is read, whatever the text names.
    """
    reader = _TestReader(Document(text, source), policies)
    tests = reader.read()
    if reader.problems:
        raise PolicyError(reader.problems)
    return tests


def _is_file(path: Path) -> bool:
    """Whether the file exists; False for a name that no file can have."""
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False


class _TestReader(RunReader):
    """Reads the keys of a file of tests."""

    def __init__(self, document: Document, policies: Mapping[str, Policy] | None = None) -> None:
        super().__init__(document)
        self._expected_left = MAX_EXPECTED
        self._policies = policies

    def read(self) -> list[ScenarioTest]:
        root = self.document.root
        if root is None or is_null(root):
            self.refuse_at(Place(1, 1), "", "the file is empty", None, "A test file needs 'policy:' and 'tests:'.")
            return []
        fields = self.fields(root, "", _ROOT_KEYS, _ROOT_KEYS)
        policy = self._policy(fields)
        entries = self.items(fields["tests"], "tests") if "tests" in fields else []
        if policy is None:
            return []
        tests: dict[str, ScenarioTest] = {}
        for entry in entries:
            test = self._test(entry, policy)
            if test is not None and test.name in tests:
                self.refuse(entry, f"test '{test.name}'", "another test has the same name", shows=False)
            elif test is not None:
                tests[test.name] = test
        return list(tests.values())

    def _policy(self, fields: Fields) -> Policy | None:
        name = self.text(fields["policy"], "policy") if "policy" in fields else None
        if name is None:
            return None
        if self._policies is not None:
            if name not in self._policies:
                self.refuse(fields["policy"], "policy", "unknown policy", suggestion(name, self._policies))
            return self._policies.get(name)
        path = Path(self.document.source).parent / name
        if not _is_file(path):
            shipped = shipped_policies()
            if name not in shipped:
                fix = suggestion(name, shipped) if shipped else ""
                self.refuse(fields["policy"], "policy", "neither a file in this folder nor a shipped policy", fix)
                return None
            path = shipped[name]
        return load_policy(path)

    # --- one test -----------------------------------------------------------------------------------------------

    def _test(self, node: yaml.Node, policy: Policy) -> ScenarioTest | None:
        fields = self.fields(node, "test", _TEST_KEYS, ("name", "series"))
        name = self.text(fields["name"], "test, name") if "name" in fields else None
        where = f"test '{name}'" if name else "test"
        if "expect" not in fields and "silent" not in fields and isinstance(node, yaml.MappingNode):
            fix = "Write 'expect: []' if nothing should fire."
            self.refuse(node, where, "needs 'expect' or 'silent'", fix, shows=False)
        scenario = self.scenario(fields, where)
        with_params = self._with_params(fields, where, policy)
        expected = self._expected(fields, where, with_params)
        names = {key: self._controllers(fields, key, where, policy) for key in ("silent", "errors", "only")}
        for entry in expected:
            if entry.controller in names["silent"]:
                self.refuse_at(entry.place, where, "both under 'expect' and under 'silent'", repr(entry.controller), "")
        ends = self._choice(fields, "after_stop", where, _AFTER_STOP) != "go_on"
        if name is None or scenario is None:
            return None
        watched = frozenset(controller.name for controller in policy.controllers)
        if "only" in fields:
            watched = names["only"] | names["silent"] | names["errors"] | {entry.controller for entry in expected}
        place = self.document.place(node)
        return ScenarioTest(
            self.document.source,
            name,
            place,
            with_params,
            scenario,
            tuple(expected),
            names["errors"],
            watched,
            ends,
        )

    def _with_params(self, fields: Fields, where: str, policy: Policy) -> Policy:
        """Return the policy with the test's params; the unchanged policy when they are refused."""
        where += ", params"
        given: dict[str, Param] = {}
        for name, node in self.fields(fields["params"], where, policy.params).items() if "params" in fields else ():
            value = self.param(node, f"{where}, {name}")
            if value is not None:
                given[name] = value
        if not given:
            return policy
        try:
            return parse_policy(policy.text, source=policy.source, params=given)
        except PolicyError as error:
            what = "the policy does not load with these params"
            self.refuse_at(self.document.place(fields["params"]), where, f"{what}: {error.problems[0]}", None, "")
            return policy

    def _choice(self, fields: Fields, key: str, where: str, choices: tuple[str, ...]) -> str | None:
        value = self.text(fields[key], f"{where}, {key}") if key in fields else None
        if value is not None and value not in choices:
            self.refuse(fields[key], f"{where}, {key}", "not an allowed value", suggestion(value, choices))
        return value

    def _controllers(self, fields: Fields, key: str, where: str, policy: Policy) -> frozenset[str]:
        where = f"{where}, {key}"
        nodes = self.items(fields[key], where) if key in fields else []
        return frozenset(filter(None, (self._controller(node, where, policy) for node in nodes)))

    def _controller(self, node: yaml.Node, where: str, policy: Policy) -> str | None:
        name = self.text(node, where)
        known = [controller.name for controller in policy.controllers]
        if name is not None and name not in known:
            self.refuse(node, where, "the policy has no such controller", suggestion(name, known))
            return None
        return name

    # --- expected decisions -------------------------------------------------------------------------------------

    def _expected(self, fields: Fields, where: str, policy: Policy) -> list[Expected]:
        where += ", expect"
        expected: list[Expected] = []
        for node in self.items(fields["expect"], where) if "expect" in fields else []:
            entry = self.fields(node, where, _EXPECTED_KEYS, ("step", "controller"))
            steps = self._steps(entry["step"], f"{where}, step") if "step" in entry else range(0)
            name = self._controller(entry["controller"], where, policy) if "controller" in entry else None
            operations = self._operations(entry, where, policy, name)
            is_cleared = "cleared" in entry and self.flag(entry["cleared"], f"{where}, cleared") is True
            if is_cleared and name not in {None, *(each.name for each in policy.controllers if each.clear)}:
                self.refuse(entry["cleared"], f"{where}, cleared", f"controller '{name}' has no 'clear'", shows=False)
            for key in ("operations", "message"):
                if is_cleared and key in entry:
                    self.refuse(entry[key], f"{where}, {key}", "a cleared controller has none")
            trigger = self.text(entry["trigger"], f"{where}, trigger") if "trigger" in entry else None
            if trigger is not None and not is_trigger(trigger):
                self.refuse(entry["trigger"], f"{where}, trigger", "not an allowed value", trigger_advice(trigger))
            message, member = (
                self.text(entry[key], f"{where}, {key}") if key in entry else None for key in ("message", "member")
            )
            self._expected_left -= len(steps)
            if self._expected_left < 0:
                self.refuse(node, where, f"more than {MAX_EXPECTED:,} decisions in one file", shows=False)
            elif name is not None:
                place = self.document.place(node)
                expected += [
                    Expected(step, name, operations, trigger, message, member, place, is_cleared) for step in steps
                ]
        return expected

    def _steps(self, node: yaml.Node, where: str) -> range:
        """Parse a step, or a range of steps with both ends included."""
        match = STEPS.fullmatch(node.value) if isinstance(node, yaml.ScalarNode) else None
        first = int(match["first"]) if match else 1
        last = int(match["last"] or first) if match else 0
        if last < first or last > MAX_STEPS:
            self.refuse(node, where, "must be a step or a range of steps", "Write 51, or 51-60.")
            return range(0)
        return range(first, last + 1)

    def _as_ordered(self, operation: str | None, policy: Policy) -> str | None:
        """Return an operation as decisions name it."""
        if operation is None or not is_call(operation):
            return operation
        with suppress(InvalidCall):
            return str(parse_call(operation, policy.params))
        return operation

    def _operations(self, entry: Fields, where: str, policy: Policy, controller: str | None) -> tuple[str, ...] | None:
        """Return the operations that a decision must order; None when the test does not say."""
        if "operations" not in entry:
            return None
        where += ", operations"
        names = {name for own in policy.controllers if own.name == controller for name in own.operations}
        operations: list[str] = []
        for node in self.items(entry["operations"], where):
            name = self._as_ordered(self.text(node, where), policy)
            if name is not None and controller is not None and name not in names:
                self.refuse(node, where, f"controller '{controller}' does not order this", suggestion(name, names))
            elif name is not None:
                operations.append(name)
        return tuple(operations)
