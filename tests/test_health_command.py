"""``steptape health`` prints a line for each group of metrics, and its status says whether something is wrong."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from command_line import call as steptape

from api_serving import PATIENT, served
from steptape import Recorder


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with a run whose gradients explode, and one with a loss alone."""
    store = tmp_path_factory.mktemp("health") / "runs"
    with Recorder(store, name="exploding", quiet=True) as rec:
        for step in range(1, 31):
            metrics = {"Gradients/norm": 1.0 if step < 20 else 5000.0, "Updates/ratio_global": 0.01}
            rec.step({"loss": 3.0 / step, **metrics})
    with Recorder(store, name="plain", quiet=True) as rec:
        rec.annotate("no scores", absent={"Attention/block_{block}/max_attn_logit": "flash attention shows no scores"})
        for step in range(1, 31):
            rec.step(loss=3.0 / step)
    with Recorder(store, name="alien", quiet=True) as rec:
        for step in range(1, 31):
            rec.step({"train/loss": 3.0 / step, "val loss": 1.0})
    with Recorder(store, name="blown", quiet=True) as rec:
        for step in range(1, 31):
            rec.step({"train/loss": 1.0 if step < 20 else float("nan")})
    return store


@pytest.fixture(scope="module")
def client(store: Path) -> Iterator[httpx.Client]:
    """A client of a server over that store."""
    with served(store, limits=PATIENT) as client:
        yield client


def call(*arguments: object) -> subprocess.CompletedProcess[str]:
    """Run the command."""
    return steptape("health", *arguments)


def test_what_is_wrong_comes_first_and_is_the_status(store: Path) -> None:
    """One line a group, and the whole below."""
    result = call("exploding", "--store", store)

    heading, first, *_, last = result.stdout.splitlines()
    assert (result.returncode, result.stderr) == (1, "")
    assert heading.split() == ["group", "state", "what"]
    assert first.split()[:2] == ["gradients", "critical"]
    assert "The gradient norm is 5e+03, limit 1000 (norm_very_high since step 20); also norm_high" in first
    assert last == "exploding: critical at step 30, 13 of 16 groups not evaluable"


def test_a_run_with_a_loss_alone_is_fine_where_it_is_known(store: Path) -> None:
    """Fifteen groups are not evaluable, with the reason of the probe where it gave one."""
    result = call("plain", "--store", store)

    lines = result.stdout.splitlines()
    assert result.returncode == 0
    assert lines[2].startswith("loss             fine           3 rules fine on 30 values of 30 steps")
    assert lines[-1] == "plain: fine on 30 values of 30 steps, 15 of 16 groups not evaluable"
    assert sum("not evaluable  " in line for line in lines) == 15
    assert "max_attn_logit (flash attention shows no scores)" in result.stdout


def test_a_run_of_other_names_is_not_evaluable_and_says_how_to_judge_it(store: Path) -> None:
    """Status 3, and with the names that it prints the status of what is found."""
    result = call("alien", "--store", store)
    renamed = call("alien", "--store", store, "--rename", "train/loss=loss")

    assert (result.returncode, json.loads(call("alien", "--store", store, "--json").stdout)["state"]) == (
        3,
        "not evaluable",
    )
    assert result.stdout.splitlines()[-2:] == [
        "alien: not evaluable at step 30, 16 of 16 groups not evaluable",
        "nearest: train/loss, val loss. To judge by these: --rename train/loss=loss --rename 'val loss=eval_loss'",
    ]
    assert (renamed.returncode, "3 rules fine on 30 values of 30 steps" in renamed.stdout) == (0, True)


def test_a_nan_is_found_without_a_name(store: Path, client: httpx.Client) -> None:
    """In the terminal, over HTTP and on the page."""
    result = call("blown", "--store", store)

    assert result.returncode == 1
    assert "every metric     critical       Not finite: train/loss = nan (not_finite since step 20)" in result.stdout
    assert client.get("/api/v1/runs/blown/health").json()["state"] == "critical"
    assert "Not finite: train/loss = nan" in client.get("/runs/blown/health").text


def test_the_page_of_a_run_that_cannot_be_judged_says_so(client: httpx.Client) -> None:
    """As the endpoint does, with the nearest names."""
    part, found = client.get("/runs/alien/health").text, client.get("/api/v1/runs/alien/health").json()

    assert (found["state"], found["nearest"]["loss"]) == ("not evaluable", "train/loss")
    assert "Not evaluable: no rule of the file found the metrics that it reads. Nearest: train/loss, val loss." in part


def test_json_holds_every_rule_with_its_values_and_bounds(store: Path) -> None:
    """The document of the HTTP endpoint."""
    document = json.loads(call("exploding", "--store", store, "--json").stdout)

    gradients = document["groups"][0]
    worst = gradients["rules"][0]
    assert (document["state"], gradients["group"], worst["controller"]) == ("critical", "gradients", "norm_very_high")
    assert worst["newest"]["values"] == {"norm": 5000.0}
    assert worst["newest"]["bounds"] == {"norm_bad": 1000}


def test_another_policy_and_another_threshold_judge(store: Path) -> None:
    """The bounds that the command line sets count."""
    loose = call("exploding", "--store", store, "--set", "norm_bad=1e6", "--set", "norm_high=1e6")
    other = call("plain", "--store", store, "--rules", "nan_guard")

    assert loose.returncode == 0
    assert other.returncode == 0
    assert "nobody" in call("plain", "--store", store, "--rules", "nobody").stderr


def test_a_run_that_is_not_there_cannot_be_opened(store: Path) -> None:
    """Status 2, as everywhere."""
    assert call("nobody", "--store", store).returncode == 2


def test_the_endpoint_answers_as_the_command_does(store: Path, client: httpx.Client) -> None:
    """Field for field."""
    answer = client.get("/api/v1/runs/exploding/health")

    assert answer.status_code == 200
    assert answer.json() == {**json.loads(call("exploding", "--store", store, "--json").stdout), "age_s": 0}


def test_the_endpoint_judges_by_renamed_metrics_as_the_command_does(store: Path, client: httpx.Client) -> None:
    """The two states of one run are known apart, and what is no pair of names is refused."""
    address = "/api/v1/runs/alien/health"

    renamed = client.get(address, params={"rename": ["train/loss=loss", "val loss=eval_loss"]}).json()
    printed = call("alien", "--store", store, "--json", "--rename", "train/loss=loss", "--rename", "val loss=eval_loss")
    assert renamed == {**json.loads(printed.stdout), "age_s": 0}
    assert (renamed["state"], client.get(address).json()["state"]) == ("fine", "not evaluable")
    assert client.get(address, params={"rename": "loss"}).status_code == 422


def test_the_endpoint_refuses_policies_that_the_server_does_not_know(client: httpx.Client) -> None:
    """A path is no name."""
    answer = client.get("/api/v1/runs/plain/health", params={"policy": "../secret.yaml"})

    assert answer.status_code == 404
    assert client.get("/api/v1/runs/nobody/health").status_code == 404


def test_the_page_of_a_run_shows_its_health(client: httpx.Client) -> None:
    """A word, a colour and a sentence for each group that is known; the others folded away."""
    page, part = client.get("/runs/exploding").text, client.get("/runs/exploding/health").text

    assert "<h2>Health</h2>" in page
    assert '<span class="status critical">critical</span>' in part
    assert "The gradient norm is 5e+03, limit 1000" in part
    assert "Not evaluable: evaluation, learning rate, data" in part
