"""Loads a YAML file of policy tests: imagined runs, and the decisions that the policy must make in each.

Returns tests, each with its policy loaded and every name in it checked. Otherwise raises every problem of the file at
once, with line and column. To add a key of a test, write a row of ``RUN_KEYS`` or ``VERDICT_KEYS`` and the function
that reads it.
"""

from __future__ import annotations

import dataclasses
import re
from array import array
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import yaml

from ...store.events import RESTORE_POINT, SampleLosses, Vectors, is_kind
from ...store.plan import Plan
from ..effects import InvalidCall, is_call, may_become, parse_call
from ..errors import PolicyError, kind_suggestion, suggestion
from ..policy_file.controllers import is_trigger, trigger_advice
from ..policy_file.document import Document, Place, read_text
from ..policy_file.fields import FieldReader, Fields, Key, is_null
from ..policy_file.operations import WORDS
from ..policy_file.policy import Policy, load_policy, parse_policy, shipped_policies
from ..policy_file.sentences import is_sentence
from ..readings.reading import Param
from .scenario import MAX_STEPS, SERIES_KINDS, STEP_KINDS, NotationError, Scenario, ScenarioSeries, parse_values

_ROOT_KEYS: Final = ("policy", "tests")
_EXPECTED_KEYS: Final = ("step", "controller", "operations", "trigger", "message", "member", "cleared")
_AFTER_STOP: Final = ("end", "go_on")

#: Most values of series, samples and vectors together in one file.
MAX_FILE_VALUES: Final = 1_000_000

#: Most expected decisions in one file.
MAX_EXPECTED: Final = 100_000


#: A step, or the first and the last step of a range.
_STEPS: Final = re.compile(r"(?P<first>\d{1,9})(?:-(?P<last>\d{1,9}))?")

_PLAN_KEYS: Final = tuple(field.name for field in dataclasses.fields(Plan))
_KIND: Final = r"custom:[A-Za-z][^:]*|(?!custom:)[a-z_]+"
_SUFFIX: Final = re.compile(rf"(?P<name>.*)@(?:(?P<kind>{_KIND}):)?(?P<every>\d{{1,9}}|{_KIND})", re.DOTALL)


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
    reader = FieldReader(Document(text, source))
    tests = _tests(reader, policies)
    if reader.problems:
        raise PolicyError(reader.problems)
    return tests


class _Budget:
    """The number of things that a file may still hold."""

    def __init__(self, most: int) -> None:
        self._left = most

    def exceeds(self, count: int) -> bool:
        """Take so many; return whether that is more than there may be."""
        self._left -= count
        return self._left < 0


@dataclass(frozen=True, slots=True)
class _Scope:
    """Context in which the keys of one test are read.

    Attributes:
        policy: The policy, with the test's params once they are read.
        values: For the values of the file.
        decisions: For its expected decisions.
        last: The last step of the series, samples and vectors.
    """

    policy: Policy
    values: _Budget
    decisions: _Budget
    last: int = 0


def _tests(reader: FieldReader, policies: Mapping[str, Policy] | None) -> list[ScenarioTest]:
    root = reader.document.root
    if root is None or is_null(root):
        reader.refuse_at(Place(1, 1), "", "the file is empty", None, "A test file needs 'policy:' and 'tests:'.")
        return []
    fields = reader.fields(root, "", _ROOT_KEYS, _ROOT_KEYS)
    policy = _policy(fields["policy"], policies, reader) if "policy" in fields else None
    entries = reader.items(fields["tests"], "tests") if "tests" in fields else []
    if policy is None:
        return []
    scope = _Scope(policy, _Budget(MAX_FILE_VALUES), _Budget(MAX_EXPECTED))
    tests: dict[str, ScenarioTest] = {}
    for entry in entries:
        test = _test(entry, scope, reader)
        if test is not None and test.name in tests:
            reader.refuse(entry, f"test '{test.name}'", "another test has the same name", shows=False)
        elif test is not None:
            tests[test.name] = test
    return list(tests.values())


def _policy(node: yaml.Node, policies: Mapping[str, Policy] | None, reader: FieldReader) -> Policy | None:
    name = reader.text(node, "policy")
    if name is None:
        return None
    if policies is not None:
        if name not in policies:
            reader.refuse(node, "policy", "unknown rule file", suggestion(name, policies))
        return policies.get(name)
    if is_sentence(name):
        return load_policy(name)
    path = Path(reader.document.source).parent / name
    if not _is_file(path):
        shipped = shipped_policies()
        if name not in shipped:
            fix = suggestion(name, shipped) if shipped else ""
            reader.refuse(node, "policy", "neither a file in this folder nor a shipped rule file", fix)
            return None
        path = shipped[name]
    return load_policy(path)


