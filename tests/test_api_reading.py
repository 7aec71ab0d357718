"""Lists and series of API version 1 have filters, orders, formats, axes, windows, spikes and ETags."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from api_serving import RUN, SMALL, recorded, served

OTHERS = ("20260102T000000-bbbbbb", "20260103T000000-cccccc")

CONFIG = {
    "lr": 0.001,
    "optimizer": {"name": "AdamW", "betas": [0.9, 0.95]},
    "amp": True,
    "seed": None,
    "note": "1e-3",
    "api_key": "[redacted]",
}


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """A client of a server over three sealed runs, of 20, 5 and 10 steps."""
    store = tmp_path_factory.mktemp("runs")
    recorded(store, name="Digits", group="paper", tags=("small",), config=CONFIG)
    recorded(store, OTHERS[0], steps=5, name="digits again", group="paper", config={"lr": 1, "a__gt": "x"})
    recorded(store, OTHERS[1], steps=10, name="other")
    with served(store) as client:
        yield client


def get(client: httpx.Client, path: str, **params: Any) -> Any:
    """Return the JSON of a request that succeeds."""
    answer = client.get(f"/api/v1{path}", params=params)
    assert answer.status_code == 200, answer.text
    return json.loads(answer.text, parse_constant=pytest.fail)


def test_a_question_chooses_runs_by_configuration_and_facts(client: httpx.Client) -> None:
    """A run without the field matches nothing, unless the term is negated."""
    found = [
        {row["run_id"] for row in get(client, "/runs", where=where)["items"]}
        for where in ("lr<1 steps>5", "optimizer.name:adamw", "-lr~.", "digits -again", "started>2020 group:paper")
    ]

    assert found == [{RUN}, {RUN}, {OTHERS[1]}, {RUN}, {RUN, OTHERS[0]}]


@pytest.mark.parametrize(
    ("parameter", "text", "where", "hint"),
    [
        ("where", "steps>1 lr=<1", "where:12", "Write one operator"),
        ("where", "steps>1 lrr<1", "where:9", "Did you mean lr"),
        ("sort", "-lrr", "sort:2", "Did you mean lr"),
        ("columns", "steps,lrr", "columns:7", "Did you mean lr"),
        ("columns", "steps,", "columns:7", "Write FIELD"),
    ],
)
def test_what_is_wrong_with_a_question_is_said_with_its_place(
    client: httpx.Client, parameter: str, text: str, where: str, hint: str
) -> None:
    """The place counts characters within the parameter."""
    answer = client.get("/api/v1/runs", params={parameter: text})

    problem = answer.json()
    assert (answer.status_code, problem["code"]) == (422, "invalid-question")
    assert problem["detail"].startswith(f"{where}: ")
    assert problem["hint"].startswith(hint)


@pytest.mark.parametrize("parameter", ["status", "name", "config.lr", "steps__gt", "q"])
def test_a_parameter_that_the_list_does_not_have_is_refused(client: httpx.Client, parameter: str) -> None:
    """A filter that is misspelt would match every run."""
    answer = client.get("/api/v1/runs", params={parameter: "1"})

    assert [(error["where"], error["what"]) for error in answer.json()["errors"]] == [
        (f"query.{parameter}", "unknown parameter")
    ]


def test_a_question_holds_over_pages(client: httpx.Client) -> None:
    """The link to the next page repeats it, and a cursor is refused with another one."""
    first = client.get("/api/v1/runs", params={"where": "lr>0", "limit": 1})
    second = client.get(first.links["next"]["url"])
    other = client.get("/api/v1/runs", params={"where": "lr>5", "cursor": first.json()["next"]})

    assert [run["run_id"] for run in (*first.json()["items"], *second.json()["items"])] == [OTHERS[0], RUN]
    assert second.json()["next"] is None
    assert (other.status_code, other.json()["code"]) == (422, "invalid-cursor")


def test_columns_are_values_of_each_item(client: httpx.Client) -> None:
    """Values of the configuration as they are, null where the run lacks the field."""
    items = get(client, "/runs", columns="lr,optimizer.betas,started,amp,steps", sort="steps")["items"]

    assert [{**item["values"], "started": ...} for item in items] == [
        {"lr": 1, "optimizer.betas": None, "started": ..., "amp": None, "steps": 5},
        {"lr": None, "optimizer.betas": None, "started": ..., "amp": None, "steps": 10},
        {"lr": 0.001, "optimizer.betas": [0.9, 0.95], "started": ..., "amp": True, "steps": 20},
    ]
    assert all(item["values"]["started"] == item["started"] for item in items)


def test_metrics_choose_sort_and_fill_columns(client: httpx.Client) -> None:
    """The last, least and greatest value of each; the loss of step n is 1/n."""
    asked = {"where": "min(loss)<0.15 batch_size:32", "sort": "-loss", "columns": "loss,max(loss)"}
    page = get(client, "/runs", **asked)
    csv = client.get("/api/v1/runs", params={**asked, "format": "csv"}).text

    assert [item["values"] for item in page["items"]] == [
        {"loss": 0.1, "max(loss)": 1.0},
        {"loss": 0.05, "max(loss)": 1.0},
    ]
    assert [line.split(",")[-2:] for line in csv.splitlines()[1:]] == [["0.1", "1"], ["0.05", "1"]]


def test_tables_have_the_chosen_columns_after_their_own(client: httpx.Client) -> None:
    """A key whose values are all numbers is a column of numbers; what the table has already comes once."""
    params = {"columns": "lr,optimizer.betas,amp,steps,tag,ended", "sort": "steps"}
    answers = [client.get("/api/v1/runs", params={**params, "format": form}) for form in ("arrow", "csv", "parquet")]

    arrow = pa.ipc.open_stream(answers[0].content).read_all()
    assert arrow.column_names[-5:] == ["attempts", "lr", "optimizer.betas", "amp", "tag"]
    assert arrow["lr"].to_pylist() == [1.0, None, 0.001]
    assert arrow["optimizer.betas"].to_pylist() == [None, None, "[0.9, 0.95]"]
    assert arrow["amp"].to_pylist() == [None, None, "true"]
    assert arrow["tag"].to_pylist() == [None, None, '["small"]']
    assert arrow.schema.field("steps").type == pa.int64()
    assert answers[1].text.splitlines()[0].endswith('"lr","optimizer.betas","amp","tag"')
    assert pq.read_table(io.BytesIO(answers[2].content)).equals(arrow)


def test_fields_of_the_store_are_listed_for_completion(client: httpx.Client) -> None:
    """Facts of every run come first, then keys, those of the most runs first."""
    items = {item["name"]: item for item in get(client, "/fields")["items"]}
    about = {"kind": "run", "runs": 2, "values": []}

    assert next(iter(items)) == "name"
    assert items["group"] == about | {"name": "group", "type": "text", "values": ["paper"], "columns": ["group"]}
    assert items["lr"] == about | {"name": "lr", "kind": "config", "type": "number", "columns": ["config.lr"]}
    assert items["optimizer.name"]["values"] == ["AdamW"]


def test_fields_are_searched_by_a_part_of_their_names(client: httpx.Client) -> None:
    """Those that begin with it come first. Of a metric, three values are columns."""
    answer = get(client, "/fields", text="LO", limit=1)

    assert answer["items"][0]["name"] == "loss"
    assert answer["items"][0]["columns"] == ["metric.loss", "min(loss)", "max(loss)"]
    assert len(answer["items"]) == 1
    assert answer["found"] >= 1


def test_what_is_wrong_with_a_question_is_said_as_one_types_it(client: httpx.Client) -> None:
    """Without an answer of runs."""
    assert get(client, "/fields", where="lr<")["fault"].startswith("where:4: a value is missing")
    assert get(client, "/fields", where="lr<1")["fault"] is None


@pytest.mark.parametrize("sort", ["steps", "-steps", "name", "-group", "lr", "-lr", "-started", "id", "planned_steps"])
def test_pages_of_any_order_hold_every_run_once(client: httpx.Client, sort: str) -> None:
    """They follow each other as in one page."""
    whole = [row["run_id"] for row in get(client, "/runs", sort=sort)["items"]]
    pages, cursor = [], None
    while True:
        page = get(client, "/runs", sort=sort, limit=1, **({"cursor": cursor} if cursor else {}))
        pages += [row["run_id"] for row in page["items"]]
        cursor = page["next"]
        if cursor is None:
            break

    assert pages == whole
    assert set(whole) == {RUN, *OTHERS}


def test_runs_without_the_field_come_last(client: httpx.Client) -> None:
    """This holds for both directions."""
    orders = [[row["group"] for row in get(client, "/runs", sort=sort)["items"]] for sort in ("group", "-group")]

    assert orders == [["paper", "paper", None]] * 2


@pytest.mark.parametrize(
    ("axis", "x"),
    [("step", [1.0, 2.0]), ("epoch", [0.2, 0.4]), ("elapsed", [1.0, 2.0]), ("samples", [32.0, 64.0])],
)
def test_a_series_stands_on_the_axis_that_is_asked_for(client: httpx.Client, axis: str, x: list[float]) -> None:
    """The bounds ``from`` and ``to`` refer to the axis, too."""
    whole = get(client, f"/runs/{RUN}/series", metric="loss", axis=axis)["items"][0]
    part = get(client, f"/runs/{RUN}/series", metric="loss", axis=axis, **{"from": x[1], "to": x[1]})["items"][0]

    assert (whole["axis"], whole["x"][:2]) == (axis, x)
    assert (part["x"], part["step"]) == ([x[1]], [2])


def test_series_of_several_runs_come_in_one_answer(client: httpx.Client) -> None:
    """Items are ordered by run; a metric that a run lacks is an empty item."""
    items = get(client, "/series", run=[OTHERS[0], "Digits"], metric=["loss", "nothing"])["items"]

    assert [(item["run_id"], item["metric"], item["n_raw"]) for item in items] == [
        (OTHERS[0], "loss", 5),
        (OTHERS[0], "nothing", 0),
        (RUN, "loss", 20),
        (RUN, "nothing", 0),
    ]


def test_windows_are_what_rules_see(client: httpx.Client) -> None:
    """Windows hold the last values, the newest included."""
    item = get(client, f"/runs/{RUN}/windows", metric="loss", n=2)["items"][0]

    assert item["mean"][:3] == [1.0, 0.75, pytest.approx((1 / 2 + 1 / 3) / 2)]
    assert (item["n_raw"], item["std"][0]) == (20, 0.0)


def test_the_samples_around_a_spike_are_ranked(client: httpx.Client) -> None:
    """They are ranked by their push of the loss above normal; an unknown step gives 404."""
    items = get(client, f"/runs/{RUN}/samples/spike", step=10, radius=1, top=2)["items"]

    assert [item["loss"] for item in items] == [0.5, 0.5]
    assert items[0]["seen"] == 9
    assert client.get(f"/api/v1/runs/{RUN}/samples/spike", params={"step": 99}).json()["code"] == "step-not-found"


OF_A_RUN = ("series?metric=loss", "windows?metric=loss", "events", "samples", "decisions", "annotations", "policies")
LISTS = ("/runs", "/policies", "/series?run=Digits&metric=loss", *(f"/runs/{RUN}/{part}" for part in OF_A_RUN))


@pytest.mark.parametrize("path", LISTS)
def test_every_list_comes_in_every_form(client: httpx.Client, path: str) -> None:
    """Each format has the same number of rows, and a trailer ends NDJSON."""
    url = f"/api/v1{path}{'&' if '?' in path else '?'}format="
    answers = {form: client.get(url + form) for form in ("json", "ndjson", "csv", "arrow", "parquet")}

    assert {answer.status_code for answer in answers.values()} == {200}
    tables = [
        pa.ipc.open_stream(answers["arrow"].content).read_all(),
        pq.read_table(io.BytesIO(answers["parquet"].content)),
    ]
    assert tables[0].num_rows == tables[1].num_rows
    *rows, last = [json.loads(line) for line in answers["ndjson"].text.splitlines()]
    items = [row for row in rows if row.get("event") != "plan"]
    assert items == answers["json"].json()["items"]
    assert last["trailer"]["items"] == len(items)
    assert tables[0].column_names == [name.strip('"') for name in answers["csv"].text.splitlines()[0].split(",")]


@pytest.mark.parametrize(
    ("accept", "media_type"),
    [
        ("*/*", "application/json"),
        ("text/csv", "text/csv; charset=utf-8"),
        ("text/*;q=0.5, application/x-ndjson", "application/x-ndjson"),
        ("application/vnd.apache.arrow.stream", "application/vnd.apache.arrow.stream"),
        ("text/html, application/json;q=0.9", "application/json"),
        ("image/png", "application/problem+json"),
    ],
)
def test_a_client_gets_what_it_accepts_best(client: httpx.Client, accept: str, media_type: str) -> None:
    """Otherwise the answer lists the available formats."""
    answer = client.get("/api/v1/runs", headers={"Accept": accept})

    assert answer.headers["content-type"] == media_type


def test_the_next_page_is_linked(client: httpx.Client) -> None:
    """The link exists in every format, because a table has no place for a cursor."""
    answer = client.get("/api/v1/runs", params={"limit": 2, "format": "csv"})
    following = client.get(answer.headers["link"].split(">")[0][1:])

    assert len(following.text.splitlines()) == 2


@pytest.mark.parametrize("part", ["", "/series?metric=loss", "/events", "/samples", "/decisions", "/policies"])
def test_what_a_client_has_of_a_sealed_run_is_not_sent_again(client: httpx.Client, part: str) -> None:
    """The answer is 304 without a body; another format or query gets another answer."""
    path = f"/api/v1/runs/{RUN}{part}"
    etag = client.get(path).headers["etag"]

    again = client.get(path, headers={"If-None-Match": etag})
    other = client.get(path, headers={"If-None-Match": etag, "Accept": "text/csv, */*;q=0.1"})

    assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", etag)
    assert other.status_code == 200


def test_a_head_is_a_get_without_its_body(client: httpx.Client) -> None:
    """The headers are the same; an endless stream ends at once."""
    got, head = client.get("/api/v1/runs"), client.head("/api/v1/runs")

    assert (head.status_code, head.content) == (200, b"")
    assert head.headers["content-length"] == got.headers["content-length"]
    assert client.head(f"/api/v1/runs/{RUN}/tail").status_code == 200


def test_the_server_says_what_it_is_and_what_it_did(client: httpx.Client) -> None:
    """These are ``/version``, ``/readyz`` and ``/metrics``."""
    version = client.get("/version").json()
    metrics = client.get("/metrics")

    assert (version["api"], version["event_format"]) == ("1", 7)
    assert 'steptape_http_requests_total{method="GET",route="/version",status="200"}' in metrics.text
    assert 'steptape_runs{status="completed"} 3' in metrics.text
    assert client.get("/readyz").json() == {"status": "ready", "runs": 3}


def test_token_losses_are_shown_where_there_are_any(client: httpx.Client) -> None:
    """The value is null elsewhere."""
    item = get(client, f"/runs/{RUN}/samples", limit=1)["items"][0]

    assert item["token_losses"] is None
    assert not math.isnan(item["loss"])


def test_a_folder_of_policies_can_be_asked_by_name(tmp_path: Path) -> None:
    """The folder adds to the shipped policies; one that does not load has its reason, without a server path."""
    store, folder = tmp_path / "runs", tmp_path / "policies"
    store.mkdir()
    folder.mkdir()
    (folder / "mine.yaml").write_text("controllers: [{name: c, triggers: [on_log], rule: loss > 1}]\n")
    (folder / "wrong.yaml").write_text("controllers: [{}]\n")
    with served(store, policies_path=folder) as client:
        rows = {row["name"]: row for row in get(client, "/policies")["items"]}
        detail = get(client, "/policies/mine")

    assert (rows["mine"]["origin"], rows["loss_spike"]["origin"]) == ("folder", "shipped")
    assert rows["wrong"]["digest"] is None
    assert str(tmp_path) not in json.dumps(rows)
    assert detail["text"].startswith("controllers:")


@pytest.mark.parametrize(
    "path", [f"/runs/{RUN}/series?metric=loss&metric=batch_size", f"/series?run={RUN}&run=b&metric=loss"]
)
def test_the_values_of_one_answer_have_a_limit(tmp_path: Path, path: str) -> None:
    """The limit covers all series together; fewer points fit."""
    recorded(tmp_path, name="a")
    recorded(tmp_path, OTHERS[0], name="b")
    with served(tmp_path, limits=replace(SMALL, series_values=39)) as client:
        whole = client.get(f"/api/v1{path}")
        fewer = client.get(f"/api/v1{path}&points=8")

    assert (whole.status_code, whole.json()["code"]) == (422, "invalid-request")
    assert fewer.status_code == 200
