"""``steptape compare`` says keep, discard or not yet, and its exit status says it to a script."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path

import pytest
import typer.main
from command_line import call as steptape
from typer.testing import CliRunner

from steptape import Recorder
from steptape.cli.app import app

#: Lines of a terminal's screen.
SCREEN = 24


def record(store: Path, name: str, values: Sequence[float]) -> None:
    """Record a run of one evaluation for each value, with the seeds 0, 1, 2, ..."""
    for seed, value in enumerate(values):
        with Recorder(store, name=name, config={"seed": seed}, quiet=True) as rec:
            rec.step(loss=value)
            rec.evaluate(eval_loss=value)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with a baseline, and candidates that are better, as good and worse."""
    store = tmp_path_factory.mktemp("compare") / "runs"
    values = [1.0, 1.2, 0.9, 1.1, 1.3, 0.8]
    record(store, "base", values)
    record(store, "better", [value - 0.02 for value in values])
    record(store, "equal", values)
    record(store, "worse", [value + 0.02 for value in values])
    record(store, "broken", [math.nan] * 4)
    record(store, "wild", [1e300, -1e300, 1.5e308, -1.5e308])
    return store


def compare(*arguments: object) -> tuple[int, str]:
    """Call the command in this process; return its exit status and what it printed."""
    result = CliRunner().invoke(app, ["compare", *map(str, arguments)])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.output


@pytest.mark.parametrize(
    ("candidate", "status", "said"),
    [
        ("better", 0, "keep: B is better than A. Its e-value is 41.1, and 40 is enough."),
        ("worse", 1, "discard: B is not better than A. The e-value for that is 41.1, and 20 is enough."),
        ("equal", 3, "not yet: B is not proven better than A. Its e-value is 1 of the 120 that are needed; at best 8"),
    ],
)
def test_the_exit_status_is_the_verdict(candidate: str, status: int, said: str, store: Path) -> None:
    """The first line says it, with the numbers that decided."""
    result = steptape("compare", "base", candidate, "--store", store)

    assert (result.returncode, result.stderr) == (status, "")
    assert result.stdout.startswith(said)


