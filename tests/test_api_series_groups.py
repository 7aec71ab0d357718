"""Series of groups of runs are the statistics that numpy computes; differences are to a baseline at equal places."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from api_serving import served
from steptape import Recorder
from steptape.store.reading.plot_data import course_of, course_statistics, smoothed

STEPS = 60
SEEDS = 3
RATES = (0.1, 0.01)
RUNS = [f"{rate}-{seed}" for rate in RATES for seed in range(SEEDS)]

#: The last seed of the first rate ends here.
EARLY = 40


def loss_at(rate: float, seed: int, step: int) -> float:
    """Return the loss that a run records."""
    return 1.0 / step + rate * (seed + 1) + 0.01 * ((step * (seed + 3)) % 7)


def losses(rate: float, seed: int) -> list[float]:
    """Return all losses of a run."""
    last = EARLY if (rate, seed) == (RATES[0], SEEDS - 1) else STEPS
    return [loss_at(rate, seed, step) for step in range(1, last + 1)]


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """A client of a server over three seeds of two rates, and a run with another metric and a NaN."""
    store = tmp_path_factory.mktemp("runs")
    for rate in RATES:
        for seed in range(SEEDS):
            config = {"optimizer": {"lr": rate}, "seed": seed}
            with Recorder(store, name=f"{rate}-{seed}", config=config, group="sweep", quiet=True) as rec:
                for step, loss in enumerate(losses(rate, seed), 1):
                    rec.step(loss=loss, num_tokens=8)
                    if step % (20 + seed) == 0:
                        rec.evaluate(eval_loss=loss)
    with Recorder(store, name="other", config={"seed": 0}, quiet=True) as rec:
        rec.step(acc=1.0)
        rec.step(acc=math.nan)
    with served(store) as client:
        yield client


def items(client: httpx.Client, **params: Any) -> list[Any]:
    """Return the items of a request that succeeds."""
    found: list[Any] = client.get("/api/v1/series", params=params).raise_for_status().json()["items"]
    return found


def test_a_group_has_mean_deviation_and_extremes_of_its_runs_at_each_step(client: httpx.Client) -> None:
    """The deviation is that of a sample."""
    found = items(client, run=RUNS, metric="loss", group="lr")
    values = np.array([losses(RATES[1], seed) for seed in range(SEEDS)])

    assert [one["group"] for one in found] == ["lr=0.01", "lr=0.1"]
    assert found[0]["values"] == {"optimizer.lr": 0.01}
    assert found[0]["x"] == list(range(1, STEPS + 1))
    assert found[0]["mean"] == pytest.approx(values.mean(axis=0))
    assert found[0]["deviation"] == pytest.approx(values.std(axis=0, ddof=1))
    assert found[0]["least"] == pytest.approx(values.min(axis=0))
    assert found[0]["greatest"] == pytest.approx(values.max(axis=0))
    assert found[0]["count"] == [SEEDS] * STEPS


def test_a_run_that_ends_early_leaves_the_count_behind_it(client: httpx.Client) -> None:
    """The group says of how many runs it is."""
    _, one = items(client, run=RUNS, metric="loss", group="lr")
    rest = np.array([losses(RATES[0], seed)[EARLY:] for seed in range(SEEDS - 1)])

    assert one["n_runs"] == len(one["runs"]) == SEEDS
    assert one["count"] == [SEEDS] * EARLY + [SEEDS - 1] * (STEPS - EARLY)
    assert one["mean"][EARLY:] == pytest.approx(rest.mean(axis=0))


def test_runs_that_evaluate_at_other_steps_count_with_their_newest_value(client: httpx.Client) -> None:
    """From its first evaluation to its last."""
    found = items(client, run=RUNS[SEEDS:], metric="eval_loss", group="lr")[0]
    at = {seed: dict(enumerate(losses(RATES[1], seed), 1)) for seed in range(SEEDS)}

    assert found["x"] == [20, 21, 22, 40, 42, 44, 60]
    assert found["count"] == [1, 2, 3, 3, 3, 2, 1]
    assert found["mean"][2] == pytest.approx(np.mean([at[0][20], at[1][21], at[2][22]]))
    assert found["deviation"][0] is None


def test_several_keys_make_groups_of_equal_values_of_all(client: httpx.Client) -> None:
    """A run without a key is in a group of its own, which says so."""
    found = items(client, run=[*RUNS, "other"], metric="loss", group="seed, lr")

    assert [one["group"] for one in found][:2] == ["seed=0, lr=0.01", "seed=0, lr=0.1"]
    assert found[2]["group"] == "seed=0, no lr"
    assert (found[2]["kind"], found[2]["x"], found[2]["n_runs"]) == (None, [], 1)


def test_smoothing_comes_before_the_statistics(client: httpx.Client) -> None:
    """The formula is that of a series: the average of each run alone."""
    found = items(client, run=RUNS[SEEDS:], metric="loss", group="lr", smooth=0.8)[0]
    values = np.array([smoothed(losses(RATES[1], seed), 0.8) for seed in range(SEEDS)])

    assert found["mean"] == pytest.approx(values.mean(axis=0))
    assert found["deviation"] == pytest.approx(values.std(axis=0, ddof=1))


def test_a_part_of_the_axis_has_the_values_of_the_whole(client: httpx.Client) -> None:
    """Fewer points keep the ends and the extremes of the mean."""
    whole = items(client, run=RUNS, metric="loss", group="lr", axis="tokens")[0]
    part = items(client, run=RUNS, metric="loss", group="lr", axis="tokens", points=8, **{"from": 80, "to": 320})[0]
    inside = [(x, mean) for x, mean in zip(whole["x"], whole["mean"], strict=True) if 80 <= x <= 320]

    assert part["n_raw"] == len(inside) == 31
    assert part["sampled"]
    assert set(zip(part["x"], part["mean"], strict=True)) <= set(inside)
    assert {inside[0], inside[-1], min(inside, key=lambda one: one[1])} <= set(
        zip(part["x"], part["mean"], strict=True)
    )


def test_a_value_that_is_not_finite_does_not_count(client: httpx.Client) -> None:
    """Without any the mean is NaN."""
    (found,) = items(client, run="other", metric="acc", group="seed")

    assert (found["mean"], found["count"], found["least"]) == ([1.0, "NaN"], [1, 0], [1.0, "NaN"])


def test_a_difference_is_to_the_baselines_value_at_the_same_place(client: httpx.Client) -> None:
    """Smoothed values are less the smoothed ones of the baseline. Beyond its end there is no difference."""
    base, other = RUNS[2], RUNS[3]
    own, diff = items(client, run=[base, other], metric="loss", baseline=base, smooth=0.5)
    there, here = losses(RATES[0], 2), losses(RATES[1], 0)[:EARLY]

    assert set(own["value"]) == set(own["smoothed"]) == {0.0}
    assert diff["step"] == list(range(1, EARLY + 1))
    assert diff["value"] == pytest.approx(np.subtract(here, there))
    assert diff["smoothed"] == pytest.approx(np.subtract(smoothed(here, 0.5), smoothed(there, 0.5)))


def test_a_difference_of_groups_is_to_the_mean_of_the_baselines_group(client: httpx.Client) -> None:
    """The deviation stays that of the group's own runs."""
    plain = items(client, run=RUNS, metric="loss", group="lr")
    other, base = items(client, run=RUNS, metric="loss", group="lr", baseline=RUNS[1])

    assert set(base["mean"]) == {0.0}
    assert other["mean"] == pytest.approx(np.subtract(plain[0]["mean"], plain[1]["mean"]))
    assert other["greatest"] == pytest.approx(np.subtract(plain[0]["greatest"], plain[1]["mean"]))
    assert other["deviation"] == plain[0]["deviation"]


