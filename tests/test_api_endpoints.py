"""Every endpoint returns the content of a store as JSON over real HTTP."""

from __future__ import annotations

import json
import math
import re
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from api_serving import PATIENT, served
from steptape import open_run
from steptape.api.app import OPENAPI_FILE
from steptape.store.event_json import event_to_line
from steptape.store.events import SampleLosses
from steptape.store.journal.writer import JournalWriter
from steptape.store.parquet.sealing import seal
from steptape.store.plan import Plan
from steptape.store.run_info import Attempt, PolicyRecord, RunInfo, write_run_info

DIGITS = "20260101T000000-aaaaaa"
LIVE = "20260102T000000-bbbbbb"
EMPTY = "20260103T000000-cccccc"

START_NS = 1_750_000_000_000_000_000
POLICY = PolicyRecord("sha256:1234", "policy.yaml", "controllers: []\n", {"spike": 2.0}, 1)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A sealed run of two attempts and two ranks, a live run, an empty run, and entries that are not runs."""
    store = tmp_path_factory.mktemp("runs")
    (store / "no-run").mkdir()
    (store / "notes.txt").write_text("not a run either")
    _begin(
        store,
        RunInfo(
            DIGITS,
            "Digits MLP",
            (
                Attempt(0, "running", START_NS, plan=Plan(total_steps=12)),
                Attempt(
                    1,
                    "stopped",
                    START_NS + 10**10,
                    START_NS + 2 * 10**10,
                    Plan(total_steps=12),
                    POLICY,
                    {"host": "h"},
                    10,
                    parent=0,
                    parent_seq=10**6,
                    from_step=10**6,
                ),
            ),
            group="paper",
            tags=("baseline", "small"),
            config={"lr": 0.1, "layers": [64, 10]},
        ),
    )
    _record_digits(store / DIGITS)
    seal(store / DIGITS)
    _begin(store, RunInfo(LIVE, "live one", (Attempt(0, "running", START_NS + 10**11),)))
    live = JournalWriter(store / LIVE, run_id=LIVE)
    _append(live, "train_begin", 0)
    _begin(store, RunInfo(EMPTY, "empty", (Attempt(0, "running", START_NS + 2 * 10**11),)))
    yield store
    live.close()


@pytest.fixture(scope="module")
def client(store: Path) -> Iterator[httpx.Client]:
    """A client of a real server on loopback."""
    with served(store, limits=PATIENT) as client:
        yield client


def get(client: httpx.Client, path: str, **params: Any) -> dict[str, Any]:
    """Return the JSON of a request that succeeds."""
    answer = client.get(f"/api/v1{path}", params=params).raise_for_status()
    document: dict[str, Any] = json.loads(answer.content, parse_constant=pytest.fail)
    return document


def _begin(store: Path, info: RunInfo) -> None:
    (store / info.run_id).mkdir()
    write_run_info(store / info.run_id, info)


def _append(writer: JournalWriter, kind: str, step: int, attrs: dict[str, Any] | None = None, **metrics: float) -> int:
    return writer.append(
        kind,
        tuple(metrics),
        tuple(metrics.values()),
        step=step,
        epoch=step / 5,
        time_ns=START_NS + step,
        elapsed_ns=step * 1000,
        attrs=json.dumps(attrs).encode() if attrs else b"",
        samples=SampleLosses(
            struct.pack("<3f", step, math.nan if step == 7 else 0.5, 0.25), struct.pack("<3q", 7, 8, step), 1
        )
        if kind == "step_end"
        else None,
    )


def _record_digits(folder: Path) -> None:
    first = JournalWriter(folder, run_id=DIGITS)
    _append(first, "train_begin", 0, {"big": 2**70})
    for step in range(1, 5):
        _append(first, "step_end", step, loss=math.nan if step == 3 else 1.0 / step, Loss=float(step))
    first.close()
    second = JournalWriter(folder, run_id=DIGITS, attempt=1)
    for step in range(3, 11):
        fired_by = _append(second, "step_end", step, loss=math.inf if step == 8 else 1.0 / step, Loss=float(step))
        if step % 2 == 0:
            _append(second, "log", step, loss=1.0 / step, epoch=step / 5)
        if step == 5:
            about = {"controller": "sick", "trigger": "on_step_end", "event_seq": fired_by}
            _append(second, "rule_error", step, about | {"error": "policy.yaml:3:5: division by zero"})
    _append(second, "evaluate", 10, eval_loss=0.5)
    _append(second, "save", 10, {"path": "step-10.pt", "size_bytes": 10})
    _append(
        second,
        "decision",
        10,
        {
            "controller": "diverged",
            "trigger": "on_step_end",
            "event_seq": fired_by,
            "operations": ["hfcontrols.should_training_stop"],
            "values": {"loss": "Infinity", "mean(loss, 5)": 0.25},
            "mode": "shadow",
            "severity": "critical",
            "message": "the loss is infinite",
        },
    )
    second.close()
    other_rank = JournalWriter(folder, run_id=DIGITS, rank=1)
    _append(other_rank, "step_end", 1, loss=9.0)
    other_rank.close()


def test_health_says_that_the_server_runs(client: httpx.Client) -> None:
    """The path is outside the versioned prefix, where probes look for it."""
    answer = client.get("/healthz")

    assert (answer.status_code, answer.json()) == (200, {"status": "ok"})


def test_runs_come_newest_first(client: httpx.Client) -> None:
    """Live, empty and finished runs are listed; folders that are not runs are skipped."""
    page = get(client, "/runs")

    assert [(row["run_id"], row["status"]) for row in page["items"]] == [
        (EMPTY, "crashed"),
        (LIVE, "stalled"),
        (DIGITS, "stopped"),
    ]
    assert (page["next"], page["problems"]) == (None, [])


def test_a_run_is_one_row(client: httpx.Client) -> None:
    """A row has the columns of the ``runs`` view; times carry their zone."""
    row = get(client, "/runs", where="name:digits")["items"][0]

    assert row == {
        "run_id": DIGITS,
        "name": "Digits MLP",
        "group": "paper",
        "tags": ["baseline", "small"],
        "archived": False,
        "status": "stopped",
        "started": "2025-06-15T15:06:40Z",
        "ended": "2025-06-15T15:07:00Z",
        "duration_s": pytest.approx(10.0),
        "paused_s": pytest.approx(10.0),
        "steps": 10,
        "planned_steps": 12,
        "attempts": 2,
        "last_event": "2025-06-15T15:06:40Z",
        "steps_per_s": pytest.approx(1e6),
        "eta_s": None,
        "late": False,
        "policy_digest": "sha256:1234",
        "source": None,
        "values": {},
    }


@pytest.mark.parametrize(
    ("where", "found"),
    [("status:stalled", [LIVE]), ("tag:small", [DIGITS]), ("tag:smal", []), ("name:e status:crashed", [EMPTY])],
)
def test_a_question_chooses_runs(client: httpx.Client, where: str, found: list[str]) -> None:
    """The language is that of every command with ``--where``."""
    page = get(client, "/runs", where=where)

    assert [row["run_id"] for row in page["items"]] == found


def test_a_run_says_all_that_is_known_of_it(client: httpx.Client) -> None:
    """The answer holds configuration, attempts with their policies, and counts of the log."""
    run = get(client, f"/runs/{DIGITS}")

    assert run["config"] == {"lr": 0.1, "layers": [64, 10]}
    assert [attempt["status"] for attempt in run["attempts"]] == ["crashed", "stopped"]
    assert run["attempts"][0]["policy"] is None
    assert run["attempts"][1]["policy"] == {
        "digest": "sha256:1234",
        "source": "policy.yaml",
        "text": "controllers: []\n",
        "params": {"spike": 2.0},
        "semantics_version": 1,
    }
    assert [(metric["name"], metric["kinds"], metric["count"]) for metric in run["metrics"]] == [
        ("loss", ["step_end", "log"], 13),
        ("Loss", ["step_end"], 12),
        ("epoch", ["log"], 4),
        ("eval_loss", ["evaluate"], 1),
    ]
    assert run["events"] == {
        "train_begin": 1,
        "step_end": 13,
        "log": 4,
        "rule_error": 1,
        "evaluate": 1,
        "save": 1,
        "decision": 1,
    }
    assert (run["ranks"], run["started"]) == ([0, 1], "2025-06-15T15:06:40Z")


def test_a_run_is_found_by_a_name_that_it_alone_has(client: httpx.Client) -> None:
    """The lookup is that of the command line."""
    run = get(client, "/runs/Digits%20MLP")

    assert run["run_id"] == DIGITS


def test_an_empty_run_answers_everywhere(client: httpx.Client) -> None:
    """A run that died before its first event has empty lists."""
    run = get(client, f"/runs/{EMPTY}")

    assert (run["metrics"], run["events"], run["ranks"], run["steps"]) == ([], {}, [], 0)
    for path in ("events", "samples", "samples?top=5", "decisions"):
        page = get(client, f"/runs/{EMPTY}/{path}")
        assert (page["items"], page["next"]) == ([], None)


def test_one_item_comes_for_each_metric_and_kind(client: httpx.Client) -> None:
    """A metric name in several kinds of events gives several series."""
    items = get(client, f"/runs/{DIGITS}/series", metric=["eval_loss", "loss"])["items"]

    assert [(item["metric"], item["kind"], item["n_raw"], item["sampled"]) for item in items] == [
        ("eval_loss", "evaluate", 1, False),
        ("loss", "step_end", 12, False),
        ("loss", "log", 4, False),
    ]


def test_a_series_stands_on_its_clocks(client: httpx.Client) -> None:
    """A series covers one rank and all attempts in order between two steps; non-finite values are given by name."""
    item = get(client, f"/runs/{DIGITS}/series", metric="loss", kind="step_end", **{"from": 3, "to": 8})["items"][0]

    assert item == {
        "run_id": DIGITS,
        "metric": "loss",
        "kind": "step_end",
        "n_raw": 8,
        "sampled": False,
        "attempt": [0, 0, 1, 1, 1, 1, 1, 1],
        "step": [3, 4, 3, 4, 5, 6, 7, 8],
        "epoch": [0.6, 0.8, 0.6, 0.8, 1.0, 1.2, 1.4, 1.6],
        "elapsed_ns": [3000, 4000, 3000, 4000, 5000, 6000, 7000, 8000],
        "axis": "step",
        "x": [3.0, 4.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0],
        "value": ["NaN", 0.25, 1 / 3, 0.25, 0.2, 1 / 6, 1 / 7, "Infinity"],
        "smoothed": None,
        "range": [1 / 7, 1 / 3],
        "outside": 0,
    }


@pytest.mark.parametrize(("metric", "first"), [("loss", 1.0), ("Loss", 1.0), ("epoch", 0.8)])
def test_a_metric_is_named_as_it_was_logged(client: httpx.Client, metric: str, first: float) -> None:
    """The column's name does not matter: metrics may differ by case only or share an envelope column's name."""
    item = get(client, f"/runs/{DIGITS}/series", metric=metric)["items"][0]

    assert item["value"][0] == first


def test_a_long_series_is_downsampled_and_says_so(client: httpx.Client) -> None:
    """The extremes and the NaN stay."""
    item = get(client, f"/runs/{DIGITS}/series", metric="loss", kind="step_end", points=7)["items"][0]

    assert (item["n_raw"], item["sampled"]) == (12, True)
    assert {1.0, 0.1, "NaN", "Infinity"} <= set(item["value"])
    assert len(item["value"]) == len(item["step"]) <= 7


def test_a_series_of_another_rank_is_asked_for(client: httpx.Client) -> None:
    """Ranks never mix; a metric that the rank lacks is an empty series."""
    items = get(client, f"/runs/{DIGITS}/series", metric=["loss", "Loss"], rank=1)["items"]

    assert [(item["kind"], item["value"]) for item in items] == [("step_end", [9.0]), (None, [])]


def test_events_are_those_of_the_json_lines(client: httpx.Client, store: Path) -> None:
    """The events equal the exported JSON lines, integers beyond 2**53 included, plus a ``rolled_back`` flag."""
    items = get(client, f"/runs/{DIGITS}/events")["items"]
    lines = [json.loads(event_to_line(event)) for event in open_run(store / DIGITS).events()]

    assert items == [line | {"rolled_back": False} for line in lines]
    assert items[0]["attrs"] == {"big": 2**70}


def test_events_of_one_kind_are_asked_for(client: httpx.Client) -> None:
    """Attempt and lower bound of ``seq`` combine with the kind."""
    items = get(client, f"/runs/{DIGITS}/events", kind="log", attempt=1, after=5)["items"]

    assert [item["step"] for item in items] == [6, 8, 10]


def test_events_of_another_rank_are_asked_for(client: httpx.Client) -> None:
    """The deciding rank is the default."""
    items = get(client, f"/runs/{DIGITS}/events", rank=1)["items"]

    assert [(item["rank"], item["metrics"]) for item in items] == [(1, {"loss": 9.0})]


def test_the_highest_sample_losses_come_first(client: httpx.Client) -> None:
    """NaN sorts above all numbers."""
    items = get(client, f"/runs/{DIGITS}/samples", top=3)["items"]

    assert [(item["step"], item["sample_id"], item["loss"]) for item in items] == [
        (7, "8", "NaN"),
        (10, "7", 10.0),
        (9, "7", 9.0),
    ]


def test_samples_of_a_step_come_in_the_order_of_the_batch(client: httpx.Client) -> None:
    """Samples are ordered by attempt, then rank."""
    items = get(client, f"/runs/{DIGITS}/samples", step=1)["items"]

    assert [(item["rank"], item["position"], item["sample_id"], item["loss"]) for item in items] == [
        (rank, position, sample_id, loss)
        for rank in (0, 1)
        for position, (sample_id, loss) in enumerate([("7", 1.0), ("8", 0.5), ("1", 0.25)])
    ]


def test_the_smaller_of_top_and_limit_counts(client: httpx.Client) -> None:
    """Neither is exceeded."""
    pages = [get(client, f"/runs/{DIGITS}/samples", top=top, limit=limit) for top, limit in ((2, 5), (5, 2))]

    assert [(len(page["items"]), page["next"]) for page in pages] == [(2, None), (2, None)]


def test_decisions_say_what_made_them_fire(client: httpx.Client) -> None:
    """Operations are a list, values an object; rule errors are in the same list."""
    page = get(client, f"/runs/{DIGITS}/decisions")

    place = {"attempt": 1, "rank": 0, "time_ns": START_NS + 10, "elapsed_ns": 10_000}
    assert page["items"] == [
        place
        | {
            "kind": "decision",
            "seq": 15,
            "event_seq": 11,
            "step": 10,
            "epoch": 2.0,
            "controller": "diverged",
            "trigger": "on_step_end",
            "operations": ["hfcontrols.should_training_stop"],
            "values": {"loss": "Infinity", "mean(loss, 5)": 0.25},
            "mode": "shadow",
            "severity": "critical",
            "message": "the loss is infinite",
            "member": None,
            "stage": None,
        }
    ]
    assert [(error["controller"], error["step"], error["error"]) for error in page["rule_errors"]] == [
        ("sick", 5, "policy.yaml:3:5: division by zero")
    ]


def test_decisions_are_the_rows_of_the_decisions_view(client: httpx.Client, store: Path) -> None:
    """HTTP and SQL return the same rows."""
    items = get(client, f"/runs/{DIGITS}/decisions")["items"]

    rows = open_run(store / DIGITS).decisions().to_pylist()
    assert items == [
        {key: value for key, value in row.items() if key != "run_id"}
        | {"kind": "decision", "values": json.loads(row["values"])}
        for row in rows
    ]


def test_the_newest_event_of_a_live_run_is_seen_at_once(tmp_path: Path) -> None:
    """Each request reads events, series, samples and steps anew."""
    _begin(tmp_path, RunInfo(LIVE, "live", (Attempt(0, "running", START_NS),)))
    writer = JournalWriter(tmp_path / LIVE, run_id=LIVE)
    seen: list[tuple[int, ...]] = []

    with served(tmp_path, limits=PATIENT) as live:
        for step in (1, 2, 3):
            _append(writer, "step_end", step, loss=1.0)
            events = get(live, f"/runs/{LIVE}/events")["items"]
            series = get(live, f"/runs/{LIVE}/series", metric="loss")["items"][0]
            samples = get(live, f"/runs/{LIVE}/samples")["items"]
            seen.append((len(events), len(series["value"]), len(samples), get(live, f"/runs/{LIVE}")["steps"]))

    assert seen == [(1, 1, 3, 1), (2, 2, 6, 2), (3, 3, 9, 3)]


def test_the_document_is_the_one_that_was_agreed_upon(client: httpx.Client) -> None:
    """A change of the interface must update the file: ``python -m steptape.api.app``."""
    document = client.get("/api/v1/openapi.json").json()

    assert document == json.loads(OPENAPI_FILE.read_text())


def test_the_document_describes_every_answer(client: httpx.Client) -> None:
    """A success has a schema, a failure is problem details."""
    document = client.get("/api/v1/openapi.json").json()

    operations = [operation for path in document["paths"].values() for operation in path.values()]
    responses = [(status, response) for operation in operations for status, response in operation["responses"].items()]
    assert len(operations) == 46
    assert all(response["content"] for status, response in responses if status < "300")
    assert all(
        response["content"] == {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}}
        for status, response in responses
        if status >= "400"
    )


def test_every_parameter_is_described(client: httpx.Client) -> None:
    """A client can be written from the document alone."""
    document = client.get("/api/v1/openapi.json").json()

    operations = [operation for path in document["paths"].values() for operation in path.values()]
    parameters = [p for operation in operations for p in operation.get("parameters", [])]
    assert [p["name"] for p in parameters if not p.get("description")] == []


def test_no_page_loads_anything_from_another_host(client: httpx.Client) -> None:
    """FastAPI's default documentation pages would load from another host; they are off, and ``/docs`` is our own."""
    answers = [client.get(path).status_code for path in ("/redoc", "/docs/oauth2-redirect", "/openapi.json")]

    assert answers == [404, 404, 404]
    assert re.findall(r"""(?:src|href)=["']?(?:https?:)?//""", client.get("/docs").text) == []
