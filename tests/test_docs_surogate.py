"""The page on Surogate's defaults shows the numbers that a backtest gives over the logs of real trainings."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from command_line import call
from real_logs import FOLDER

Report: TypeAlias = dict[str, Any]

PAGE = Path(__file__).parents[1] / "docs" / "explanation" / "surogate.md"
PACKS = ("surogate", "surogate_mended")


@pytest.fixture(scope="module")
def reports() -> dict[str, Report]:
    """The reports of the page's command, by policy."""
    if not FOLDER.is_dir():
        pytest.skip(f"the logs of real trainings are not in {FOLDER}")
    found = re.search(r"```bash\n(steptape backtest .*?)\n```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert found is not None
    words = shlex.split(found[1].replace("\\\n", ""))[1:]
    words[words.index("runs")] = str(FOLDER)
    made = {}
    for pack in PACKS:
        named = [pack if word == PACKS[0] else word for word in words]
        made[pack] = json.loads(call(*named, "--json").stdout)
    return made


def test_the_table_counts_the_stops_of_both_packs(reports: dict[str, Report]) -> None:
    """And what they cost, as far as the record says."""
    columns = [_summary(reports[pack]) for pack in PACKS]
    rows = [f"| {name} | {value} | {columns[1][name]} |" for name, value in columns[0].items()]

    assert [row for row in rows if row not in PAGE.read_text(encoding="utf-8")] == []


def _summary(report: Report) -> dict[str, str]:
    totals = report["aggregate"]
    stops = totals["stops_by_cost"]
    costly = stops["lost"]
    return {
        "it could act in": f"{totals['could_fire']}",
        "it would have stopped": f"{totals['stopped']}",
        "training on would have gained 1% or less": f"{stops['saved']['stopped']}",
        "training on would have gained more": f"{costly['stopped']}",
        "median regret of the latter": f"{costly['regret']:.2%}",
        "greatest regret": f"{costly['worst']['regret']:.2%}",
        "cannot be judged": f"{stops['unknown']['stopped']}",
        "stopped at their last step": f"{stops['at_last_step']['stopped']}",
        "it would have steered, so that the rest is unknown": f"{totals['not_known']}",
    }


def test_the_runs_in_detail_are_those_of_the_backtest(reports: dict[str, Report]) -> None:
    """Where they stop, what they had by then, and what `surogate_mended` does."""
    text = PAGE.read_text(encoding="utf-8")
    shown = re.findall(r"^\| (\S+) \| [\d,]+ \| [\d,]+ \| .*$", text, re.MULTILINE)
    runs, mended = (
        {run["name"].rpartition("/")[2]: run for run in reports[pack]["runs"] if run["name"]} for pack in PACKS
    )

    assert len(shown) == 4
    assert [row for row in (_row(name, runs[name], mended[name]) for name in shown) if row not in text] == []


def _row(name: str, run: Report, other: Report) -> str:
    best, of = run["predicted"]["best"], run["recorded"]["best"]
    mended = f"{other['stop']['step']:,}" if other["stop"] else "no stop"
    steps = run["recorded"]["steps"]
    return f"| {name} | {run['stop']['step']:,} | {steps:,} | {best:.4g} | {of:.4g} | {mended} |"


def test_what_the_page_says_of_rules_and_of_the_censored_run_is_so(reports: dict[str, Report]) -> None:
    """The rules that stop, and the spike that the guard answers."""
    stopped = {each["controller"]: each["stopped"] for each in reports["surogate"]["aggregate"]["by_controller"]}
    said = {
        name: int(count)
        for name, count in re.findall(r"`(stop_\w+)`(?: ended)? (\d+)", PAGE.read_text(encoding="utf-8"))
    }
    assert {name: count for name, count in stopped.items() if count} == said
    (spiky,) = (run for run in reports["surogate"]["runs"] if "caspr_adaptive" in (run["name"] or ""))
    guard = next(each for each in spiky["decisions"] if each["controller"] == "guard")

    assert (guard["step"], guard["message"].split(",")[0]) == (7100, "stage 1: loss 32.0494")
