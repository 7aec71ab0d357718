"""The examples of EXAMPLES.md decide what the page says, and show every key and function but the plainest."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from example_words import CONTROLLER_KEYS, EXAMPLE_FUNCTIONS, ROOT_KEYS, WINDOW_WORDS

from steptape.rules.checks.finding_codes import FindingCode
from steptape.rules.checks.findings import findings_of
from steptape.rules.policy_file.controllers import STATE_KEYS
from steptape.rules.policy_file.policy import Policy, parse_policy
from steptape.rules.scenarios.file import ScenarioTest, parse_tests
from steptape.rules.scenarios.run import result_lines, run_test

PAGE = (Path(__file__).parents[1] / "docs" / "reference" / "EXAMPLES.md").read_text(encoding="utf-8")
FILES = {name: text for text, name in re.findall(r"```yaml\n(# file: (\S+)\n.*?)```", PAGE, re.DOTALL)}
POLICIES = {name: parse_policy(text, source=name) for name, text in FILES.items() if ".test." not in name}
TESTS = [
    test
    for name, text in FILES.items()
    if ".test." in name
    for test in parse_tests(text, source=name, policies=POLICIES)
]


@pytest.mark.parametrize("test", TESTS, ids=lambda test: f"{test.source}: {test.name}")
def test_an_example_decides_what_the_page_says(test: ScenarioTest) -> None:
    """Without a hint, such as that of a series that no rule reads."""
    result = run_test(test)

    assert result.passes, "\n".join(result_lines(result))
    assert result.hints == ()


def test_each_controller_of_an_example_decides_in_a_test() -> None:
    """So nothing on the page is shown without its outcome."""
    fired = {(test.policy.source, entry.controller) for test in TESTS for entry in test.expected}

    assert fired == {(name, each.name) for name, policy in POLICIES.items() for each in policy.controllers}


@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
def test_no_example_has_a_warning(policy: Policy) -> None:
    """But that of a rule that NaN silences: an example shows one thing."""
    assert [found for found in findings_of(policy) if found.code is not FindingCode.NAN_GUARD] == []


def test_each_key_and_function_but_the_plainest_has_an_example() -> None:
    """A key that joins the schema needs one, and a function that joins the table."""
    text = "\n".join(policy.text for policy in POLICIES.values())
    keys = ROOT_KEYS | CONTROLLER_KEYS | {key.name for key in STATE_KEYS}

    assert [key for key in sorted(keys) if not re.search(rf"^ *(- )?\{{?{key}:", text, re.MULTILINE)] == []
    assert [name for name in sorted(EXAMPLE_FUNCTIONS) if f"{name}(" not in text] == []
    assert [word for word in sorted(WINDOW_WORDS) if f" {word}=" not in text] == []
