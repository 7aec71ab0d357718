"""The pages of the rule language, and the how-to on checks and tests of rules, describe exactly what the code does."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

import pytest

from steptape.cli.commands.rules import shipped_rules
from steptape.rules.checks.finding_codes import FindingCode
from steptape.rules.engine.engine import Engine
from steptape.rules.functions import operators
from steptape.rules.functions import plain_functions as plain
from steptape.rules.functions.plain_functions import MAX_DIGITS, METHODS
from steptape.rules.language import expressions
from steptape.rules.policy_file import controllers, document, operations, policy
from steptape.rules.policy_file.declarations import SEMANTICS_VERSION
from steptape.rules.policy_file.metrics import METRICS, TrainingState
from steptape.rules.policy_file.operations import OPERATIONS
from steptape.rules.policy_file.policy import load_policy, parse_policy
from steptape.rules.policy_file.sentences import is_sentence
from steptape.rules.readings.fact import CONTEXT
from steptape.rules.readings.reading import MAX_WINDOW
from steptape.rules.readings.table import CORE, FUNCTIONS
from steptape.rules.scenarios import file as scenario_file
from steptape.rules.scenarios import scenario
from steptape.rules.scenarios.file import parse_tests
from steptape.rules.scenarios.run import result_lines, run_test
from steptape.store.events import INIT_END, LOOP_KINDS, Event
from steptape.store.plan import Plan

DOCS = Path(__file__).parents[1] / "docs"
PAGE = (DOCS / "reference" / "LANGUAGE.md").read_text(encoding="utf-8")
REFERENCE = (DOCS / "reference" / "LANGUAGE-REFERENCE.md").read_text(encoding="utf-8")
TRAC = (DOCS / "reference" / "TRAC.md").read_text(encoding="utf-8")
HOW_TO = (DOCS / "how-to" / "check-and-test-rules.md").read_text(encoding="utf-8")


def section(title: str, page: str = REFERENCE) -> str:
    """Return a section's text, up to the next heading of any level."""
    return re.split(r"^##+ ", page.split(f"# {title}\n", 1)[1], maxsplit=1, flags=re.MULTILINE)[0]


def rows(title: str, page: str = REFERENCE) -> list[list[str]]:
    """Return the cells of the first table of a section, without its header."""
    lines = [line for line in section(title, page).splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line[1:-1].split("|")] for line in lines[2:]]


def without_links(cell: str) -> str:
    """Return a cell without its links and what only leads to them."""
    return re.sub(r"\[(.*?)\]\(.*?\)", r"\1", re.sub(r", see \[.*?\]\(.*?\)", "", cell))


def test_the_function_tables_are_the_table_of_the_code() -> None:
    """The page has the core, the reference all others; ``python docs/generated.py`` writes them."""
    for table, is_core in ((rows("Functions", PAGE), True), (rows("Further functions"), False)):
        documented = [(cells[0].replace("`", ""), cells[1]) for cells in table]

        assert documented == [
            (row.signature, row.meaning)
            for row in FUNCTIONS.values()
            if (row.name in CORE) is is_core and not row.is_of_trac
        ]
    assert set(FUNCTIONS) >= CORE


def test_every_documented_method_is_there_and_no_other() -> None:
    """All of them are read-only."""
    listed = re.findall(r"`([a-z]+)`", section("Conditions").split("these methods")[1].split("`a.b`")[0])

    assert sorted(listed) == sorted(METHODS)


def test_the_page_of_shipped_rules_is_their_list() -> None:
    """``python docs/generated.py`` writes it."""
    page = (Path(__file__).parents[1] / "docs" / "reference" / "SHIPPED.md").read_text(encoding="utf-8")
    documented = [
        line.replace("\\*", "*").strip("| ").split(" | ") for line in page.splitlines() if line.startswith("| `")
    ]

    assert [tuple(cells[:3]) for cells in documented] == [
        (f"`{each.name}`", each.summary, each.line_of_reads()) for each in shipped_rules()
    ]


