"""Every loop that the documents show serves what the rules that it arms may order: a checkpoint, an evaluation."""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from documents import FileStep, read_steps

from steptape.rules.effects import Effect
from steptape.rules.policy_file.policy import Policy, given_policy, load_policy, parse_policy

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
ROOMS = ("recorder", "integrations", "store", "rules", "replay", "importers", "shipping", "examples")
MODULES = sorted(path for room in ROOMS for path in (ROOT / room).rglob("*.py"))
SCRIPTS = sorted((ROOT / "examples").rglob("*.py"))

#: What a loop reads to serve an order.
FLAGS = {Effect.SAVE: "should_save", Effect.EVALUATE: "should_evaluate"}

#: Adapters whose framework saves and evaluates when it is asked to.
SERVING = ("SteptapeCallback", "SteptapeLogger")

_PYTHON = re.compile(r"^([ \t]*)```python\n(.*?)^\1```", re.DOTALL | re.MULTILINE)


def orders_of(policy: Policy) -> set[Effect]:
    """Return the effects of all that a policy may order."""
    return {policy.effects(operation) for controller in policy.controllers for operation in controller.operations}


def armed_orders(block: ast.Module, files: Mapping[str, str]) -> Iterator[tuple[str, set[Effect]]]:
    """Yield the name of each call of a block that arms rules, and what these may order. Rules unknown here may save.

    Args:
        block: The block.
        files: The rule files of its page, by name.
    """
    loaded = {
        ast.unparse(node.targets[0]): call.args[0]
        for node in ast.walk(block)
        if isinstance(node, ast.Assign)
        for call in ast.walk(node.value)
        if isinstance(call, ast.Call) and ast.unparse(call.func) == "load_policy"
    }
    loaded |= {
        ast.unparse(node.targets[0]): node.value
        for node in ast.walk(block)
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.List)
    }
    for call in (node for node in ast.walk(block) if isinstance(node, ast.Call)):
        for keyword in (each for each in call.keywords if each.arg == "rules"):
            rules = loaded.get(ast.unparse(keyword.value), keyword.value)
            name = str(rules.value) if isinstance(rules, ast.Constant) else ""
            if isinstance(rules, ast.List) and all(isinstance(each, ast.Constant) for each in rules.elts):
                yield ast.unparse(call.func), orders_of(given_policy(ast.literal_eval(rules)))
            elif name in files:
                yield ast.unparse(call.func), orders_of(parse_policy(files[name]))
            elif name != "None":
                is_known = name and not name.endswith(".yaml")
                yield ast.unparse(call.func), orders_of(load_policy(name)) if is_known else {Effect.SAVE}


def unserved(blocks: list[str], files: Mapping[str, str]) -> list[str]:
    """Return the flags that loops ought to read and do not. A loop ends where the next call arms rules."""
    armed = [[*armed_orders(ast.parse(block), files)] for block in blocks]
    found = []
    for number, calls in enumerate(armed):
        later = next((index for index in range(number + 1, len(armed)) if armed[index]), len(blocks))
        code = "\n".join(blocks[number:later])
        for call, orders in calls:
            lacking = [FLAGS[order] for order in FLAGS.keys() & orders if f'"{order}": ' not in code]
            if call not in SERVING:
                found += [f"{call}: {flag}" for flag in lacking if flag not in code]
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_loop_of_a_page_serves_what_its_rules_may_order(page: Path) -> None:
    """Also one that is not run here."""
    files = {step.name: step.text for step in read_steps(page) if isinstance(step, FileStep)}
    blocks = [textwrap.dedent(block) for _, block in _PYTHON.findall(page.read_text(encoding="utf-8"))]

    assert unserved(blocks, files) == []


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_an_example_serves_what_its_rules_may_order(script: Path) -> None:
    """Whoever runs it may give any rules."""
    assert unserved([script.read_text(encoding="utf-8")], {}) == []


def loops_in_docstrings(module: Path) -> Iterator[str]:
    """Yield the indented blocks with a loop of the docstrings of a module."""
    for node in ast.walk(ast.parse(module.read_text(encoding="utf-8"))):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)):
            for block in re.findall(r"(?:^    .*\n|^\n)+", ast.get_docstring(node) or "", re.MULTILINE):
                if "rules=" in block and re.search(r"\b(for|while) ", block):
                    yield textwrap.dedent(block)


def test_a_loop_of_a_docstring_serves_what_its_rules_may_order() -> None:
    """The first of them is ``Recorder``'s own."""
    blocks = [block for module in MODULES for block in loops_in_docstrings(module)]

    assert "with Recorder(" in "".join(blocks)
    assert [missed for block in blocks for missed in unserved([block], {})] == []


def test_a_loop_that_serves_nothing_is_found() -> None:
    """One callback serves one order."""
    rule = "{name: a, triggers: [on_log], rule: loss > 1, operations: [hfcontrols.should_evaluate]}"
    ordered = {"own.yaml": f"controllers: [{rule}]"}
    loop = 'rec = Recorder("runs", rules={})'

    assert unserved([loop.format('"own.yaml"'), loop.format('"loss_spike"')], ordered) == [
        "Recorder: should_evaluate",
        "Recorder: should_save",
    ]
    assert unserved([loop.format('"loss_spike", callbacks={"save": save}')], {}) == []
