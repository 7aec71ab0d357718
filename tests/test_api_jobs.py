"""The API runs backtests, sweeps, recommendations and verifications as jobs, with the answers of the commands."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from command_line import call
from waiting import until

from api_serving import RUN, SMALL, begin, ended, patiently, recorded, served, step
from steptape import Recorder, backtest, open_store
from steptape.api.workers.job_requests import JobOrder
from steptape.api.workers.job_worker import run_job
from steptape.replay.backtests.baselines import BASELINES
from steptape.replay.reports.json_report import report_json
from steptape.replay.reports.summary import summarize
from steptape.rules.certificate import Certificate
from steptape.rules.policy_file.policy import load_policy, parse_policy
from steptape.store import own_process
from steptape.store.errors import RunNotFound

POLICY = """
params: {least: 0.1}
controllers:
  - name: low
    triggers: [on_step_end]
    rule: loss < least
    operations: [hfcontrols.should_training_stop]
"""

WAITING = POLICY.replace("0.1}", "0.1, wait: 2}") + "    patience: {patience_threshold: wait}\n"


@pytest.fixture
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine the limit by the clock would end a process before it has spent its processor time."""
    monkeypatch.setattr(own_process, "WALL_TIMES", 1000)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A store with two sealed runs."""
    recorded(tmp_path / "runs")
    recorded(tmp_path / "runs", f"{RUN[:-1]}b", steps=5)
    return tmp_path / "runs"


@pytest.fixture
def client(store: Path) -> Iterator[httpx.Client]:
    """A client of a server over the store."""
    with served(store) as client:
        yield client


@pytest.fixture(scope="module")
def idle(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """A client of one server for all tests that start no job."""
    store = tmp_path_factory.mktemp("idle")
    recorded(store)
    with served(store) as client:
        yield client


def start(client: httpx.Client, kind: str, **body: Any) -> dict[str, Any]:
    """Send a request that starts a job and return the job."""
    answer = client.post(f"/api/v1/{kind}", json=body)
    assert answer.status_code == 202, answer.text
    job: dict[str, Any] = answer.json()
    assert answer.headers["location"] == f"/api/v1/jobs/{job['id']}"
    return job


def test_a_backtest_is_what_the_command_says(client: httpx.Client, store: Path) -> None:
    """The report is a self-contained page, and repeating the request returns the same job."""
    asked: dict[str, Any] = {"policy_text": POLICY, "coverage": True, "baselines": ["never"], "family": "run"}
    job = ended(client, start(client, "backtests", **asked))
    result = client.get(job["result"])
    page = client.get(job["report"])

    policy = parse_policy(POLICY, source="policy")
    runs = [open_store(store).run(name) for name in (RUN, f"{RUN[:-1]}b")]
    expected = report_json(
        summarize(backtest(policy, runs, baselines=[BASELINES["never"]], with_coverage=True, family="run"))
    )
    assert (job["status"], job["runs_done"]) == ("done", 2)
    assert result.json()["runs"] == json.loads(json.dumps(expected["runs"]))
    assert page.headers["content-type"].startswith("text/html")
    assert "default-src 'none'" in page.headers["content-security-policy"]
    assert start(client, "backtests", **asked)["id"] == job["id"]
    assert client.get(job["result"], headers={"If-None-Match": result.headers["etag"]}).status_code == 304


def test_a_backtest_takes_a_rule_as_a_sentence(client: httpx.Client) -> None:
    """Its result is that of the full form."""
    full = load_policy("stop if loss < 0.1").text
    results = [
        client.get(ended(client, start(client, "backtests", **asked))["result"]).json()["runs"]
        for asked in ({"policy": "stop if loss < 0.1"}, {"policy_text": full})
    ]

    assert results[0] == results[1]


def test_a_recommendation_is_what_the_command_says(tmp_path: Path) -> None:
    """The rule's text and its certificate are in the result; nothing is written, and no try is counted."""
    for number in range(36):
        with Recorder(tmp_path / "runs", name=f"r{number}", config={"task": f"t{number}"}, quiet=True) as rec:
            for at in range(12):
                rec.step(loss=number + 1 / (at + 1))
                rec.evaluate(eval_loss=(2 - at / 5 if at < 5 else 1.2) + number / 1e5)
    asked = {"family": "task", "risk": "regret > 5%", "search": True, "cost_per_hour": 2.0}
    with served(tmp_path / "runs") as client:
        job = ended(client, start(client, "recommendations", **asked))
        result = client.get(job["result"]).json()

    options = ["--family", "task", "--risk", "regret > 5%", "--search", "--cost-per-hour", "2", "--json"]
    said = call("recommend", "--store", tmp_path / "runs", *options)
    expected = json.loads(said.stdout)
    uncounted = Certificate.from_json(expected["certificate"]).with_tries(None)
    assert (job["status"], job["kind"], job["runs_done"]) == ("done", "recommendation", 36)
    assert result == expected | {"tries": None, "certificate": json.loads(uncounted.text)}
    assert result["recommended"]
    assert result["certificate"]["policy"]["digest"] == parse_policy(result["rule"]["text"]).digest
    assert not [*tmp_path.glob("recommended*")]


