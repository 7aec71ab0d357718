"""``steptape replay --experts`` adds up what LLEP would have made of recorded runs, by layer and by params."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import call as steptape

from steptape import Policy, Recorder, load_policy, open_run, sweep
from steptape.replay.policies.run_accounts import expert_accounts
from steptape.rules.functions.expert_loads import BalanceSettings, LayerBalance
from steptape.rules.policy_file.policy import parse_policy, shipped_policies
from steptape.rules.readings.reading import Param
from steptape.store.errors import TelemetryError
from steptape.store.events import Event, JsonObject
from steptape.store.run import Run

#: Both hot experts of a layer on its first GPU of four; one hot expert; none.
PAIR, ONE, EVEN = [5000, 5000, 0, 0, 0, 0, 0, 0], [5000, 1, 1, 1, 1, 1, 1, 1], [1250] * 8


def recorded(folder: Path, steps: Sequence[Mapping[str, Any]]) -> Run:
    """Record a run with the tokens of experts of each step, by layer."""
    with Recorder(folder, name="experts", quiet=True) as rec:
        for layers in steps:
            rec.step(loss=1.0, vectors={f"expert_tokens/{name}": counts for name, counts in layers.items()})
    return open_run(rec.folder)


def drawn(experts: int, moves: bool) -> list[dict[str, list[int]]]:
    """Return 60 steps of one layer under Zipf's law, whose hot experts stay or move at each step."""
    rng = np.random.default_rng(20)
    weights = rng.permutation(1 / np.arange(1, experts + 1))
    steps = []
    for _ in range(60):
        weights = rng.permutation(weights) if moves else weights
        steps.append({"a": rng.multinomial(262_144, weights / weights.sum()).tolist()})
    return steps


def llep() -> Policy:
    """Return the shipped policy."""
    return load_policy(shipped_policies()["llep"])


def accounts(source: Run | Sequence[Event], **axes: Sequence[Param]) -> list[JsonObject]:
    """Return the accounts of the shipped policy."""
    return [account.to_json() for account in expert_accounts(llep(), source, axes)]


def test_an_account_adds_up_layers_and_steps(tmp_path: Path) -> None:
    """The layer with the most tokens above the mean comes first."""
    run = recorded(tmp_path, [{"0": EVEN, "1": PAIR}, {"0": EVEN, "1": PAIR}, {"0": EVEN, "1": EVEN}, {"0": ONE}])
    (account,) = accounts(run, P=[4], expert_bytes=[10])

    assert account["dispatches"] == 7
    assert account["over_share"] == 3 / 7
    assert account["active_share"] == 3 / 7
    assert account["tokens"] == 65_007
    assert account["moved"] == 5000 + 5000 + 1250
    assert (account["transfers"], account["transfer_bytes"]) == (9, 90)
    assert [*account["layers"]] == ["expert_tokens/1", "expert_tokens/0"]
    first, second = account["layers"].values()
    assert first["excess_share"] == pytest.approx(15_000 / (15_000 + 3749.25))
    assert first["mean_ratio"] == 3.0
    assert first["max_ratio"] == 4.0
    assert first["mean_chunk_ratio"] == pytest.approx((1.1 + 1.1 + 1) / 3)
    assert first["mean_expert_ratio"] == pytest.approx((2 + 2 + 1) / 3)
    assert first["mean_sticky_ratio"] == pytest.approx((2 + 2 + 1.5) / 3)
    assert second["over_share"] == 0.25
    assert second["active_share"] == 0.0


@pytest.mark.parametrize("moves", [False, True])
def test_the_answers_are_those_of_the_planner(tmp_path: Path, moves: bool) -> None:
    """For each combination of threshold, refresh, alpha and P."""
    steps = drawn(64, moves)
    run = recorded(tmp_path, steps)
    found = accounts(run, P=[4, 8], alpha=[1.0, 1.5], threshold=[1.0, 1.6, 2.0], refresh=[1, 16])

    assert len(found) == 24
    for account in found:
        given = account["params"]
        settings = BalanceSettings(given["P"], given["alpha"], 1024, given["threshold"], given["refresh"])
        balance = LayerBalance(settings)
        seen = [balance.dispatch(step["a"]) for step in steps]
        assert account["over_share"] == sum(one.is_over for one in seen) / 60
        assert account["active_share"] == sum(one.is_active for one in seen) / 60
        assert account["mean_sticky_ratio"] == pytest.approx(sum(one.sticky_ratio for one in seen) / 60)
        assert account["moved"] == sum(one.moved for one in seen)
        assert account["transfers"] == sum(one.transfers for one in seen)


def test_it_shows_that_old_plans_do_not_help_where_hot_experts_move(tmp_path: Path) -> None:
    """And that they do where these stay."""
    stay, move = (accounts(recorded(tmp_path / str(moves), drawn(64, moves)), P=[8])[0] for moves in (False, True))

    assert stay["mean_sticky_ratio"] == pytest.approx(stay["mean_expert_ratio"], abs=0.02)
    assert move["mean_sticky_ratio"] > move["mean_expert_ratio"] + 0.3
    assert move["mean_sticky_ratio"] == pytest.approx(move["mean_ratio"], abs=0.15)


