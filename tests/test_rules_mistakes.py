"""``check`` says about each common mistake what ``data/golden-check/mistakes.txt`` says below it.

The file is the specification of these messages. A line that begins with a caret is the message about the place above
the caret; all other lines are the mistakes, in blocks between blank lines. A block is a rule, keys of a controller, a
sentence or a whole file, as the heading above it says. Warnings about NaN are left out: most rules of one line deserve
one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from steptape.rules.checks.finding_codes import FindingCode
from steptape.rules.checks.findings import findings_of
from steptape.rules.errors import PolicyError
from steptape.rules.policy_file.policy import parse_policy

MISTAKES = Path(__file__).parent / "data" / "golden-check" / "mistakes.txt"

#: For each heading: the text before and after a block, and the indentation of the block.
FRAMES = {
    "== a rule": ("controllers:\n- name: c\n  triggers: [on_step_end]\n  operations: []\n  rule: |-\n", "", 4),
    "== a controller": ("controllers:\n-\n", "", 2),
    "== a sentence": ("controllers:\n- |-\n", "", 2),
    "== a file": ("", "", 0),
}
CONTROLLER = {"name": "c", "triggers": "[on_step_end]", "rule": "loss > 2", "operations": "[]"}

Message = tuple[int, int, str]


def messages(text: str) -> Iterator[Message]:
    """Yield line and column from 1, and the message, of each error or warning of a policy."""
    try:
        policy = parse_policy(text, source="p.yaml")
    except PolicyError as error:
        for problem in error.problems:
            yield problem.line, problem.column, f"error: {problem.message}"
        return
    for found in findings_of(policy):
        if found.code is not FindingCode.NAN_GUARD:
            yield found.line, found.column, f"warning: {found.message} [{found.code}]"


def policy_of(heading: str, block: list[str]) -> tuple[str, int, int]:
    """Return a policy that contains the block, and the line and column offsets of the block."""
    before, _, indent = FRAMES[heading]
    lines = [" " * indent + line for line in block]
    after: list[str] = []
    if heading == "== a rule":  # The first line is the rule, the others belong to the top of the file.
        lines, after = lines[:1], block[1:]
    if heading == "== a controller":
        given = {line.split(":")[0] for line in block}
        after = [f"  {key}: {value}" for key, value in CONTROLLER.items() if key not in given]
    return before + "\n".join([*lines, *after, ""]), before.count("\n"), indent


def annotated(heading: str, block: list[str]) -> list[str]:
    """Return the lines of a block, each message below the line that it is about."""
    text, down, right = policy_of(heading, block)
    said: dict[int, list[str]] = {}
    for line, column, message in messages(text):
        at = line - down - 1
        indent = column - 1 - (right if heading != "== a rule" or at == 0 else 0)
        plain = re.sub(r"(error|warning): controller(?: 'c')?(?:, rule)?: ", r"\1: ", message)
        if heading == "== a sentence":
            plain = re.sub(r"(error|warning): (?:controller '\w+', )?(?:rule: )?", r"\1: ", message, count=1)
        said.setdefault(at, []).append(" " * max(indent, 0) + "^ " + plain)
    return [entry for at, line in enumerate([*block, ""]) for entry in ([line] if line else []) + said.pop(at, [])]


def renewed(golden: str) -> str:
    """Return the golden file with the messages of now."""
    lines: list[str] = []
    heading, block = "", list[str]()
    for line in [*golden.splitlines(), ""]:
        if re.match(r"\s*\^ ", line):
            continue
        if line and not line.startswith(("==", "# ")):
            block.append(line)
            continue
        lines += annotated(heading, block) if block else []
        block = []
        heading = line if line.startswith("==") else heading
        lines.append(line)
    return "\n".join(lines)


def test_the_messages_about_common_mistakes_are_those_of_the_golden_file() -> None:
    """To renew the file, write ``renewed(text)`` into it; then read the difference."""
    golden = MISTAKES.read_text(encoding="utf-8")

    assert renewed(golden).splitlines() == golden.splitlines()


def test_no_mistake_of_the_golden_file_passes_in_silence() -> None:
    """Each block has at least one message."""
    blocks = MISTAKES.read_text(encoding="utf-8").split("\n\n")
    mistakes = [block for block in blocks if not block.startswith(("==", "# "))]

    assert len(mistakes) >= 156
    assert [block for block in mistakes if not re.search(r"^\s*\^ (error|warning): ", block, re.MULTILINE)] == []


def test_at_least_forty_wrong_sentences_are_in_the_golden_file() -> None:
    """Each names the place, the reason and, where the reason does not say it, the mend."""
    _, _, after = MISTAKES.read_text(encoding="utf-8").partition("== a sentence\n\n")
    sentences = [block for block in after.partition("\n== ")[0].split("\n\n") if not block.startswith("# ")]

    assert len(sentences) >= 40


def test_a_rule_with_a_comma_in_braces_is_said_to_need_quotes() -> None:
    """YAML takes what follows the comma for another key."""
    text = "controllers:\n- {name: c, triggers: [on_step_end], rule: loss > mean(loss, 20), operations: []}\n"

    found = [message for _, _, message in messages(text)]

    word = "unknown key; got '20)'. In {...} a comma ends a text: put the whole text in quotes"
    assert any(word in message for message in found)