def test_jobs_name_rules_that_wait_for_a_plan_and_may_take_the_length_of_completed_runs(
    client: httpx.Client, store: Path
) -> None:
    """Backtests and sweeps answer as the commands do."""
    with Recorder(store, name="unplanned") as rec:
        for number in range(1, 6):
            rec.step(loss=1 / number)
    asked: dict[str, Any] = {
        "policy_text": POLICY.replace("loss <", "progress > 0.5 or progress <"),
        "runs": ["unplanned"],
    }

    for kind, more in (("backtests", {}), ("sweeps", {"axes": {"least": [0.1, 0.3]}})):
        without, given = (
            client.get(ended(client, start(client, kind, **asked, **more, **plan))["result"]).json()
            for plan in ({}, {"plans_by_length": True})
        )

        assert [rule["name"] for rule in without["mute_rules"]] == ["low"]
        assert (given["mute_rules"], given["plans_by_length"]) == ([], True)


def test_jobs_judge_stops_by_the_risk_that_is_asked_for(client: httpx.Client) -> None:
    """Backtests and sweeps take it as the commands do; what is no risk is refused at once."""
    asked: dict[str, Any] = {"policy_text": POLICY, "risk": "regret > 20%", "at_most": "25%", "confidence": 0.8}
    refused = client.post("/api/v1/backtests", json={**asked, "risk": "mean regret"})

    for kind, more in (("backtests", {}), ("sweeps", {"axes": {"least": [0.1, 0.3]}})):
        found = client.get(ended(client, start(client, kind, **asked, **more))["result"]).json()
        usual = client.get(ended(client, start(client, kind, policy_text=POLICY, **more))["result"]).json()

        assert (found["risk"]["over"], found["risk"]["at_most"], found["confidence"]) == (0.2, 0.25, 0.8)
        assert (usual["risk"]["over"], usual["risk"]["at_most"], usual["confidence"]) == (0.01, 0.1, 0.9)
    assert refused.status_code == 422
    assert "a mean regret has no bound without a cap" in refused.text


