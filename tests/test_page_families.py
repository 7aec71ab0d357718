"""The page of a run passes its phases to its script, and the endpoints answer what families and vectors need."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from served_page import record_phases, serving
from waiting import PATIENCE_S

from steptape import Recorder, open_run
from steptape.store.reading.plot_data import PhaseSpan, own_seconds, time_spent

BLOCKS = 96


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """A client of a server over a run with a family of 96 blocks and a vector, one with phases, and a plain one."""
    store = tmp_path_factory.mktemp("families")
    with Recorder(store, name="blocks") as rec:
        for step in range(1, 21):
            norms = {f"Gradients/block_{block}/norm": block + 1 / step for block in range(BLOCKS)}
            rec.step({"loss": 1 / step} | norms, vectors={"gradients_hist/it's": [0.0, 1.0, 2.0]})
    record_phases(store)
    with Recorder(store, name="plain") as rec:
        rec.step(loss=1.0)
    with serving(store) as url, httpx.Client(base_url=url, timeout=PATIENCE_S) as client:
        yield client


def phases_of(client: httpx.Client, run: str) -> Any:
    """Return the phases that the page of a run passes to its script."""
    text = client.get(f"/runs/{run}").raise_for_status().text
    (found,) = re.findall(r'id="phase-data" data-region="phases">(.*?)</script>', text, flags=re.DOTALL)
    return json.loads(found)


def test_a_family_of_96_blocks_is_one_request(client: httpx.Client) -> None:
    """The endpoint answers one item for each block, in the order asked."""
    names = [f"Gradients/block_{block}/norm" for block in range(BLOCKS)]
    items = client.get("/api/v1/runs/blocks/series", params={"metric": names, "points": 250}).json()["items"]

    assert [item["metric"] for item in items] == names
    assert items[7]["value"][:2] == [8.0, 7.5]


def test_the_page_passes_phases_with_their_seconds(client: httpx.Client) -> None:
    """A path of a trace is data, and cannot end the block that holds it."""
    found = phases_of(client, "phased")

    assert found["elapsed_s"] == 100.0
    assert found["phases"] == [
        {"name": "eval", "count": 2, "total_s": 20.0, "own_s": 16.0},
        {"name": "checkpoint", "count": 2, "total_s": 4.0, "own_s": 4.0},
    ]
    assert found["spans"][0] == {"name": "eval", "step": 40, "seconds": 10.0}
    assert found["traces"] == [{"name": "eval", "step": 40, "trace": "/traces/<b>40</b>.json"}]


def test_a_run_without_spans_has_no_phases(client: httpx.Client) -> None:
    """Nor has it a part for vectors."""
    assert phases_of(client, "plain") == {"elapsed_s": 0.0, "phases": [], "spans": [], "traces": []}
    assert 'id="vectors"' not in client.get("/runs/plain").text
    assert 'id="vectors"' in client.get("/runs/blocks").text


def test_vectors_are_read_by_sql_with_quotes_in_their_names(client: httpx.Client) -> None:
    """The page asks for the values of one vector in the order of the steps."""
    sql = "SELECT step, values FROM vectors WHERE name = 'gradients_hist/it''s' AND rank = 0 ORDER BY attempt, seq"
    rows = client.post("/api/v1/query", json={"sql": sql, "run": "blocks"}).json()["rows"]

    assert rows[1] == [2, [0.0, 1.0, 2.0]]


def test_the_time_of_a_span_within_another_counts_once() -> None:
    """It counts for the inner one, whichever order they come in; a span without duration takes nothing."""
    inner, outer = PhaseSpan("save", 1, 2.0, 5.0), PhaseSpan("eval", 1, 0.0, 10.0)

    for spans in ([inner, outer], [outer, inner, PhaseSpan("tick", 1, 4.0, 4.0)]):
        own = own_seconds(spans)
        assert (own["eval"], own["save"], own.get("tick", 0.0)) == (7.0, 3.0, 0.0)
    assert own_seconds([PhaseSpan("b", 1, 0.0, 3.0), PhaseSpan("a", 1, 0.0, 10.0)]) == {"b": 3.0, "a": 7.0}
    assert own_seconds([PhaseSpan("a", 1, 0.0, 4.0), PhaseSpan("b", 1, 2.0, 6.0)]) == {"a": 2.0, "b": 4.0}


def test_a_metric_of_another_kind_of_event_is_no_phase(tmp_path: Path) -> None:
    """Probes record means under names of the same form with each update."""
    with Recorder(tmp_path) as rec:
        rec.step({"Time/step_seconds": 0.5})

    assert time_spent(open_run(rec.folder).snapshot()).phases == ()
