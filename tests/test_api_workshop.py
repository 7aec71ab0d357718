"""The API has what a workshop of rules needs: checks as one types, firings at once, proposals, and saved rule files."""

from __future__ import annotations

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from command_line import call

from api_serving import PATIENT, RUN, ended, recorded, served
from steptape import Recorder, open_store
from steptape.api.middleware.gate import parse_tokens
from steptape.rules.policy_file.policy import load_policy
from steptape.store.parquet.sealing import seal

SWEPT = "stop if loss > {2..4} for 2 steps"
FILE = "# Kept\nparams: {limit: 3, name: x}  # Kept, too\ncontrollers: [stop if loss > limit]\n"
TOKENS = {scope: f"{scope}-token-of-many-letters" for scope in ("read", "write")}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with a run that has a spike, and a folder of rule files."""
    folder = tmp_path_factory.mktemp("workshop")
    (folder / "rules").mkdir()
    (folder / "rules" / "mine.yaml").write_text("controllers: [stop if accuracy > 0.9]\n")
    with Recorder(folder / "runs", name="spiky", quiet=True) as rec:
        for step in range(1, 101):
            rec.step(loss=9.0 if step == 60 else 2.0)
    recorded(folder / "runs")
    return folder


@pytest.fixture(scope="module")
def client(folder: Path) -> Iterator[httpx.Client]:
    """A client of a server with a folder of rule files."""
    with served(folder / "runs", policies_path=folder / "rules", limits=PATIENT) as client:
        yield client


def put(client: httpx.Client, name: str, text: str = FILE, **more: Any) -> httpx.Response:
    """Ask a server to save a rule file."""
    return client.put(f"/api/v1/policies/{name}", json={"text": text, **more})


def test_a_check_says_what_a_text_has_to_change(client: httpx.Client) -> None:
    """Its params, the values to try that sentences have, and the whole as a rule file."""
    asked = {"text": SWEPT, "params": {"limit": 4}}
    answer = client.post("/api/v1/rules/check", json=asked).json()

    assert (answer["params"], answer["choices"]) == ({"limit": 4}, {"limit": [2, 3, 4]})
    assert answer["rule_file"] == "params:\n  limit: 4\ncontrollers:\n- stop if loss > limit for 2 steps\n"
    assert answer["digest"] == load_policy(SWEPT, params={"limit": 4}).digest
    assert not answer["asks_for_checkpoints"]


def test_a_check_writes_values_of_params_into_the_text_and_leaves_the_rest(client: httpx.Client) -> None:
    """Comments stay."""
    answer = client.post("/api/v1/rules/check", json={"text": FILE, "params": {"limit": 2.5}}).json()

    assert answer["rule_file"] == FILE.replace("limit: 3", "limit: 2.5")


def test_values_to_try_that_are_none_have_their_place(client: httpx.Client) -> None:
    """A reader types them."""
    answer = client.post("/api/v1/rules/check", json={"text": "stop if loss > {3..}"}).json()

    assert [(each["line"], each["column"]) for each in answer["problems"]] == [(1, 16)]


def test_firings_are_those_of_a_backtest(client: httpx.Client) -> None:
    """For each value of a param."""
    found = {}
    for limit in (2, 3, 12):
        asked = {"text": "stop if loss > {2..12}", "params": {"limit": limit}, "runs": ["spiky"]}
        (run,) = client.post("/api/v1/rules/firings", json=asked).json()["items"]
        found[limit] = (run["firings"], run["first_step"], run["stop_step"], run["steps"])

    assert found == {2: (1, 60, 60, [60]), 3: (1, 60, 60, [60]), 12: (0, None, None, [])}


def test_firings_of_a_text_that_does_not_load_are_refused(client: httpx.Client) -> None:
    """The problem has its place, as in a job."""
    answer = client.post("/api/v1/rules/firings", json={"text": "stop if loss >", "runs": ["spiky"]})

    assert (answer.status_code, answer.json()["code"]) == (422, "invalid-policy")


def test_a_rule_is_proposed_for_a_spike(client: httpx.Client) -> None:
    """It fires there, and nowhere else."""
    asked = {"run": "spiky", "metric": "loss", "first_step": 55, "last_step": 65}
    answer = client.post("/api/v1/rules/proposals", json=asked).json()
    checked = client.post("/api/v1/rules/firings", json={"text": answer["text"], "runs": ["spiky"]}).json()

    assert (answer["step"], answer["fires"]) == (60, 1)
    assert checked["items"][0]["steps"] == [60]


def test_a_place_without_a_rule_is_a_problem_of_the_request(client: httpx.Client) -> None:
    """The server is not to blame."""
    asked = {"run": "spiky", "metric": "loss", "first_step": 500, "last_step": 600}
    answer = client.post("/api/v1/rules/proposals", json=asked)

    assert (answer.status_code, answer.json()["code"]) == (422, "invalid-request")
    assert "no value of 'loss' at steps 500 to 600" in answer.json()["detail"]


def test_a_rule_file_is_saved_and_then_known(client: httpx.Client, folder: Path) -> None:
    """Its text has the values of its params. The answer is the path that a recorder takes."""
    answer = put(client, "saved", params={"limit": 4})
    listed = client.get("/api/v1/policies/saved").json()

    assert answer.status_code == 201
    assert answer.json()["path"] == str(folder / "rules" / "saved.yaml")
    assert Path(answer.json()["path"]).read_text() == FILE.replace("limit: 3", "limit: 4")
    assert (listed["origin"], listed["digest"]) == ("folder", answer.json()["digest"])
    assert [path.name for path in (folder / "rules").iterdir() if path.name.startswith(".")] == []


def test_the_line_of_a_saved_rule_arms_it(client: httpx.Client, tmp_path: Path) -> None:
    """A loop that copies it stops where the rule says, and a replay decides the same."""
    path = put(client, "armed", "stop if loss > {3..5}", params={"limit": 4}).json()["path"]
    names: dict[str, Any] = {}
    exec(f'from steptape import Recorder\nrec = Recorder("{tmp_path}", rules="{path}")', names)
    with names["rec"] as rec:
        stopped = [step for step in range(1, 9) if rec.step(loss=float(step)).should_stop]
    verified = call("verify", rec.run_id, "--store", str(tmp_path), "--json")

    assert stopped[0] == 5
    assert '"identical": true' in verified.stdout
    assert open_store(tmp_path).run(rec.run_id).decisions().num_rows > 0


@pytest.mark.parametrize("name", ["..%2Fout", "%2Fetc%2Fx", "..", ".hidden", "a b", "x%00", "-x", "a" * 101, "x.test"])
def test_a_name_cannot_leave_the_folder(client: httpx.Client, folder: Path, name: str) -> None:
    """Nor be hidden, nor be a file of tests."""
    before = sorted(folder.rglob("*.yaml"))
    answer = client.put(f"/api/v1/policies/{name}", json={"text": FILE})

    assert answer.status_code in (404, 405, 422)
    assert sorted(folder.rglob("*.yaml")) == before


@pytest.mark.parametrize("name", ["mine", "loss_spike"])
def test_a_taken_name_is_refused_unless_told_to_replace(client: httpx.Client, folder: Path, name: str) -> None:
    """That of a shipped rule file is taken, too."""
    refused = put(client, name)
    is_kept = not (folder / "rules" / f"{name}.yaml").exists() or "accuracy" in (folder / "rules/mine.yaml").read_text()
    replaced = put(client, name, replace=True)
    (folder / "rules" / "loss_spike.yaml").unlink(missing_ok=True)
    (folder / "rules" / "mine.yaml").write_text("controllers: [stop if accuracy > 0.9]\n")

    assert (refused.status_code, refused.json()["code"]) == (409, "name-taken")
    assert is_kept
    assert replaced.status_code == 201


def test_a_rule_file_with_errors_is_refused_with_them(client: httpx.Client, folder: Path) -> None:
    """Nothing is written."""
    answer = put(client, "wrong", FILE.replace("loss >", "loss >>"))

    assert (answer.status_code, answer.json()["code"]) == (422, "invalid-policy")
    assert re.match(r"wrong:3:\d+: ", answer.json()["detail"])
    assert not (folder / "rules" / "wrong.yaml").exists()


def test_a_token_that_only_reads_is_refused_in_words(folder: Path) -> None:
    """It checks rules, and asks where they fire."""
    lines = "".join(f"{token} {scope} {scope}\n" for scope, token in TOKENS.items())
    tokens = parse_tokens(lines, source="test")
    with served(folder / "runs", policies_path=folder / "rules", tokens=tokens, token=TOKENS["read"]) as client:
        saved = put(client, "mere")
        asked = client.post("/api/v1/rules/firings", json={"text": SWEPT, "runs": [RUN]})

    assert (saved.status_code, saved.json()["code"]) == (403, "forbidden")
    assert "needs the scope write" in saved.json()["detail"]
    assert asked.status_code == 200


def test_a_server_without_a_folder_says_how_to_get_one(folder: Path) -> None:
    """Nothing is saved anywhere else."""
    with served(folder / "runs") as client:
        answer = put(client, "homeless")

    assert (answer.status_code, answer.json()["code"]) == (409, "not-saved")
    assert "--rules-folder" in answer.json()["hint"]


def test_a_sweep_is_judged_out_of_sample_and_certified(tmp_path: Path) -> None:
    """Each point of the front has its place on families that did not choose it; ten families are too few to certify."""
    for number in range(10):
        with Recorder(tmp_path, name=f"run {number}", group=str(number), quiet=True) as rec:
            for step in range(1, 31):
                rec.step(loss=9.0 / step + number / 1000)
                rec.evaluate(eval_loss=1.0 + 1 / step + number / 1000)
    asked = {"policy": "stop if loss < {0.35, 0.4, 0.6}", "family": "group", "split": "families", "certify": True}
    with served(tmp_path, limits=PATIENT) as client:
        job = ended(client, client.post("/api/v1/sweeps", json=asked).json())
        result = client.get(job["result"]).json()

    assert (result["split"]["kind"], result["split_refused"]) == ("families", "")
    assert [point["variant"] for point in result["out_of_sample"]] == result["front"] != []
    assert (result["certification"]["certified"], result["certification"]["families"]) == (None, 10)
    assert result["certification"]["fewest_families"] > 10


def test_a_sweep_over_too_few_families_says_why_it_is_not_split(client: httpx.Client) -> None:
    """It has its front in sample."""
    asked = {"policy": "stop if loss < {0.1, 0.3}", "runs": [RUN], "split": "families"}
    result = client.get(ended(client, client.post("/api/v1/sweeps", json=asked).json())["result"]).json()

    assert result["split"] is None
    assert "famil" in result["split_refused"]


def test_clients_that_replace_one_rule_file_are_all_answered_and_one_has_the_last_word(
    client: httpx.Client, folder: Path
) -> None:
    """The file is that of one of them, whole."""
    texts = [f"stop if loss > {number}  {'#' * number * 100}" for number in range(1, 9)]
    with ThreadPoolExecutor(len(texts)) as pool:
        answers = list(pool.map(lambda text: put(client, "shared", text, replace=True), texts * 3))

    assert {answer.status_code for answer in answers} == {201}
    assert load_policy(folder / "rules" / "shared.yaml").digest in {answer.json()["digest"] for answer in answers}


def test_a_small_float_is_written_as_a_number(client: httpx.Client) -> None:
    """YAML reads 1e-05 as a text."""
    checked = client.post("/api/v1/rules/check", json={"text": FILE, "params": {"limit": 1e-05}}).json()

    assert (checked["ok"], checked["params"]["limit"]) == (True, 1e-05)
    assert "limit: 1.0e-05" in checked["rule_file"]


@pytest.mark.parametrize("value", [10**400, 1e308, 5e-324])
def test_a_param_of_any_size_is_checked_and_has_no_slider_beyond_all_sense(client: httpx.Client, value: float) -> None:
    """An integer that no float holds, and numbers whose steps are none."""
    text = "params: {most: 1, least: 1.0}\ncontrollers: [stop if loss > most or loss < least]"
    name = "most" if isinstance(value, int) else "least"
    checked = client.post("/api/v1/rules/check", json={"text": text, "params": {name: value}}).raise_for_status().json()

    assert checked["ok"], checked["problems"]
    assert list(checked["ranges"]) == ["least" if name == "most" else "most"]


def test_a_damaged_run_is_named_without_the_folders_of_the_server(client: httpx.Client, folder: Path) -> None:
    """Its log is named from the store on. The other runs have their firings."""
    with Recorder(folder / "runs", name="torn", quiet=True) as rec:
        rec.step(loss=10.0)
    seal(rec.folder)
    for file in rec.folder.glob("events-*.parquet"):
        file.write_bytes(file.read_bytes()[:50])
    body = {"text": "stop if loss > 8", "runs": ["torn", "spiky"]}
    torn, spiky = client.post("/api/v1/rules/firings", json=body).raise_for_status().json()["items"]

    assert torn["error"].startswith(f"{rec.folder.name}/events-0-0-")
    assert spiky["first_step"] == 60