def _is_file(path: Path) -> bool:
    """Whether the file exists; False for a name that no file can have."""
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False


def _test(node: yaml.Node, scope: _Scope, reader: FieldReader) -> ScenarioTest | None:
    fields = reader.fields(node, "test", [key.name for key in TEST_KEYS], ("name", "series"))
    name: str | None = reader.value(fields, "test", _NAME, scope)
    where = f"test '{name}'" if name else "test"
    if "expect" not in fields and "silent" not in fields and isinstance(node, yaml.MappingNode):
        fix = "Write 'expect: []' if nothing should fire."
        reader.refuse(node, where, "needs 'expect' or 'silent'", fix, shows=False)
    scenario = _scenario(fields, where, scope, reader)
    policy: Policy = reader.value(fields, where, _PARAMS, scope) or scope.policy
    verdict = reader.values(fields, where, VERDICT_KEYS, replace(scope, policy=policy))
    expected, silent, errors = verdict["expect"], verdict["silent"], verdict["errors"]
    for entry in expected:
        if entry.controller in silent:
            what = "both under 'expect' and under 'silent'"
            reader.refuse_at(entry.place, where, what, repr(entry.controller), "")
    if name is None or scenario is None:
        return None
    watched = frozenset(controller.name for controller in policy.controllers)
    if "only" in fields:
        watched = verdict["only"] | silent | errors | {entry.controller for entry in expected}
    source, place = reader.document.source, reader.document.place(node)
    ends = verdict["after_stop"] != "go_on"
    return ScenarioTest(source, name, place, policy, scenario, tuple(expected), errors, watched, ends)


def _read_text(node: yaml.Node, where: str, _scope: _Scope, reader: FieldReader) -> str | None:
    return reader.text(node, where)


def _read_params(node: yaml.Node, where: str, scope: _Scope, reader: FieldReader) -> Policy:
    """Return the policy with the test's params; the unchanged policy when they are refused."""
    policy = scope.policy
    given: dict[str, Param] = {}
    for name, entry in reader.fields(node, where, policy.params).items():
        value = reader.param(entry, f"{where}, {name}")
        if value is not None:
            given[name] = value
    if not given:
        return policy
    try:
        return parse_policy(policy.text, source=policy.source, params=given)
    except PolicyError as error:
        what = "the rule file does not load with these params"
        reader.refuse_at(reader.document.place(node), where, f"{what}: {error.problems[0]}", None, "")
        return policy


# --- the run ------------------------------------------------------------------------------------------------------


def _scenario(fields: Fields, where: str, scope: _Scope, reader: FieldReader) -> Scenario | None:
    """Return the run that a test's fields describe; None when any of them is refused."""
    before = len(reader.problems)
    run = reader.values(fields, where, RUN_KEYS, scope)
    last = max([*run["samples"], *run["vectors"], *(entry.last_step() for entry in run["series"])], default=0)
    steps: int | None = last
    if _LENGTH.name in fields:
        steps = reader.value(fields, where, _LENGTH, replace(scope, last=last))
    if steps is not None and steps > MAX_STEPS:
        what = f"a run of more than {MAX_STEPS:,} steps"
        reader.refuse(fields["steps" if "steps" in fields else "series"], f"{where}, steps", what, shows=False)
    return None if steps is None or len(reader.problems) > before else Scenario(steps=steps, **run)


def _read_series(node: yaml.Node, where: str, scope: _Scope, reader: FieldReader) -> tuple[ScenarioSeries, ...]:
    """Return the series; refuse a metric that is given twice for one kind of event."""
    found: dict[tuple[str, str], ScenarioSeries] = {}
    for key, node_of_values in reader.fields(node, where, None).items():
        entry = _one_series(key, node_of_values, where, scope, reader)
        if entry is None:
            continue
        if (entry.name, entry.kind) in found:
            what = f"'{entry.name}' is already given for {entry.kind} events"
            reader.refuse(node_of_values, where, what, shows=False)
        found[entry.name, entry.kind] = entry
    return tuple(found.values())


