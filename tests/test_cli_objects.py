"""Commands and the server read a store in object storage as the folder that it was pushed from."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from command_line import call
from object_storage import Place

from api_serving import ended, served
from steptape import Recorder, load_policy

POLICY = """
params: {limit: 2.0}
controllers:
  - {name: stop, triggers: [on_step_end], rule: loss > limit, operations: [hfcontrols.should_training_stop]}
"""


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of runs of two groups, with rules, vectors and samples."""
    folder = tmp_path_factory.mktemp("objects")
    (folder / "policy.yaml").write_text(POLICY)
    for number in range(6):
        about: dict[str, Any] = {"run_id": f"run-{number}", "name": f"n{number}", "group": "a" if number % 2 else "b"}
        about |= {"rules": load_policy(folder / "policy.yaml")} if number == 0 else {}
        with Recorder(folder / "runs", quiet=True, **about) as rec:
            for step in range(1, 21):
                control = rec.step(loss=3.0 / step + number / 50, samples=[1.0, 2.0], sample_ids=[step, step + 1])
                if step % 5 == 0:
                    rec.evaluate(eval_loss=1.0 / step + number / 9)
                if control.should_stop:
                    break
        rec.close(seal=True)
    return folder / "runs"


@pytest.fixture
def there(store: Path, bucket: Place) -> Place:
    """The same store in object storage."""
    assert call("push", store, bucket.address).returncode == 0
    return bucket


def test_every_reading_command_prints_the_same(store: Path, there: Place, tmp_path: Path) -> None:
    """Only the name of the store differs."""
    policy, risk = store.parent / "policy.yaml", ["--risk", "regret > 10%", "--at-most", "90%"]
    commands: list[list[object]] = [
        ["runs", "--store", "STORE"],
        ["runs", "--store", "STORE", "--json"],
        ["show", "n3", "--store", "STORE"],
        ["show", "STORE/run-3"],
        ["query", "SELECT run_id, step, loss FROM steps ORDER BY ALL LIMIT 30", "--store", "STORE"],
        ["query", "SELECT * FROM spiking_samples(3) LIMIT 3", "--store", "STORE"],
        ["samples", "n1", "--step", "3", "--store", "STORE"],
        ["export", "n1", "--store", "STORE"],
        ["tail", "n1", "--store", "STORE"],
        ["replay", policy, "n2", "--store", "STORE"],
        ["verify", "--store", "STORE"],
        ["check", policy, "--store", "STORE"],
        ["health", "n2", "--store", "STORE"],
        ["diff", policy, policy, "--set-new", "limit=1", "--store", "STORE"],
        ["backtest", policy, "--store", "STORE", "--json"],
        ["sweep", policy, "--set", "limit=1,2,3", "--store", "STORE", "--json"],
        ["certify", policy, "--set", "limit=1,2,3", *risk, "--store", "STORE", "--json"],
        ["compare", "--store", "STORE", "a", "b"],
        ["doctor", "--store", "STORE"],
        ["doctor", "STORE/run-2", "--training"],
        ["query", "SELECT count(*) AS n FROM steps", "STORE/run-2"],
    ]
    timed = re.compile(r"\d[\d.,]* (ms|s|events/s)\b|\"(took_s|elapsed_s|events_per_s)\": [\d.e-]+")
    for command in commands:
        printed = []
        for place in (str(store), there.address):
            result = call(*(str(word).replace("STORE", place) for word in command))
            printed.append((result.returncode, timed.sub("-", result.stdout + result.stderr).replace(place, "STORE")))
        assert printed[0] == printed[1], command
        assert printed[0][0] != 2 or "usage" not in printed[0][1].lower(), printed[0]
    assert not (tmp_path / "runs").exists()


def test_commands_that_write_refuse(there: Place) -> None:
    """The message says where to write instead."""
    keys = there.names()
    for command in (
        ["delete", "n1", "--store", there.address, "--yes"],
        ["delete", f"{there.address}/run-1", "--yes"],
        ["delete", "--keep-last", "1", "--store", there.address, "--yes"],
        ["seal", "--store", there.address],
        ["import", "auto", there.name, "--store", there.address],
        ["demo", "--store", there.address],
        ["ask", "stop", "n1", "--store", there.address],
    ):
        result = call(*command)
        assert result.returncode == 2, result
        assert "object storage is only read" in result.stderr or "not running" in result.stderr

    assert there.names() == keys


def test_doctor_names_objects(there: Place) -> None:
    """A damaged manifest, a lost part, a false part and a damaged file in a manifest; no path of the cache."""
    runs = ("run-1", "run-2", "run-3")
    lost, false = (next(key for key in there.names() if f"/{run}/" in key and "events-" in key) for run in runs[:2])
    there.client.delete_object(Bucket=there.name, Key=f"runs/{lost}")
    there.put(false, there.get(false)[:-1] + b"x")
    manifest = json.loads(there.get("runs/run-3.json"))
    manifest["files"]["digests.json"] = "{"
    there.put("runs/run-3.json", json.dumps(manifest).encode())
    there.put("runs/run-4.json", b"{")
    found = call("doctor", "--store", there.address, "--json")
    faults = [json.loads(line) for line in found.stdout.splitlines()]

    assert found.returncode == 1
    keys = ("runs/run-4.json", lost, false, "runs/run-3.json")
    assert [fault["where"] for fault in faults] == [f"{there.address}/{key}" for key in keys]
    assert "/objects/" not in found.stdout
    assert all("ush" in fault["fix"] for fault in faults)


def test_a_store_that_is_not_there_is_said(bucket: Place) -> None:
    """An empty prefix has no runs; a missing bucket is an error."""
    empty, missing = (call("runs", "--store", name) for name in (bucket.address, "s3://nowhere-at-all/runs"))

    assert empty.stdout.startswith(f"no runs in {bucket.address}: ")
    assert (missing.returncode, "there is no such bucket" in missing.stderr) == (2, True)


def test_the_server_answers_the_same(store: Path, there: Place) -> None:
    """Pages, lists, series, SQL and jobs: workers without credentials get their parts from the server."""
    paths = ("runs", "runs/n3", "runs/n3/series?metric=loss", "runs/n3/samples?step=2", "runs/n3/decisions")
    answers = []
    for place in (store, Path(there.address)):
        with served(place) as client:
            pages = [client.get(path).status_code for path in ("/", "/runs/n3")]
            found = [client.get(f"/api/v1/{path}").raise_for_status().json() for path in paths]
            sql = ["SELECT max(loss) AS n FROM steps", "SELECT max(loss) AS n FROM steps WHERE run_id = 'run-2'"]
            rows = [client.post("/api/v1/query", json={"sql": text}).raise_for_status().json()["rows"] for text in sql]
            asked = {"policy_text": POLICY, "runs": ["n1", "n2"]}
            job = ended(client, client.post("/api/v1/backtests", json=asked).raise_for_status().json())
            result = client.get(job["result"]).raise_for_status().json()
            answers.append((pages, found, rows, result["runs"]))

    assert answers[0] == answers[1]
    assert answers[0][0] == [200, 200]


def test_the_server_writes_nothing(there: Place) -> None:
    """Notes and pushed runs are refused."""
    keys = there.names()
    with served(Path(there.address)) as client:
        note = client.post("/api/v1/runs/n3/annotations", json={"text": "x"})
        papers = client.put("/api/v1/intake/run-9/papers", json={"run": "{}", "columns": [], "notes": []})

    assert (note.status_code, "only read" in note.text) == (503, True)
    assert papers.status_code in (422, 503)
    assert there.names() == keys