def test_jobs_judge_each_run_by_the_first_objective_that_it_has_and_rename_metrics(
    client: httpx.Client, store: Path
) -> None:
    """Backtests and sweeps take the same options as the commands; a rename of nothing fails with the nearest name."""
    for name, metric in (("loses", "val_loss"), ("scores", "score")):
        with Recorder(store, name=name) as rec:
            for number in range(1, 6):
                rec.step({"train_loss": 1 / number})
                rec.evaluate({metric: 1 / number})
    asked: dict[str, Any] = {
        "policy_text": POLICY,
        "runs": ["loses", "scores"],
        "objective": ["val_loss", "score:max"],
        "renames": {"train_loss": "loss"},
        "family": "name",
    }
    axes = {"least": [0.1, 0.3]}

    found = client.get(ended(client, start(client, "backtests", **asked, params={"least": 0.3}))["result"]).json()
    swept = client.get(ended(client, start(client, "sweeps", **asked, axes=axes))["result"]).json()
    refused = ended(client, start(client, "backtests", **{**asked, "objective": ["val_loss", "scor:max"]}))
    lost = ended(client, start(client, "sweeps", **{**asked, "renames": {"train_los": "loss"}}, axes=axes))

    for document in (found, swept):
        modes = {run["objective"]["metric"]: run["objective"]["mode"] for run in document["runs"]}
        assert (modes, document["objective"]) == ({"val_loss": "min", "score": "max"}, None)
        assert document["renames"] == asked["renames"]
        assert [run["family"] for run in document["runs"]] == [
            {"key": "name", "value": run["name"]} for run in document["runs"]
        ]
        assert document["repeated"] == []
    assert [run["stop"]["step"] for run in found["runs"]] == [4, 4]
    assert [variant["stopped"] for variant in swept["variants"]] == [0, 2]
    assert "Did you mean 'score'" in refused["error"]
    assert "Did you mean 'train_loss'" in lost["error"]


