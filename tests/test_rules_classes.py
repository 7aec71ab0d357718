"""User-defined metrics and operations are registered or refused with a reason, and their failures are contained."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from steptape import TelemetryError
from steptape.rules.effects import Effect
from steptape.rules.engine.decisions import Decision, RuleError
from steptape.rules.engine.engine import Engine
from steptape.rules.errors import PolicyError
from steptape.rules.policy_file.classes import Argument, ArgumentType
from steptape.rules.policy_file.metrics import Metric, register_metric
from steptape.rules.policy_file.operations import Operation, register_operation
from steptape.rules.policy_file.policy import parse_policy
from steptape.store.events import Event

PAGE = (Path(__file__).parents[1] / "docs" / "reference" / "LANGUAGE-REFERENCE.md").read_text(encoding="utf-8")


def section(title: str) -> str:
    """Return a section of the page."""
    return re.split(r"^#+ (?=[A-Z])", PAGE.split(f"### {title}\n", 1)[1], maxsplit=1, flags=re.MULTILINE)[0]


def run_page(title: str) -> str:
    """Run the Python of a section and return its policy."""
    text = section(title)
    exec(re.findall(r"```python\n(.*?)```", text, re.DOTALL)[0], {"__name__": "page"})
    return str(re.findall(r"```text\n(.*?)```", text, re.DOTALL)[0])


def evaluations(*losses: float) -> list[Event]:
    """Return one evaluation per loss."""
    return [Event("evaluate", seq=seq, metrics={"eval_loss": loss}) for seq, loss in enumerate(losses)]


@register_metric
class Sum(Metric):
    """The sum of ``value`` over steps; fails at a negative value."""

    arguments = {  # noqa: RUF012 - as a user writes it
        "scale": Argument(ArgumentType.NUMBER, 1.0),
        "rounded": Argument(ArgumentType.FLAG, False),
    }
    kinds = reads = frozenset({"step_end"})
    total = 0.0

    @classmethod
    def validate(cls, arguments: Any) -> None:
        """Refuse combinations of arguments."""
        if arguments["rounded"] and arguments["scale"] < 1:
            raise ValueError("a rounded sum needs a scale of 1 or more")

    def compute(self, event: Event) -> Any:
        """Return the sum so far."""
        value = event.metrics["value"]
        if value < 0:
            raise ArithmeticError(f"negative: {value}")
        self.total += value * float(self.given["scale"])
        return round(self.total) if self.given["rounded"] else self.total


def policy_with(arguments: str, rule: str = "s > 2", params: str = "{}") -> str:
    """Return a policy over one ``Sum``."""
    return f"""params: {params}
controller_metrics:
  - {{name: s, class: Sum, arguments: {arguments}}}
controllers:
  - {{name: c, triggers: [on_step_end], rule: {rule}, operations: []}}