def test_runs_are_found_by_a_question(client: httpx.Client) -> None:
    """It is that of the list of runs."""
    found = items(client, where="lr=0.01", metric="loss", group="lr")

    assert [(one["group"], one["n_runs"]) for one in found] == [("lr=0.01", SEEDS)]


def test_a_table_of_groups_has_a_row_for_each_place(client: httpx.Client) -> None:
    """It says how many runs there are."""
    params = {"run": RUNS, "metric": "loss", "group": "lr", "format": "arrow"}
    table = pa.ipc.open_stream(client.get("/api/v1/series", params=params).content).read_all()

    assert table.num_rows == 2 * STEPS
    assert table.column_names[:4] == ["group", "metric", "kind", "n_runs"]
    assert table["count"].to_pylist()[STEPS + EARLY] == SEEDS - 1


@pytest.mark.parametrize(
    ("params", "said"),
    [
        ({"run": "other", "group": "learning"}, "no run has this field"),
        ({"group": "lr"}, "Give either 'run' or 'where'"),
        ({"run": "other", "where": "lr=0.1"}, "Give either 'run' or 'where'"),
        ({"where": "lr<<1"}, "where"),
        ({"run": "other", "baseline": RUNS[0]}, "the baseline is none of the runs"),
        ({"run": "other", "group": "seed", "axis": "metric", "x": "acc"}, "an axis that ascends"),
        ({"run": "other", "group": ""}, "query.group"),
    ],
)
def test_what_cannot_be_grouped_is_refused_in_words(client: httpx.Client, params: dict[str, Any], said: str) -> None:
    """Problem details name the parameter or the field."""
    answer = client.get("/api/v1/series", params={"metric": "acc", **params})

    assert answer.status_code == 422
    assert said in answer.text