def test_a_job_is_done_in_any_locale(client: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """The report holds arrows, which some locales cannot encode."""
    monkeypatch.setenv("PYTHONIOENCODING", "ascii")

    job = ended(client, start(client, "backtests", policy_text=POLICY))

    assert (job["status"], client.get(job["report"]).status_code) == ("done", 200)


def test_another_question_or_a_changed_log_is_another_job(client: httpx.Client, store: Path) -> None:
    """Results are keyed by request and log."""
    first = start(client, "backtests", policy_text=POLICY)
    other = start(client, "backtests", policy_text=POLICY, params={"least": 0.2})
    recorded(store, f"{RUN[:-1]}c")
    later = start(client, "backtests", policy_text=POLICY)

    assert len({first["id"], other["id"], later["id"]}) == 3


def test_a_note_more_is_another_job_and_counts_as_the_command_counts_it(client: httpx.Client, store: Path) -> None:
    """Incidents noted in succession over HTTP label runs for the next backtest over HTTP."""
    detections = []
    for first_step in (1, 4):
        note = {"text": "bad shard", "first_step": first_step, "attrs": {"incident": "spike"}}
        assert client.post(f"/api/v1/runs/{RUN}/annotations", json=note).status_code == 201
        job = ended(client, start(client, "backtests", policy_text=POLICY, tolerance_steps=1, runs=[RUN]))
        expected = backtest(parse_policy(POLICY), [open_store(store).run(RUN)], tolerance_steps=1)
        detections.append(client.get(job["result"]).json()["detection"])
        assert detections[-1] == json.loads(json.dumps(report_json(summarize(expected))["detection"]))

    assert detections[0] != detections[1]


def test_a_file_that_was_edited_in_its_place_is_verified_again(client: httpx.Client, store: Path) -> None:
    """The folder's metadata does not show the edit."""
    first = ended(client, start(client, "verifications", runs=[RUN]))
    (events,) = (store / RUN).glob("events-*")
    with open(events, "r+b") as file:
        file.seek(os.path.getsize(events) // 2)
        file.write(b"damaged")
    again = ended(client, start(client, "verifications", runs=[RUN]))

    verdicts = [client.get(job["result"]).json()["identical"] for job in (first, again)]
    assert verdicts == [True, False]


def test_a_sweep_gives_every_variant(client: httpx.Client) -> None:
    """The result marks the front, too."""
    job = ended(client, start(client, "sweeps", policy_text=POLICY, axes={"least": [0.1, 0.3]}, runs=[RUN]))
    result = client.get(job["result"]).json()

    assert [variant["least"] for variant in result["variants"]] == [0.1, 0.3]
    assert [run["run_id"] for run in result["runs"]] == [RUN]


def test_a_sweep_tries_the_values_in_a_sentence(client: httpx.Client) -> None:
    """Its result is that of the axes."""
    job = ended(client, start(client, "sweeps", policy="stop if loss < {0.1, 0.3}", runs=[RUN]))
    result = client.get(job["result"]).json()
    full = load_policy("stop if loss < 0.1").text.replace("0.1", "limit") + "params: {limit: 0.1}\n"
    by_axes = ended(client, start(client, "sweeps", policy_text=full, axes={"limit": [0.1, 0.3]}, runs=[RUN]))

    assert [variant["limit"] for variant in result["variants"]] == [0.1, 0.3]
    assert result["variants"] == client.get(by_axes["result"]).json()["variants"]


@pytest.mark.parametrize("saves", ["keep", "replace"])
def test_saves_say_what_becomes_of_the_loop_s_own_checkpoints(client: httpx.Client, store: Path, saves: str) -> None:
    """Backtests and sweeps agree with the functions, whose default is ``keep``; any other word is refused."""
    saving = POLICY.replace("should_training_stop", "should_save").replace("{least: 0.1}", "{least: 0.3}")
    asked = {"policy_text": saving, "runs": [RUN]} | ({"saves": saves} if saves != "keep" else {})
    expected = backtest(parse_policy(saving), [open_store(store).run(RUN)], saves=saves).results[0].predicted

    found = client.get(ended(client, start(client, "backtests", **asked))["result"]).json()
    swept = client.get(ended(client, start(client, "sweeps", **asked, axes={"least": [0.3]}))["result"]).json()
    refused = client.post("/api/v1/backtests", json={"policy_text": saving, "saves": "drop"})

    assert expected is not None
    assert (found["saves"], found["runs"][0]["predicted"]["checkpoints"]) == (saves, expected.checkpoints)
    assert (swept["saves"], swept["variants"][0]["checkpoints"]) == (saves, expected.checkpoints)
    assert refused.status_code == 422


def test_a_verification_names_each_run(client: httpx.Client) -> None:
    """The result equals the command's."""
    job = ended(client, start(client, "verifications"))
    result = client.get(job["result"]).json()

    assert {run["run_id"] for run in result["runs"]} == {RUN, f"{RUN[:-1]}b"}


def stop_worker() -> bool:
    """Suspend the process of the running job, so that it cannot finish first. Return whether there is one."""
    for children in Path("/proc/self/task").glob("*/children"):
        for pid in children.read_text().split():
            if b"job_worker" in Path("/proc", pid, "cmdline").read_bytes():
                os.kill(int(pid), signal.SIGSTOP)
                return True
    return False


def test_a_job_that_is_ended_is_over_at_once_and_the_next_one_runs(store: Path) -> None:
    """Its process is killed at any point; the queue is bounded."""
    writer = begin(store, "20260105T000000-long00")
    for number in range(1, 60_000):
        step(writer, number)
    writer.close()
    with served(store, limits=replace(SMALL, jobs_waiting=1)) as client:
        long = start(client, "backtests", policy_text=POLICY, baselines=["all"], coverage=True)
        until(stop_worker)
        queued = start(client, "verifications", runs=[RUN])
        refused = client.post("/api/v1/verifications", json={"runs": [f"{RUN[:-1]}b"]})
        cancelled = client.delete(f"/api/v1/jobs/{long['id']}").json()
        no_result = client.get(f"/api/v1/jobs/{long['id']}/result")
        done = ended(client, queued)

    assert (refused.status_code, refused.json()["code"]) == (503, "busy")
    assert cancelled["status"] == "cancelled"
    assert (no_result.status_code, no_result.json()["code"]) == (409, "job-not-done")
    assert done["status"] == "done"


@pytest.mark.usefixtures("unhurried")
def test_a_job_that_takes_too_long_fails(store: Path) -> None:
    """The job holds the reason."""
    with served(store, limits=replace(SMALL, job_s=0.001)) as client:
        job = ended(client, start(client, "verifications"))

    assert (job["status"], job["error"]) == ("failed", "the job exceeded its limit of 0.001 s of processor time")


def test_a_job_takes_no_more_memory_than_it_may(store: Path) -> None:
    """The job fails, and the server survives."""
    writer = begin(store, "20260105T000000-long00")
    for number in range(1, 60_000):
        step(writer, number)
    writer.close()
    with served(store, limits=replace(SMALL, job_bytes=1 << 20)) as client:
        job = ended(client, start(client, "backtests", policy_text=POLICY))

        assert job["status"] == "failed"
        assert "ended before the job was done" in job["error"] or "memory limit" in job["error"]
        assert client.get("/healthz").status_code == 200


def test_a_job_that_no_process_can_be_started_for_fails_and_the_next_one_runs(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This happens when the machine has no room for another process."""
    with served(store) as client:
        with monkeypatch.context() as patch:
            patch.setattr(sys, "executable", str(store / "no-python"))
            failed = ended(client, start(client, "verifications"))
            refused = client.post("/api/v1/backtests", json={"policy_text": POLICY})
        done = ended(client, start(client, "verifications"))

    assert (failed["status"], done["status"]) == ("failed", "done")
    assert "process could not be started" in failed["error"]
    assert (refused.status_code, refused.json()["code"]) == (503, "busy")


@pytest.mark.parametrize(
    ("kind", "body", "code"),
    [
        ("backtests", {}, "invalid-parameter"),
        ("backtests", {"policy": "nothing"}, "policy-not-found"),
        ("backtests", {"policy_text": "controllers: [{}]"}, "invalid-policy"),
        ("backtests", {"policy_text": POLICY, "params": {"other": 1}}, "invalid-policy"),
        ("backtests", {"policy_text": POLICY, "baselines": ["nothing"]}, "invalid-request"),
        ("backtests", {"policy_text": POLICY, "runs": ["../outside"]}, "run-not-found"),
        ("backtests", {"policy_text": POLICY, "objective": "score"}, "invalid-parameter"),
        ("backtests", {"policy_text": POLICY, "objective": ["a_loss", "b_loss"], "mode": "min"}, "invalid-parameter"),
        ("sweeps", {"policy_text": POLICY, "axes": {}}, "invalid-parameter"),
        ("sweeps", {"policy": "stop if loss < 0.1"}, "invalid-request"),
        ("sweeps", {"policy": "stop if loss < {0.1, low}"}, "invalid-policy"),
        ("sweeps", {"policy": f"stop if loss < {{{10**30}}}"}, "invalid-request"),
        ("backtests", {"policy": "stop if loss < {0.1, 0.3}"}, "invalid-policy"),
        ("recommendations", {"risk": "regret"}, "invalid-parameter"),
        ("recommendations", {"at_most": "200%"}, "invalid-parameter"),
        ("recommendations", {"confidence": 1.0}, "invalid-parameter"),
        ("recommendations", {"objective": "score"}, "invalid-parameter"),
        ("sweeps", {"policy_text": POLICY, "axes": {"least": [0.1]}, "objective": "score"}, "invalid-parameter"),
        ("sweeps", {"policy_text": POLICY, "axes": {"other": [1, 2]}}, "invalid-policy"),
        ("sweeps", {"policy_text": POLICY, "axes": {"\ud800": [1, 2]}}, "invalid-policy"),
        ("sweeps", {"policy_text": POLICY, "axes": {"least": [1, 10**400]}}, "invalid-parameter"),
        ("sweeps", {"policy_text": POLICY, "axes": {"least": [0.1, 0.2, "low", 0.3]}}, "invalid-policy"),
        ("sweeps", {"policy_text": WAITING, "axes": {"least": [0.1] * 400, "wait": [1] * 400}}, "invalid-request"),
        ("verifications", {"runs": []}, "invalid-parameter"),
    ],
)
def test_a_job_that_cannot_be_is_refused_before_it_is_queued(
    idle: httpx.Client, kind: str, body: dict[str, Any], code: str
) -> None:
    """The answer names the fault."""
    headers = {"Content-Type": "application/json"}
    answer = idle.post(f"/api/v1/{kind}", content=json.dumps(body), headers=headers)

    assert answer.json()["code"] == code
    assert idle.get("/api/v1/jobs").json()["items"] == []


@pytest.mark.parametrize(
    ("axes", "said"),
    [
        ({"least": [0.1, "low", 0.3]}, ["axis 'least', value 'low': param 'least': an override must be a number"]),
        ({"least": [0.1], "wait": [1, 2.5, 3]}, ["axis 'wait', value 2.5: "]),
        ({"least": ["a", "b"], "wait": [True]}, ["axis 'least', value 'a'", "axis 'least', value 'b'", "axis 'wait'"]),
        ({"lest": [1, 2]}, ["axis 'lest', value 1: params: the rule file has no such param"]),
        ({"least": [*map(str, range(100))]}, ["axis 'least', value '"] * 20),
    ],
)
def test_a_value_that_a_policy_does_not_take_is_named_with_its_axis(
    idle: httpx.Client, axes: dict[str, list[Any]], said: list[str]
) -> None:
    """Its position on the axis does not matter, and nothing is queued."""
    answer = idle.post("/api/v1/sweeps", json={"policy_text": WAITING, "axes": axes})

    assert (answer.status_code, answer.json()["code"]) == (422, "invalid-policy")
    lines = answer.json()["detail"].splitlines()
    assert len(lines) == len(said)
    for line, part in zip(lines, said, strict=True):
        assert part in line
    assert idle.get("/api/v1/jobs").json()["items"] == []


@pytest.mark.usefixtures("unhurried")
def test_a_policy_that_takes_too_long_to_load_is_refused(store: Path) -> None:
    """The server itself does not load it."""
    text = POLICY + "".join(
        f"  - {{name: c{number}, triggers: [on_step_end], rule: {'loss > 1 or ' * 12}loss < 0, operations: []}}\n"
        for number in range(900)
    )
    with served(store, limits=replace(SMALL, rules_s=1.0)) as client:
        answer = client.post("/api/v1/backtests", json={"policy_text": text})

    assert (answer.status_code, answer.json()["code"]) == (422, "invalid-request")
    assert "exceeded their limit of 1 s of processor time" in answer.json()["detail"]


def test_a_policy_that_does_not_load_is_refused_with_its_problems(idle: httpx.Client) -> None:
    """Each problem has its place."""
    text = POLICY.replace("loss <", "loss <<").replace("on_step_end", "on_nothing")
    answer = idle.post("/api/v1/backtests", json={"policy_text": text})

    lines = answer.json()["detail"].splitlines()
    assert [line.split(": ")[0] for line in lines] == ["policy:5:16", "policy:6:11"]


def test_rules_are_checked_with_line_and_column(idle: httpx.Client) -> None:
    """The answer holds errors or findings."""
    wrong = idle.post("/api/v1/rules/check", json={"text": POLICY.replace("loss <", "loss <<")}).json()
    fine = idle.post("/api/v1/rules/check", json={"text": POLICY, "runs": [RUN]}).json()

    assert (wrong["ok"], wrong["problems"][0]["line"]) == (False, 6)
    assert (fine["ok"], fine["problems"]) == (True, [])
    assert fine["digest"] == parse_policy(POLICY).digest
    assert fine["could_fire"] == {"runs": 1, "could_fire": 1, "reasons": {}, "controllers": {"low": 1}}
    assert wrong["could_fire"] is None


def test_rules_that_are_sent_as_sentences_are_checked_at_their_places(idle: httpx.Client) -> None:
    """Errors and warnings count the lines and characters of the sentences, and not those of their full form."""
    wrong = idle.post("/api/v1/rules/check", json={"text": "stop if loss > 9\nsave if loss > men(loss, 5)"}).json()
    doubtful = idle.post("/api/v1/rules/check", json={"text": "stop if lr > 5 and lr < 3"}).json()

    assert [(each["line"], each["column"]) for each in wrong["problems"]] == [(2, 16)]
    (warning,) = (each for each in doubtful["warnings"] if each["code"] == "dead")
    assert (warning["line"], warning["column"]) == (1, 20)


def test_tests_of_rules_are_run(idle: httpx.Client) -> None:
    """The policy is sent along or shipped."""
    tests = "policy: mine\ntests:\n  - name: t\n    series: {loss: 1 0.05}\n    expect: [{step: 2, controller: low}]\n"

    answer = idle.post("/api/v1/rules/test", json={"tests": tests, "policies": {"mine": POLICY}}).json()

    assert (answer["ok"], [result["test"] for result in answer["results"]]) == (True, ["t"])


#: Twenty rules that each use the whole budget of a rule at every event.
HEAVY = "controllers:\n" + "".join(
    f"""
  - name: heavy{number}
    triggers: [on_step_end]
    rule: len([x for x in [1, 2, 3, 4, 5, 6, 7, 8, 9]*900 if x*x > loss]) > 100000
    operations: [hfcontrols.should_log]
"""
    for number in range(20)
)


@pytest.mark.usefixtures("unhurried")
@pytest.mark.parametrize(
    ("path", "body"),
    [
        (
            "test",
            {
                "tests": "policy: p\ntests: [{name: t, series: {loss: 1+1x100000}, expect: []}]",
                "policies": {"p": HEAVY},
            },
        ),
        ("check", {"text": HEAVY, "runs": [f"{RUN[:-1]}c"]}),
    ],
)
def test_rules_that_take_too_long_are_ended_and_others_are_tried(store: Path, path: str, body: dict[str, Any]) -> None:
    """The server process itself evaluates no rule."""
    recorded(store, f"{RUN[:-1]}c", steps=2000)
    with served(store, limits=replace(SMALL, rules_s=3.0)) as client:
        answer = client.post(f"/api/v1/rules/{path}", json=body)
        light = patiently(lambda: client.post("/api/v1/rules/check", json={"text": POLICY}))

    assert (answer.status_code, answer.json()["code"]) == (422, "invalid-request")
    assert "exceeded their limit of 3 s of processor time" in answer.json()["detail"]
    assert light.json()["ok"]


def test_a_trial_that_comes_to_too_much_is_refused(store: Path) -> None:
    """A decision at each of many steps, none of them expected, makes the answer too long."""
    tests = "policy: p\ntests: [{name: t, series: {loss: 0x1000}, expect: [], after_stop: go_on}]"
    with served(store, limits=replace(SMALL, job_result_bytes=10_000)) as client:
        answer = client.post("/api/v1/rules/test", json={"tests": tests, "policies": {"p": POLICY}})

    assert (answer.status_code, answer.json()["code"]) == (422, "invalid-request")
    assert "exceeds the limit of 10,000 bytes" in answer.json()["detail"]


def test_a_job_about_a_run_that_was_deleted_meanwhile_says_so(store: Path) -> None:
    """The error is more specific than a failed job."""
    gone = JobOrder("verification", str(store), {"runs": [RUN]}, [f"{RUN[:-1]}f"])
    told: list[int] = []

    with pytest.raises(RunNotFound, match="no run has this id or name"):
        run_job(gone, told.append)
    assert told == []