"""


def fired(text: str, *values: float) -> list[int]:
    """Return the seq of each step at which a controller fires."""
    engine = Engine(parse_policy(text))
    events = [Event("step_end", seq=seq, metrics={"value": value}) for seq, value in enumerate(values)]
    return [o.seq for event in events for o in engine.observe(event) if isinstance(o, Decision)]


def test_the_metric_of_the_page_does_what_the_page_says() -> None:
    """It stops at the third evaluation without improvement, and refuses a negative tolerance at its line."""
    policy = run_page("Metrics of your own")
    engine = Engine(parse_policy(policy))

    outcomes = [o for event in evaluations(3.0, 2.0, 1.995, 2.1, 2.2, 2.3) for o in engine.observe(event)]

    assert [outcome.seq for outcome in outcomes] == [4, 5]
    with pytest.raises(PolicyError, match=r":2:48: .*tolerance must not be negative"):
        parse_policy(policy.replace("0.01", "-1"))


def test_the_operation_of_the_page_is_known_with_its_effects() -> None:
    """An undeclared action is assumed to change the training."""
    policy = parse_policy(run_page("Operations of your own"))

    assert policy.effects("pager.should_page") is Effect.NOTIFY
    assert policy.effects("pager.should_throttle") is Effect.ACT


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [("{}", [2]), ("{scale: 3}", [0, 1, 2]), ("{scale: 1.4, rounded: true}", [1, 2]), ("{scale: factor}", [0, 1, 2])],
)
def test_arguments_may_be_numbers_and_truth_values_or_name_a_param(arguments: str, expected: list[int]) -> None:
    """They are declared as such; omitted arguments have their defaults."""
    assert fired(policy_with(arguments, params="{factor: 3}"), 1, 1, 1) == expected


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ("{scale: much}", "3:46: controller metric 's', scale: must be a finite number; got 'much'."),
        ("{scale: true}", "3:46: controller metric 's', scale: must be a finite number; got true."),
        ("{rounded: 1}", "3:48: controller metric 's', rounded: must be true or false; got 1."),
        ("{scal: 1}", "3:39: controller metric 's': unknown key; got 'scal'. Did you mean 'scale'?"),
        ("{scale: 0.5, rounded: true}", "3:38: controller metric 's', arguments: a rounded sum needs a scale of 1"),
    ],
)
def test_wrong_arguments_are_refused_at_their_place(arguments: str, problem: str) -> None:
    """Each is checked by its type, then all of them by the class."""
    with pytest.raises(PolicyError, match=re.escape(problem)):
        parse_policy(policy_with(arguments))


def test_a_metric_that_fails_is_recorded_once_and_not_available_until_it_works_again() -> None:
    """Other rules continue, and the failures are counted under the metric's name."""
    text = policy_with("{}", rule="s > 0") + "  - {name: d, triggers: [on_step_end], rule: value < 0, operations: []}\n"
    engine = Engine(parse_policy(text, source="p.yaml"))
    events = [Event("step_end", seq=seq, metrics={"value": value}) for seq, value in enumerate([1.0, -1.0, -2.0, 3.0])]

    outcomes = [outcome for event in events for outcome in engine.observe(event)]

    assert [(outcome.seq, outcome.controller) for outcome in outcomes] == [
        (0, "c"),
        (1, "s"),
        (1, "d"),
        (2, "d"),
        (3, "c"),
    ]
    assert isinstance(outcomes[1], RuleError)
    assert outcomes[1].error == "p.yaml: controller metric 's', Sum.compute: ArithmeticError: negative: -1.0"
    assert engine.error_counts == {"s": 2}


def test_the_version_of_a_class_is_part_of_the_digest(monkeypatch: pytest.MonkeyPatch) -> None:
    """A metric with another computation makes another policy."""
    before = parse_policy(policy_with("{}"))
    monkeypatch.setattr(Sum, "version", "2")

    assert parse_policy(policy_with("{}")) != before


def test_a_class_that_is_defined_again_takes_the_place_of_the_former() -> None:
    """A rerun notebook cell does this."""
    for factor in (1.0, 2.0):

        @register_metric
        class Twice(Metric):
            kinds = frozenset({"step_end"})
            given_factor = factor

            def compute(self, event: Event) -> float:
                return event.metrics["value"] * self.given_factor

    text = policy_with("{}").replace("Sum", "Twice")

    assert fired(text, 1.5) == [0]


class Loss(Metric):
    """A metric named like one of steptape's."""

    kinds = frozenset({"log"})

    def compute(self, event: Event) -> None:
        """Return None."""


class Abstract(Metric):
    """A metric without ``compute``."""

    kinds = frozenset({"log"})


class Idle(Loss):
    """A metric without kinds of events."""

    kinds = frozenset()


class Odd(Loss):
    """A metric with an unknown kind of event."""

    kinds = frozenset({"on_log"})


class Loose(Loss):
    """A metric whose arguments are not declared as ``Argument``."""

    arguments = {"size": 3}  # type: ignore[dict-item]  # noqa: RUF012 - as a user writes it


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (Loss, "controller metric class 'Loss': another class has this name"),
        (Abstract, "must be a subclass of Metric with a compute method"),
        (Idle, "kinds: empty, so the metric would never be computed"),
        (Odd, "kinds: unknown kinds of events; got ['on_log']"),
        (Loose, "arguments: 'size' is not an Argument"),
        (Operation, "must be a subclass of Metric"),
    ],
)
def test_a_metric_that_cannot_serve_is_refused_where_it_is_registered(wrong: Any, message: str) -> None:
    """The error does not wait for a policy that uses it."""
    with pytest.raises(TelemetryError, match=re.escape(message)):
        register_metric(wrong)