@pytest.mark.parametrize(
    ("layers", "axes", "message"),
    [
        ({}, {}, "no step_end event holds a vector 'expert_tokens/\\*'; got \\[]"),
        ({"a": [1] * 12}, {}, "step 1: vector 'expert_tokens/a': 12 experts cannot be shared evenly by 8 GPUs. Set P"),
        ({"a": [0.5] * 8}, {}, "a whole number from 0; got 0.5"),
        ({"a": [1] * 8}, {"P": [2, 4], "alpha": range(1, 600)}, "too many combinations of params; got 1198"),
        ({"a": [1] * 8}, {"Q": [2]}, "Q"),
    ],
)
def test_what_it_cannot_answer_it_refuses(
    tmp_path: Path, layers: Mapping[str, Any], axes: Mapping[str, Sequence[Param]], message: str
) -> None:
    """With the reason."""
    run = recorded(tmp_path, [layers])

    with pytest.raises(TelemetryError, match=message):
        accounts(run, **axes)


def test_a_thousand_combinations_are_not_too_many(tmp_path: Path) -> None:
    """Each is computed when it is asked for."""
    run = recorded(tmp_path, [{"a": EVEN}])

    assert next(expert_accounts(llep(), run, {"alpha": range(1, 1001)})).params == {"alpha": 1}


def test_a_policy_without_the_metric_has_no_account(tmp_path: Path) -> None:
    """The error names one that has it."""
    policy = parse_policy("controllers: [{name: a, triggers: [on_step_end], rule: loss > 1, operations: []}]")

    with pytest.raises(TelemetryError, match="needs one controller metric of class LlepPlan; got 0"):
        list(expert_accounts(policy, recorded(tmp_path, [{"a": EVEN}]), {}))


def test_a_sweep_varies_its_params(tmp_path: Path) -> None:
    """Rules may stop on what the metric says: here a run that LLEP does not help."""
    text = llep().text.replace("operations: []", "operations: [hfcontrols.should_training_stop]")
    axes: dict[str, Sequence[Param]] = {"P": [4], "warn": [10.0], "threshold": [1.3, 100.0], "patience": [20, 30]}
    rows = sweep(parse_policy(text), axes, [recorded(tmp_path, [{"0": ONE}] * 60)]).frame().to_dicts()

    assert [(row["threshold"], row["patience"], row["steps_saved"]) for row in rows] == [
        (1.3, 20, 40), (1.3, 30, 30), (100.0, 20, 0), (100.0, 30, 0),
    ]  # fmt: skip


# --- the command ----------------------------------------------------------------------------------------------------


def call(*arguments: object, given: str = "") -> subprocess.CompletedProcess[str]:
    """Run ``steptape replay llep ... --experts``."""
    return steptape("replay", "llep", *arguments, "--experts", given=given)


def test_the_command_prints_a_row_for_each_layer(tmp_path: Path) -> None:
    """And one for all."""
    run = recorded(tmp_path, [{"0": EVEN, "1": PAIR}] * 20)
    printed = call(run.folder, "--set", "P=4").stdout.splitlines()

    assert [" ".join(line.split()) for line in printed[:4]] == [
        "layer dispatches over active ratio chunks experts sticky worst planned moved transfers excess",
        "expert_tokens/1 20 100.0% 100.0% 4.000 1.100 2.000 2.000 4.000 145,000 100,000 60 100.0%",
        "expert_tokens/0 20 0.0% 0.0% 1.000 1.000 1.000 1.000 1.000 0 0 0 0.0%",
        "all 40 50.0% 50.0% 2.500 1.050 1.500 1.500 4.000 145,000 100,000 60 100.0%",
    ]
    assert printed[4].startswith("Loads only")


def test_the_command_prints_a_row_for_each_combination(tmp_path: Path) -> None:
    """With ``--json`` a line, in which each layer has its own account. A value alone is in no column."""
    run = recorded(tmp_path, [{"0": EVEN, "1": PAIR}] * 20)
    settings = ("--set", "threshold=1.3,4,5", "--set", "P=4", "--set", "expert_bytes=1000")
    printed = call(run.folder, *settings).stdout.splitlines()
    lines = [json.loads(line) for line in call(run.folder, *settings, "--json").stdout.splitlines()]

    assert printed[0].split()[:4] == ["threshold", "dispatches", "over", "active"]
    assert [line.split()[0:4] for line in printed[1:4]] == [
        ["1.3", "40", "50.0%", "50.0%"], ["4", "40", "50.0%", "50.0%"], ["5", "40", "0.0%", "0.0%"],
    ]  # fmt: skip
    assert [line["params"]["threshold"] for line in lines] == [1.3, 4, 5]
    assert [line["transfer_bytes"] for line in lines] == [60_000, 60_000, 0]
    assert lines[0]["layers"]["expert_tokens/1"]["mean_expert_ratio"] == 2.0
    assert lines[0]["arguments"]["refresh"] == 16


def test_the_command_reads_an_export(tmp_path: Path) -> None:
    """Events as JSON lines have their vectors."""
    run = recorded(tmp_path, [{"1": PAIR}] * 3)
    exported = steptape("export", run.folder).stdout

    assert call("-", "--set", "P=4", given=exported).stdout == call(run.folder, "--set", "P=4").stdout != ""


def test_the_command_says_what_is_wrong(tmp_path: Path) -> None:
    """On one line, with exit status 2."""
    result = call(recorded(tmp_path, [{}]).folder)

    assert (result.returncode, result.stdout) == (2, "")
    assert "no step_end event holds a vector 'expert_tokens/*'" in result.stderr