def test_the_tables_name_all_keys_triggers_metrics_and_operations() -> None:
    """Nothing is undocumented."""
    tables = [*rows("The file", PAGE), *rows("The file"), *rows("Keys", TRAC)]
    keys = {cells[0].strip("`"): without_links(" | ".join(cells[1:])) for cells in tables}
    own = {name: cells for name, cells in keys.items() if not name.startswith(("operations[", "controller_metrics["))}

    assert re.findall(r"^ *(on_\w+)", section("Triggers and the order of events"), re.MULTILINE) == [
        f"on_{kind}" for kind in (INIT_END, *LOOP_KINDS)
    ]
    assert own == {key.name: key.doc for key in policy.DOCUMENT_KEYS} | {
        f"controllers[].{key.name}": key.doc for key in controllers.CONTROLLER_KEYS
    }
    assert len(keys) == len(tables)
    assert {cells[0].strip("`"): cells[1] for cells in rows("Names", PAGE) + rows("Names")} == dict(CONTEXT)
    metrics = [*rows("Controller metrics"), *rows("Metrics", TRAC)]
    assert sorted(cells[0].strip("` ") for cells in metrics) == sorted(METRICS)
    for cells in [*rows("Operations"), *rows("Operations", TRAC)]:
        actions = re.findall(r"should_\w+", cells[2])
        assert actions == list(OPERATIONS[cells[0].strip("` ")].actions)


def test_the_limits_are_those_of_the_code() -> None:
    """The wording is that of the table."""
    limits = {cells[0]: cells[1] for cells in rows("Limits")}

    assert limits["rule file"] == (
        f"{document.MAX_BYTES >> 20} MiB and {document.MAX_NODES:,} values, both with aliases expanded, "
        f"and {document.MAX_DEPTH} levels"
    )
    assert limits["rule"] == (
        f"{expressions.MAX_RULE_LENGTH:,} characters; {expressions.MAX_EXPRESSION_DEPTH} levels and "
        f"{expressions.MAX_NODES:,} parts, with what defined names mean"
    )
    assert limits["window"] == f"{MAX_WINDOW:,} values"
    assert f"{operators.MAX_BITS:,} bits" in limits["base and exponent of `**`"]
    assert limits["comprehensions"].endswith(f" and {operators.MAX_NESTED:,} elements held in one evaluation of a rule")
    assert limits["repeated texts and lists"].startswith(
        f"{operators.MAX_REPEATED:,} elements, and {operators.MAX_NESTED:,} with nested ones"
    )
    assert limits["whole number in a text, and rounding"] == f"{MAX_DIGITS:,} digits"
    assert limits["containers as text"] == (
        f"{plain.MAX_RENDERED_VALUES:,} values, and {plain.MAX_RENDERED_LENGTH:,} characters of texts in them"
    )
    assert limits["format width and precision"] == f"{plain.MAX_WIDTH:,}"
    assert limits["log message"] == f"{operations.MAX_MESSAGE_LENGTH:,} characters"


def test_the_version_of_the_page_is_that_of_the_semantics() -> None:
    """It increases with every change of meaning."""
    assert f"version {SEMANTICS_VERSION}," in REFERENCE.replace("\n", " ")


BLOCKS = [block for page in (PAGE, REFERENCE) for block in re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)]

#: The sentences of the page: those of its blocks, and those in its text and tables.
SENTENCES = [
    *(line for block in re.findall(r"```text\n(.*?)```", PAGE, re.DOTALL) for line in block.splitlines()),
    *filter(is_sentence, re.findall(r"`([a-z][^`\n]* if [^`\n]*)`", PAGE)),
]


@pytest.mark.parametrize("sentence", SENTENCES)
def test_every_sentence_on_the_page_loads(sentence: str) -> None:
    """Nothing in it is refused."""
    assert load_policy(sentence).controllers


@pytest.mark.parametrize("block", BLOCKS)
def test_every_policy_on_the_page_loads(block: str) -> None:
    """Whole files load unchanged; a patience is put into a controller."""
    if block.startswith(" "):
        block = f"controllers:\n  - name: c\n    triggers: []\n    rule: 'True'\n    operations: []\n{block}"

    assert parse_policy(block).digest