def _one_series(key: str, node: yaml.Node, where: str, scope: _Scope, reader: FieldReader) -> ScenarioSeries | None:
    clock = _clock(key, node, where, reader)
    if not isinstance(node, yaml.ScalarNode):
        reader.refuse(node, f"{where} '{key}'", "must be text", "Write the values on one line, as in 2.0x50 9.0.")
        return None
    values = _values(node, f"{where} '{key}'", scope, reader)
    return None if clock is None or values is None else ScenarioSeries(*clock, values)


def _values(
    node: yaml.ScalarNode, where: str, scope: _Scope, reader: FieldReader, more: int = 0
) -> tuple[float | None, ...] | None:
    """Parse a text in the series notation; count its values, and ``more``, against the file's limit."""
    try:
        values = parse_values(node.value)
    except NotationError as error:
        fault = error.fault
        reader.refuse_at(reader.document.place_in(node, fault.offset), where, fault.what, fault.got, fault.fix)
        return None
    if scope.values.exceeds(len(values) + more):
        reader.refuse(node, where, f"more than {MAX_FILE_VALUES:,} values in one file", shows=False)
        return None
    return values


def _clock(key: str, node: yaml.Node, where: str, reader: FieldReader) -> tuple[str, str, int] | None:
    """Split a key of ``series:`` into name, kind and interval: NAME, NAME@N, NAME@KIND or NAME@KIND:N."""
    if "@" not in key:
        return key, "step_end", 1
    place = reader.document.place(node)
    match = _SUFFIX.fullmatch(key)
    every = int(match["every"]) if match and match["every"].isdigit() else 1
    kind = (match["kind"] or ("evaluate" if match["every"].isdigit() else match["every"])) if match else ""
    if match is None or not match["name"] or every == 0 or (match["kind"] and not match["every"].isdigit()):
        fix = "Write NAME@10 (evaluations, every 10 steps), NAME@log or NAME@log:5."
        reader.refuse_at(place, where, "not a series name with an interval", repr(key), fix)
        return None
    if not is_kind(kind, SERIES_KINDS):
        fix = kind_suggestion(kind, SERIES_KINDS)
        reader.refuse_at(place, where, "not a kind of event that carries numbers", repr(kind), fix)
        return None
    return match["name"], kind, every


def _read_samples(node: yaml.Node, where: str, scope: _Scope, reader: FieldReader) -> dict[int, SampleLosses]:
    """Return the batches by step; a later entry replaces an earlier one."""
    batches: dict[int, SampleLosses] = {}
    for steps, losses in _lists(node, where, "losses", "every sample needs a loss", scope, reader):
        batches.update(dict.fromkeys(steps, SampleLosses(array("f", losses).tobytes())))
    return batches


def _read_vectors(node: yaml.Node, where: str, scope: _Scope, reader: FieldReader) -> dict[int, Vectors]:
    """Return the vectors by step; a later entry of a name replaces an earlier one."""
    by_step: dict[int, dict[str, Sequence[float]]] = {}
    for name, entry in reader.fields(node, where, None).items():
        lists = _lists(entry, f"{where} '{name}'", "values", "every place needs a value", scope, reader)
        for steps, values in lists:
            vector = array("d", values)
            for step in steps:
                by_step.setdefault(step, {})[name] = vector
    return dict(by_step)


def _lists(
    node: yaml.Node, where: str, what: str, needs: str, scope: _Scope, reader: FieldReader
) -> Iterator[tuple[range, list[float]]]:
    """Yield the lists of numbers of a mapping from steps, each with its steps.

    Args:
        what: What the lists hold, as messages name it.
        needs: The message about a number left out.
    """
    for key, entry in reader.fields(node, where, None).items():
        steps = _steps(key, 1)
        if steps is None or not isinstance(entry, yaml.ScalarNode):
            fix = "Write 51: 2.0x15 30.0, or 1-50: 2.0x16."
            reader.refuse(entry, f"{where} '{key}'", f"not a step and its {what}", fix)
            continue
        given = _values(entry, f"{where} '{key}'", scope, reader, more=len(steps) - 1)
        values = [value for value in given or () if value is not None]
        if given is not None and len(values) < len(given):
            reader.refuse(entry, f"{where} '{key}'", needs)
        yield steps, values


def _steps(text: str, least: int) -> range | None:
    """Parse a step, or a range of steps with both ends included; None for anything else."""
    match = _STEPS.fullmatch(text)
    if match is None:
        return None
    first = int(match["first"])
    last = int(match["last"] or first)
    return range(first, last + 1) if least <= first <= last <= MAX_STEPS else None