COURSES = st.lists(
    st.lists(st.tuples(st.integers(0, 30), st.floats(-1e3, 1e3)), max_size=20, unique_by=lambda one: one[0]),
    min_size=1,
    max_size=6,
)


@given(COURSES)
def test_statistics_are_those_of_the_newest_values_at_each_place(drawn: list[list[tuple[int, float]]]) -> None:
    """The definition, run by run and place by place, is the reference."""
    found = course_statistics([course_of([x for x, _ in one], [y for _, y in one]) for one in drawn])

    for at, x in enumerate(sorted({x for one in drawn for x, _ in one})):
        reached = [dict(one) for one in drawn if one and min(one)[0] <= x <= max(one)[0]]
        values = [one[max(step for step in one if step <= x)] for one in reached]
        assert (found.x[at], found.counts[at]) == (x, len(values))
        assert found.mean[at] == pytest.approx(np.mean(values), abs=1e-9)
        assert (found.least[at], found.greatest[at]) == (min(values), max(values))
        if len(values) > 1:
            assert found.deviation[at] == pytest.approx(np.std(values, ddof=1), abs=1e-9)


def test_statistics_of_the_largest_numbers_are_finite() -> None:
    """Neither differences nor squares on the way to them overflow."""
    found = course_statistics([course_of([1], [value]) for value in (1e308, -1e308, 1.5e308)])

    assert found.mean.tolist() == pytest.approx([0.5e308])
    assert found.deviation.tolist() == pytest.approx([1e308 * np.std([1, -1, 1.5], ddof=1)])
    assert (found.least.tolist(), found.greatest.tolist()) == ([-1e308], [1.5e308])


@pytest.fixture(scope="module")
def odd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """A client of a server over runs whose settings look alike, or are no float."""
    store = tmp_path_factory.mktemp("odd")
    settings: list[dict[str, Any]] = [
        *({"lr": rate} for rate in (1, 1.0, 0.123451, 0.123452)),
        {"a": "1, b=2", "b": "3"},
        {"a": "1", "b": "2, b=3"},
        *({"a": text} for text in ("", [1, 2], "[1, 2]")),
        *({"n": number} for number in (2**63 + 1, 10**400, 3)),
    ]
    for config in settings:
        with Recorder(store, name="odd", config=config, quiet=True) as rec:
            rec.step(loss=1.0)
            rec.evaluate(eval_loss=1.0)
    with served(store) as client:
        yield client


def test_equal_numbers_are_one_group_and_near_ones_two(odd: httpx.Client) -> None:
    """In the table of runs, too, which rounds them elsewhere."""
    found = items(odd, where="lr>0", metric="loss", group="lr")
    table = odd.get("/", params={"where": "lr>0", "group": "lr"}).raise_for_status().text

    assert [(one["group"], one["n_runs"]) for one in found] == [("lr=0.123451", 1), ("lr=0.123452", 1), ("lr=1", 2)]
    assert re.findall(r"▸ ([^<]*)</a>", table) == ["0.123451", "0.123452", "1"]


def test_texts_that_hold_commas_are_not_taken_for_those_of_several_fields(odd: httpx.Client) -> None:
    """They are in quotes, as is a text that looks like a list, and an empty one."""
    found = items(odd, where="b~.", metric="loss", group=["a", "b"])
    lone = items(odd, where="-b~. -lr~. -n~.", metric="loss", group="a")

    assert {one["group"] for one in found} == {'a="1, b=2", b=3', 'a=1, b="2, b=3"'}
    assert {one["group"] for one in lone} == {'a=""', "a=[1, 2]", 'a="[1, 2]"'}


@pytest.mark.parametrize(
    "path",
    [
        "/api/v1/series?where=n>0&metric=loss&group=n",
        "/api/v1/comparisons?where=n>0&group=n",
        *(f"/api/v1/runs?columns=n&format={form}" for form in ("csv", "arrow", "parquet", "rows")),
        "/?group=n&columns=n,loss",
        "/?group=loss&columns=n&sort=n",
    ],
)
def test_integers_that_no_float_holds_are_settings_like_others(odd: httpx.Client, path: str) -> None:
    """Seeds have 64 bits, and a hash has more."""
    assert odd.get(path).status_code == 200