#: What the rule files of the page do, by the name of a rule in each: a test as `steptape test` takes it.
PAGE_TESTS = {
    "loss_spike": """
        series: {loss: 2.0x30 9.0x5 nanx3}
        expect:
          - {step: 35, controller: loss_spike, operations: [save, stop], message: "loss 9.00, usually 2.82"}
          - {step: 38, controller: stop_if_not_isfinite_loss_for_3_steps}
        after_stop: go_on""",
    "loss_high": """
        series: {loss: 1.0x200 9.0x3 1.5 1.0x3 9.0x2}
        expect:
          - {step: 201, controller: loss_high, operations: [], message: "loss 9.00"}
          - {step: 205, controller: loss_high, cleared: true}
          - {step: 208, controller: loss_high}""",
    "some_block_is_large": """
        series: {act_rms/0: 1.0x60, act_rms/1: 1.0x59 5.0}
        expect:
          - {step: 60, controller: some_block_is_large, message: "act_rms/1 has the largest activations, 5.0"}""",
    "block_grows": """
        series: {act_rms/0: 1.0x1001 2.0x2, act_rms/1: 1.0x1003}
        expect: [{step: 1002, controller: block_grows, member: act_rms/0}]
        only: [block_grows]""",
    "settled": """
        series: {loss: 9.0 1.0x20 2.0x700}
        expect:
          - {step: 21, controller: settled, message: "converging since step 21"}
          - {step: 40, controller: settled}
          - {step: 622, controller: long_plateau}
        after_stop: go_on""",
}


@pytest.mark.parametrize("name", PAGE_TESTS)
def test_the_rules_of_the_page_do_what_it_says(name: str) -> None:
    """Each test states all decisions that the file makes."""
    block = next(block for block in re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL) if f"name: {name}" in block)
    body = textwrap.indent(textwrap.dedent(PAGE_TESTS[name]), "    ")
    (test,) = parse_tests(f"policy: p.yaml\ntests:\n  - name: t{body}\n", policies={"p.yaml": parse_policy(block)})

    result = run_test(test)

    assert result.passes, "\n".join(result_lines(result))


def test_the_kinds_of_warnings_and_the_keys_of_tests_are_those_of_the_code() -> None:
    """Nothing is undocumented."""
    titles = ("Check a rule file", "Check against recorded runs")
    kinds = [cells[0].strip("`") for title in titles for cells in rows(title, HOW_TO)]

    assert set(kinds) == set(FindingCode)
    assert {cells[0].strip("`"): " | ".join(cells[1:]) for cells in rows("Test a rule file", HOW_TO)[1:]} == {
        f"tests[].{key.name}": key.doc for key in scenario_file.TEST_KEYS
    }
    limits = section("Limits of a test file", HOW_TO)
    assert f"{scenario.MAX_VALUES:,} values a series" in limits
    assert f"{scenario_file.MAX_FILE_VALUES:,} values and {scenario_file.MAX_EXPECTED:,} expected" in limits
    assert f"{scenario.MAX_STEPS:,} steps" in limits


def test_the_patience_table_is_what_happens() -> None:
    """Each of its rows holds for the results on the page."""
    results = re.search(r"results ((?:[TF] )+[TF]),", section("Patience", TRAC))
    assert results is not None
    patiences = ["", "{}", "{patience_threshold: 2}", "{patience_threshold: 2, mode: no_reset_on_failure}"]
    happened = []
    for patience in patiences:
        more = f"    patience: {patience}\n" if patience else ""
        controller = f"  - name: c\n    triggers: [on_log]\n    rule: a == 1\n    operations: []\n{more}"
        engine = Engine(parse_policy(f"controllers:\n{controller}"))
        events = [
            Event("log", seq=seq, metrics={"a": float(letter == "T")}) for seq, letter in enumerate(results[1].split())
        ]
        happened.append(" ".join(str(outcome.seq) for event in events for outcome in engine.observe(event)))

    assert happened == [cells[1] for cells in rows("Patience", TRAC)]


def test_the_state_keys_of_the_page_are_keys_of_the_metric() -> None:
    """The loop fills these keys in."""
    row = next(cells for cells in rows("Metrics", TRAC) if "TrainingState" in cells[0])
    state = TrainingState({}, Plan()).compute(Event("step_end"))

    assert set(re.findall(r"`(\w+)`", row[3])) <= set(state)