def _read_events(node: yaml.Node, where: str, _scope: _Scope, reader: FieldReader) -> Mapping[str, int]:
    named = [str(key.value) for key, _ in node.value] if isinstance(node, yaml.MappingNode) else []
    known = (*STEP_KINDS, RESTORE_POINT, *(kind for kind in named if is_kind(kind, ())))
    meant = {kind.casefold(): kind_suggestion(kind, STEP_KINDS) for kind in named if kind not in known}
    entries = reader.fields(node, where, known, habits=meant)
    return {kind: _bounded(entry, f"{where}, {kind}", 1, reader) or 1 for kind, entry in entries.items()}


def _read_plan(node: yaml.Node, where: str, _scope: _Scope, reader: FieldReader) -> Plan:
    given = reader.fields(node, where, _PLAN_KEYS)
    constants: dict[str, float | None] = {}
    if "constants" in given:
        within = f"{where}, constants"
        entries = reader.fields(given.pop("constants"), within, None)
        constants = {name: reader.number(entry, f"{within}, {name}") for name, entry in entries.items()}
    numbers = {key: _bounded(entry, f"{where}, {key}", 1, reader) for key, entry in given.items()}
    return Plan(**numbers, constants={name: value for name, value in constants.items() if value is not None})


def _read_seconds(node: yaml.Node, where: str, _scope: _Scope, reader: FieldReader) -> float | None:
    value = reader.param(node, where)
    if isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value <= 1e9:
        return float(value)
    if value is not None:
        reader.refuse(node, where, "must be a number of seconds, 0 or more")
    return None


def _read_length(node: yaml.Node, where: str, scope: _Scope, reader: FieldReader) -> int | None:
    return _bounded(node, where, scope.last, reader)


def _bounded(node: yaml.Node, where: str, least: int, reader: FieldReader) -> int | None:
    value = reader.whole(node, where)
    if value is not None and not least <= value <= 10**9:
        reader.refuse(node, where, f"must be {least} or more" if value < least else "too many")
        return None
    return value


# --- the verdict --------------------------------------------------------------------------------------------------


def _read_controllers(node: yaml.Node, where: str, scope: _Scope, reader: FieldReader) -> frozenset[str]:
    items = reader.items(node, where)
    return frozenset(filter(None, (_controller(item, where, scope.policy, reader) for item in items)))


def _controller(node: yaml.Node, where: str, policy: Policy, reader: FieldReader) -> str | None:
    name = reader.text(node, where)
    known = [controller.name for controller in policy.controllers]
    if name is not None and name not in known:
        reader.refuse(node, where, "the rule file has no such controller", suggestion(name, known))
        return None
    return name


def _read_after_stop(node: yaml.Node, where: str, _scope: _Scope, reader: FieldReader) -> str | None:
    value = reader.text(node, where)
    if value is not None and value not in _AFTER_STOP:
        reader.refuse(node, where, "not an allowed value", suggestion(value, _AFTER_STOP))
    return value


def _read_expected(node: yaml.Node, where: str, scope: _Scope, reader: FieldReader) -> list[Expected]:
    return [each for item in reader.items(node, where) for each in _expected(item, where, scope, reader)]


def _expected(node: yaml.Node, where: str, scope: _Scope, reader: FieldReader) -> list[Expected]:
    """Return the decisions that one entry expects: one at each of its steps."""
    policy = scope.policy
    entry = reader.fields(node, where, _EXPECTED_KEYS, ("step", "controller"))
    steps = _expected_steps(entry["step"], f"{where}, step", reader) if "step" in entry else range(0)
    name = _controller(entry["controller"], where, policy, reader) if "controller" in entry else None
    operations = None
    if "operations" in entry:
        operations = _operations(entry["operations"], f"{where}, operations", policy, name, reader)
    is_cleared = "cleared" in entry and reader.flag(entry["cleared"], f"{where}, cleared") is True
    if is_cleared and name not in {None, *(each.name for each in policy.controllers if each.clear)}:
        reader.refuse(entry["cleared"], f"{where}, cleared", f"controller '{name}' has no 'clear'", shows=False)
    for key in ("operations", "message"):
        if is_cleared and key in entry:
            reader.refuse(entry[key], f"{where}, {key}", "a cleared controller has none")
    trigger, message, member = (
        reader.text(entry[key], f"{where}, {key}") if key in entry else None for key in ("trigger", "message", "member")
    )
    if trigger is not None and not is_trigger(trigger):
        reader.refuse(entry["trigger"], f"{where}, trigger", "not an allowed value", trigger_advice(trigger))
    if scope.decisions.exceeds(len(steps)):
        reader.refuse(node, where, f"more than {MAX_EXPECTED:,} decisions in one file", shows=False)
    elif name is not None:
        place = reader.document.place(node)
        return [Expected(step, name, operations, trigger, message, member, place, is_cleared) for step in steps]
    return []


