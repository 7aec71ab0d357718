"""A series has the axis, the smoothing and the robust range that a plot needs, of one run or of several."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import httpx
import pyarrow as pa
import pytest

from api_serving import served
from steptape import Recorder


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """A client of a server over a run that counts tokens and evaluates, a plain one, and one with a metric `x`."""
    store = tmp_path_factory.mktemp("runs")
    with Recorder(store, name="counted", quiet=True) as rec:
        for step in range(1, 101):
            loss = 62.0 if step == 50 else math.nan if step == 20 else 1.0 + step % 5
            rec.step(loss=loss, num_tokens=512, progress=-1.0 / step if step != 30 else math.nan)
            if step % 10 == 0:
                rec.evaluate(eval_loss=2.0 / step)
    with Recorder(store, name="plain", quiet=True) as rec:
        rec.step(loss=1.0)
    with Recorder(store, name="named x", quiet=True) as rec:
        for step in range(1, 4):
            rec.step({"x": float(step * step), "loss": 1.0})
    with served(store) as client:
        yield client


def items(client: httpx.Client, path: str, **params: Any) -> list[Any]:
    """Return the items of a request that succeeds."""
    found: list[Any] = client.get(f"/api/v1{path}", params=params).raise_for_status().json()["items"]
    return found


def test_tokens_are_an_axis(client: httpx.Client) -> None:
    """The tokens of each update add up, at evaluations too."""
    loss, evals = items(client, "/runs/counted/series", metric=["loss", "eval_loss"], axis="tokens", to=512 * 20)

    assert loss["x"][:3] == [512, 1024, 1536]
    assert evals["x"] == [5120, 10240]


def test_another_metric_is_an_axis_matched_by_event_or_else_by_step(client: httpx.Client) -> None:
    """An evaluation is another event than the update that logged the metric on the axis."""
    loss, evals = items(client, "/runs/counted/series", metric=["loss", "eval_loss"], axis="metric", x="progress")

    assert loss["x"][:3] == [-1, -1 / 2, -1 / 3]
    assert evals["x"][:3] == [-1 / 10, -1 / 20, -1 / 40]
    assert evals["step"][:3] == [10, 20, 40]
    assert 30 not in loss["step"]


def test_bounds_on_an_axis_of_another_metric_may_be_negative(client: httpx.Client) -> None:
    """The bounds are in the units of that metric."""
    (loss,) = items(client, "/runs/counted/series", metric="loss", axis="metric", x="progress", to=-0.3)

    assert loss["step"] == [1, 2, 3]


@pytest.mark.parametrize("axis", [{"axis": "tokens"}, {"axis": "samples"}, {"axis": "metric", "x": "progress"}])
def test_of_several_runs_one_without_the_axis_is_empty(client: httpx.Client, axis: dict[str, str]) -> None:
    """It does not keep the others from being drawn."""
    found = items(client, "/series", run=["counted", "plain"], metric="loss", **axis)

    assert found[1]["step"] == []
    assert len(found[0]["step"]) == {"tokens": 100, "samples": 0, "metric": 99}[axis["axis"]]


@pytest.mark.parametrize(
    ("params", "said"),
    [
        ({"axis": "tokens"}, "does not count its tokens"),
        ({"axis": "metric", "x": "progress"}, "'progress'"),
        ({"axis": "metric"}, "belong together"),
        ({"axis": "step", "x": "loss"}, "belong together"),
        ({"smooth": "1"}, "query.smooth"),
        ({"smooth": "nan"}, "query.smooth"),
        ({"smooth": "-0.1"}, "query.smooth"),
    ],
)
def test_an_axis_or_smoothing_that_is_not_there_is_refused_in_words(
    client: httpx.Client, params: dict[str, str], said: str
) -> None:
    """The problem names the parameter, or what the run lacks."""
    answer = client.get("/api/v1/runs/plain/series", params={"metric": "loss", **params})

    assert answer.status_code == 422
    assert said in answer.json()["detail"]


@pytest.mark.parametrize("metric", ["x", "loss"])
def test_a_metric_named_x_is_a_series_and_an_axis(client: httpx.Client, metric: str) -> None:
    """No name of a metric collides with the position on the axis."""
    by_step, by_x = (
        items(client, "/runs/named x/series", metric=metric, **axis) for axis in ({}, {"axis": "metric", "x": "x"})
    )

    assert by_step[0]["x"] == [1, 2, 3]
    assert by_x[0]["x"] == [1, 4, 9]


def test_smoothing_sees_values_that_are_not_drawn(client: httpx.Client) -> None:
    """A zoom or fewer points change no smoothed value; a NaN stays a gap."""
    (whole,) = items(client, "/runs/counted/series", metric="loss", smooth=0.9)
    (part,) = items(client, "/runs/counted/series", metric="loss", smooth=0.9, points=10, **{"from": 15, "to": 60})

    of_whole = dict(zip(whole["step"], whole["smoothed"], strict=True))
    assert part["sampled"]
    assert [of_whole[step] for step in part["step"]] == part["smoothed"]
    assert of_whole[20] == "NaN"
    assert whole["smoothed"][:2] == [2.0, pytest.approx((3 + 0.9 * 2) / 1.9)]


def test_without_smoothing_there_are_no_smoothed_values(client: httpx.Client) -> None:
    """The answer is no longer than it must be."""
    assert items(client, "/runs/counted/series", metric="loss")[0]["smoothed"] is None


def test_the_robust_range_is_that_of_all_values_in_view(client: httpx.Client) -> None:
    """A spike is outside and counted, however few points are drawn."""
    (whole,) = items(client, "/runs/counted/series", metric="loss", points=10)
    (part,) = items(client, "/runs/counted/series", metric="loss", **{"from": 1, "to": 49})
    (nothing,) = items(client, "/series", run="plain", metric="eval_loss")

    assert (whole["range"], whole["outside"]) == ([1.0, 5.0], 1)
    assert (part["range"], part["outside"]) == ([1.0, 5.0], 0)
    assert (nothing["range"], nothing["outside"]) == (None, 0)


@pytest.mark.parametrize(("params", "column"), [({}, [None] * 3), ({"smooth": 0.5}, [1.0] * 3)])
def test_a_table_has_a_column_for_smoothed_values(
    client: httpx.Client, params: dict[str, float], column: list[float | None]
) -> None:
    """Its columns are the same with and without."""
    answer = client.get("/api/v1/runs/named x/series", params={"metric": "loss", "format": "arrow", **params})

    assert pa.ipc.open_stream(answer.content).read_all()["smoothed"].to_pylist() == column