class Nothing(Operation):
    """An operation without an action."""


class Talks(Operation):
    """An operation with an effect reserved for LogControl."""

    actions = {"should_say": Effect.MESSAGE}  # noqa: RUF012 - as a user writes it


class Hollow(Operation):
    """An operation whose action lacks a method."""

    actions = {"should_do": Effect.NOTIFY}  # noqa: RUF012 - as a user writes it


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (Nothing, "has no actions"),
        (Talks, "only LogControl may use MESSAGE"),
        (Hollow, "needs a method of its name; got 'should_do'"),
        (Sum, "must be a subclass of Operation"),
    ],
)
def test_an_operation_that_cannot_serve_is_refused_where_it_is_registered(wrong: Any, message: str) -> None:
    """The error does not wait for a policy that uses it."""
    with pytest.raises(TelemetryError, match=re.escape(message)):
        register_operation(wrong)


def install(folder: Path, package: str, code: str, group: str, *points: str) -> None:
    """Install a distribution into a folder, as an installer does."""
    (folder / f"{package}.py").write_text(code)
    about = folder / f"{package}-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("\n".join([f"[{group}]", *points, ""]))


METRIC = """
from steptape.rules.policy_file.metrics import Metric
class Doubled(Metric):
    kinds = reads = frozenset({"step_end"})
    def compute(self, event):
        return event.metrics["loss"] * 2
"""


OPERATION = """
from steptape.rules.policy_file.operations import Operation
class Siren(Operation):
    def should_wail(self, decision):
        pass
"""


def check(folder: Path, text: str) -> subprocess.CompletedProcess[str]:
    """Run ``steptape check`` on a policy, with the folder's distributions installed."""
    policy = folder / "policy.yaml"
    policy.write_text(text)
    command = [sys.executable, "-m", "steptape", "check", str(policy)]
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    return subprocess.run(command, capture_output=True, text=True, env=environment, check=False)


def test_an_installed_package_offers_its_classes_to_every_policy(tmp_path: Path) -> None:
    """The command line finds them too, and suggests them for a misspelt name."""
    install(tmp_path, "doubling", METRIC, "steptape.metrics", "Doubled = doubling:Doubled", "Broken = nowhere:Broken")
    install(tmp_path, "wailing", OPERATION, "steptape.operations", "Siren = wailing:Siren")
    text = "controller_metrics: [{name: d, class: Doubled}]\noperations: [{name: s, class: Siren}]\n"

    fine = check(tmp_path, text)
    misspelt = check(tmp_path, text.replace("Doubled", "Doubld"))
    broken = check(tmp_path, text.replace("Doubled", "Broken"))

    assert fine.returncode == 0, fine.stderr
    assert "Did you mean 'Doubled'?" in misspelt.stdout + misspelt.stderr
    assert "cannot be imported: ModuleNotFoundError: No module named 'nowhere'" in broken.stdout + broken.stderr


def test_an_entry_point_that_two_packages_offer_or_that_is_called_otherwise_is_refused(tmp_path: Path) -> None:
    """The choice would depend on the order of folders."""
    install(tmp_path, "one", METRIC, "steptape.metrics", "Doubled = one:Doubled", "Twofold = one:Doubled")
    install(tmp_path, "two", METRIC, "steptape.metrics", "Doubled = two:Doubled")
    text = "controller_metrics: [{name: d, class: Doubled}]\n"

    twice = check(tmp_path, text)
    other = check(tmp_path, text.replace("Doubled", "Twofold"))

    assert "several packages provide this class; got 'one:Doubled, two:Doubled'\n" in twice.stdout + twice.stderr
    assert "the entry point's name must equal the class's name; got 'Doubled'" in other.stdout + other.stderr