def test_the_answer_fits_a_screen_and_explains_its_words(store: Path) -> None:
    """The groups, the point, the effect with its interval, the evidence, the e-value and the tries."""
    _, printed = compare("base", "better", "--store", store)

    lines = printed.splitlines()
    assert sum(1 + len(line) // 80 for line in lines) <= SCREEN
    assert "Judged by eval_loss (lower is better, guessed; change with --objective)" in printed
    assert "+0.02 (+1.905% of A's median), the median difference between pairs; above 0, B is better" in printed
    assert "Evidence: 6 pairs of runs with one seed. B is better in 6, worse in 0, equal in 0." in printed
    assert "how many times a fair bet on B has multiplied its stake" in printed
    assert "Spread: the median difference between two runs of one group, about the same in A and B." in printed
    assert "Tries: this is number 1 against A in the store" in printed


def test_the_table_has_the_spread_of_both_groups(store: Path) -> None:
    """Beside the median, which alone does not say that one group is wider."""
    _, printed = compare("base", "better", "--store", store)

    header, ours, theirs = printed.splitlines()[3:6]
    assert header.split()[-3:] == ["median", "eval_loss", "spread"]
    assert [float(row.split()[-1]) for row in (ours, theirs)] == pytest.approx([0.2, 0.2])


def test_a_point_that_was_asked_for_is_named(store: Path) -> None:
    """Otherwise the shortest run sets it, and is named with it."""
    _, asked = compare("base", "better", "--store", store, "--at", "step=1")
    _, unasked = compare("base", "better", "--store", store)

    assert "newest value up to step 1." in asked
    assert "newest value up to step 1, the last that every finished run has" in unasked


def test_json_holds_the_values_and_the_numbers_that_decided(store: Path) -> None:
    """Ends of the interval that nothing bounds are null."""
    status, printed = compare("base", "better", "--store", store, "--json")

    document = json.loads(printed)
    assert (status, document["verdict"], document["paired"], document["pairs"]) == (0, "keep", True, 6)
    assert document["e_better"] >= document["e_needed"] == 40
    assert [run["value"] for run in document["baseline"]["runs"]] == [1.0, 1.2, 0.9, 1.1, 1.3, 0.8]
    assert document["at"]["axis"] == "step"
    assert document["baseline"]["spread"] == pytest.approx(0.2)
    assert (document["unpaired"], document["spread_ratio"]) == (None, pytest.approx(1))
    assert document["effect"]["low"] == pytest.approx(0.02)


def test_the_tries_and_the_runs_of_a_search_may_be_bounded(store: Path) -> None:
    """A declared number of tries divides alpha evenly, and a candidate without proof is discarded in the end."""
    _, printed = compare("base", "equal", "--store", store, "--at-most-tries", 10, "--json")
    status, said = compare("base", "equal", "--store", store, "--at-most-runs", 6)

    assert json.loads(printed)["e_needed"] == pytest.approx(200)
    assert status == 1
    assert said.startswith("discard: 6 runs of B have not proven it better than A.")


def test_a_least_effect_is_a_number_or_a_percentage(store: Path) -> None:
    """A negative one asks whether the candidate is not much worse."""
    assert compare("base", "better", "--store", store, "--min-effect", "1%", "--alpha", "0.1")[0] == 0
    assert compare("base", "better", "--store", store, "--min-effect", "0.05")[0] == 1
    assert compare("base", "worse", "--store", store, "--min-effect", "-5%", "--at-most-tries", 3)[0] == 3


def test_time_takes_units(store: Path) -> None:
    """Runs that ended before are no candidates for a comparison there."""
    with pytest.raises(Exception, match="no run of A has a value up to this time; got 5400"):
        compare("base", "better", "--store", store, "--at", "time=1.5h")


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("--at", "epoch", "--at takes step, tokens or time"),
        ("--at", "step=x", "--at step=VALUE takes a number"),
        ("--at", "time=-1", "--at time=VALUE takes a number"),
        ("--min-effect", "much", "--min-effect takes a number or a percentage"),
        ("--at-most-tries", "0", "--at-most-tries"),
    ],
)
def test_wrong_usage_is_named(option: str, value: str, said: str, store: Path) -> None:
    """With exit status 2."""
    status, printed = compare("base", "better", "--store", store, option, value)

    assert status == 2
    assert said in " ".join(printed.replace("│", " ").split())


def test_runs_cannot_be_on_both_sides(store: Path) -> None:
    """Exit status 2, and the error names a run."""
    result = steptape("compare", "base", "b*", "--store", store)

    assert result.returncode == 2
    assert "6 runs are in both groups" in result.stderr


def test_the_help_names_the_exit_statuses() -> None:
    """And has examples."""
    command = typer.main.get_command(app).get_command(None, "compare")  # type: ignore[attr-defined]

    assert "Exit status 0 for keep, 1 for discard, 3 for not yet." in " ".join(command.help.split())


def test_a_candidate_without_values_has_no_infinite_difference(store: Path) -> None:
    """Its runs are counted all the same, as they count as the worst."""
    _, printed = compare("base", "broken", "--store", store)

    assert "4 runs and 6 runs cannot tell whether name=broken is better than name=base in eval_loss" in printed
    assert "Median difference: unknown, as runs without a value are half of the candidate or more" in printed
    assert "Effect: unknown, the median" in printed
    assert "inf" not in printed


def test_equal_groups_differ_neither_for_the_better_nor_for_the_worse(store: Path) -> None:
    """A difference of zero has no direction."""
    assert "Median difference: 0 (0%); " in compare("base", "equal", "--store", store)[1]


def test_a_small_alpha_is_not_rounded_to_certainty(store: Path) -> None:
    """The level of the interval has the digits that it needs."""
    printed = compare("base", "better", "--store", store, "--alpha", "0.001")[1]

    assert "too few runs for a 99.9% interval" in printed
    assert "100% interval" not in printed


def test_the_largest_numbers_are_compared_without_a_warning(store: Path) -> None:
    """Their differences are infinite, and their spread is."""
    status, printed = compare("base", "wild", "--store", store, "--objective", "eval_loss:min")

    assert status == 3
    assert "4 runs and 6 runs cannot tell whether name=wild is better than name=base" in printed