def _expected_steps(node: yaml.Node, where: str, reader: FieldReader) -> range:
    steps = _steps(node.value, 0) if isinstance(node, yaml.ScalarNode) else None
    if steps is None:
        reader.refuse(node, where, "must be a step or a range of steps", "Write 51, or 51-60.")
    return steps or range(0)


def _operations(
    node: yaml.Node, where: str, policy: Policy, controller: str | None, reader: FieldReader
) -> tuple[str, ...]:
    """Return the operations that a decision must order."""
    names = {name for own in policy.controllers if own.name == controller for name in own.operations}
    operations: list[str] = []
    for item in reader.items(node, where):
        name = _as_ordered(reader.text(item, where), policy)
        if name is not None and controller is not None and not any(may_become(each, name) for each in names):
            reader.refuse(item, where, f"controller '{controller}' does not order this", suggestion(name, names))
        elif name is not None:
            operations.append(name)
    return tuple(operations)


def _as_ordered(operation: str | None, policy: Policy) -> str | None:
    """Return an operation as decisions name it."""
    operation = WORDS.get(operation or "", operation)
    if operation is not None and is_call(operation):
        with suppress(InvalidCall):
            return str(parse_call(operation, policy.params))
    return operation


# --- the tables ---------------------------------------------------------------------------------------------------

_NAME: Final[Key[_Scope]] = Key("name", _read_text, "text | The name in messages, unique in the file.")
_PARAMS: Final[Key[_Scope]] = Key("params", _read_params, "mapping | New values for params of the rule file.")
_LENGTH: Final[Key[_Scope]] = Key(
    "steps", _read_length, "whole number | The length of the run, if it is longer than the series."
)

#: The keys that describe the run, apart from its length.
RUN_KEYS: Final[tuple[Key[_Scope], ...]] = (
    Key("series", _read_series, "mapping | The metrics that the run reports, see [Series](#series).", ()),
    Key(
        "samples",
        _read_samples,
        "mapping | The sample losses of batches, by step: `{1-50: 2.0x16, 51: 2.0x15 30.0}`.",
        {},
    ),
    Key(
        "vectors",
        _read_vectors,
        "mapping | The [vectors](record.md#vectors) of steps, by name and step: `{expert_tokens/layer0:"
        " {1-50: 100x8}}`.",
        {},
    ),
    Key(
        "plan",
        _read_plan,
        "mapping | What the loop declares: `total_steps`, `total_epochs`, `steps_per_epoch` (events then"
        " have an epoch), `world_size`, and `constants`, a mapping of numbers.",
        Plan(),
    ),
    Key("step_s", _read_seconds, "number | Seconds per step; default 1.", 1.0),
    Key(
        "events",
        _read_events,
        "mapping | Kinds of events that come without any series, with their distance in steps: `{save: 50}`."
        " Kinds of the loop's own, such as `custom:reward`, too. With `restore_point`, undos are carried out.",
        {},
        attribute="every",
    ),
)

#: The keys that say what the policy must do in it.
VERDICT_KEYS: Final[tuple[Key[_Scope], ...]] = (
    Key(
        "expect",
        _read_expected,
        "list | The decisions, each with `step` (`51`, or `51-60` for one at each), `controller`, and optionally"
        " `operations`, `trigger`, `message` and `member`. With `cleared: true`, a raised rule is cleared there.",
        (),
    ),
    Key("silent", _read_controllers, "list | Rules that must not fire.", frozenset()),
    Key(
        "only",
        _read_controllers,
        "list | Judge only these rules and those that the test names elsewhere. Without it, all are judged.",
        frozenset(),
    ),
    Key(
        "errors",
        _read_controllers,
        "list | Rules that must fail. One that fails and is not listed fails the test.",
        frozenset(),
    ),
    Key(
        "after_stop",
        _read_after_stop,
        "text | `end` (default): a stop ends the run, as in a real run. `go_on`: it does not.",
        "end",
    ),
)

#: The keys of a test.
TEST_KEYS: Final = (_NAME, _PARAMS, *RUN_KEYS, _LENGTH, *VERDICT_KEYS)
