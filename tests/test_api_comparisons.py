"""Groups of runs are compared over HTTP as ``steptape compare`` compares them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from command_line import call as steptape

from api_serving import served
from steptape import Recorder

SEEDS = 6


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six seeds of each of three rates, the second of which is better in all of them, and a run without a metric."""
    store = tmp_path_factory.mktemp("compared") / "runs"
    for rate, gain in ((0.1, 0.0), (0.2, 0.02), (0.3, 0.0)):
        for seed in range(SEEDS):
            with Recorder(store, name=f"{rate}", config={"lr": rate, "seed": seed}, quiet=True) as rec:
                rec.step(loss=1.0)
                rec.evaluate(eval_loss=1.0 + 0.1 * seed - gain)
    with Recorder(store, name="bare", config={"lr": 0.4, "seed": 0}, quiet=True) as rec:
        rec.step(other=1.0)
    return store


@pytest.fixture(scope="module")
def client(store: Path) -> Iterator[httpx.Client]:
    """A client of a server over these runs."""
    with served(store) as client:
        yield client


def items(client: httpx.Client, **params: Any) -> list[Any]:
    """Return the comparisons of a request that succeeds."""
    found: list[Any] = client.get("/api/v1/comparisons", params=params).raise_for_status().json()["items"]
    return found


def test_the_verdict_is_that_of_the_command(client: httpx.Client, store: Path) -> None:
    """So are its numbers and its words. A later try needs more evidence in both."""
    better, equal, _ = items(client, where="lr>0", group="lr", baseline="0.1@1")
    said = [steptape("compare", "lr=0.1", f"lr={rate}", "--store", store, "--json").stdout for rate in (0.2, 0.3)]
    printed = steptape("compare", "lr=0.1", "lr=0.2", "--store", store).stdout.splitlines()

    assert [better["comparison"], equal["comparison"]] == [json.loads(text) for text in said]
    assert (better["verdict"], equal["verdict"], equal["comparison"]["try"]) == ("keep", "not yet", 2)
    assert better["sentence"] == printed[1]
    assert better["explanations"][0] == printed[0]
    assert set(better["explanations"]) <= set(printed)


def test_the_sentence_names_the_groups_the_metric_the_effect_and_the_runs(client: httpx.Client) -> None:
    """What cannot be told says how many more runs could."""
    better, equal, _ = items(client, where="lr>0", group="lr", baseline="0.1@1")

    assert better["sentence"] == (
        "lr=0.2 is better than lr=0.1 in eval_loss. Median difference, of 6 runs against 6 runs: 0.02 (1.6%) better; "
        "95% interval of the gain: +0.02 to +0.02."
    )
    assert equal["sentence"].startswith("6 runs and 6 runs cannot tell whether lr=0.3 is better than lr=0.1 in eval_l")
    assert "At best 8 more pairs could tell." in equal["sentence"]


def test_the_group_that_began_first_is_the_baseline_by_default(client: httpx.Client) -> None:
    """Whatever the order of the runs."""
    found = items(client, where="lr=0.3,0.1", group="lr")

    assert [(one["baseline"], one["candidate"]) for one in found] == [("lr=0.1", "lr=0.3")]


def test_groups_that_cannot_be_compared_say_why(client: httpx.Client) -> None:
    """The others are compared."""
    found = items(client, where="lr>0", group="lr", baseline="0.1@1")[-1]

    assert (found["candidate"], found["verdict"], found["comparison"]) == ("lr=0.4", None, None)
    assert found["sentence"] == "lr=0.4 cannot be compared with lr=0.1: no metric clearly judges both groups."


def test_the_judging_metric_may_be_named(client: httpx.Client) -> None:
    """With the direction that is better."""
    found = items(client, where="lr=0.1,0.2", group="lr", metric="eval_loss:max")[0]

    assert found["comparison"]["objective"]["mode"] == "max"


@pytest.mark.parametrize(
    ("params", "said"),
    [
        ({"where": "lr>0"}, "there are no groups"),
        ({"where": "lr>0", "group": "rate"}, "no run has this field"),
        ({"run": "bare", "group": "lr", "baseline": "0.1"}, "the baseline is none of the runs"),
    ],
)
def test_what_names_no_groups_is_refused_in_words(client: httpx.Client, params: dict[str, Any], said: str) -> None:
    """Problem details name the parameter."""
    answer = client.get("/api/v1/comparisons", params=params)

    assert (answer.status_code, said in answer.text) == (422, True)
