"""A person gives a run another name and tags: every reader shows them, and what was recorded stays."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import httpx
import pytest
from command_line import call as steptape

from api_serving import running, served
from steptape import Recorder, backtest, open_run, open_store
from steptape.api.app import create_app
from steptape.api.middleware.gate import parse_tokens
from steptape.replay.runs.incidents import IncidentLabels
from steptape.replay.runs.run_families import family_of
from steptape.rules.policy_file.policy import parse_policy
from steptape.store.annotations import Annotation, Shown, append_annotation, read_annotations
from steptape.store.errors import InvalidEvent
from steptape.store.questions import selected
from steptape.store.reading.catalog import Catalog
from steptape.store.run_folder import ANNOTATIONS
from steptape.store.run_info import read_run_info

POLICY = parse_policy("""
controllers:
  - {name: stop, triggers: [on_step_end], rule: loss > 2, operations: [hfcontrols.should_training_stop]}
""")

RENAME = Annotation("a", 1, "", "me", name="best", tag=("kept",), untag=("draft",))


@pytest.fixture
def run(store_path: Path) -> Path:
    """A run under rules that has ended, with a name and a tag."""
    with Recorder(store_path, run_id="run-1", name="digits", tags=["draft"], rules=POLICY) as rec:
        for _ in range(3):
            rec.step(loss=1.0)
        rec.save("step-3.pt")
    steptape("seal", "--store", store_path)
    return store_path / "run-1"


def shown(folder: Path) -> Shown:
    """Return what readers show a run as."""
    return open_run(folder).snapshot().shown


def test_a_rename_leaves_nothing_for_verify_and_doctor(run: Path) -> None:
    """Nothing that was recorded changes."""
    before = (run / "run.json").read_bytes()

    assert steptape("note", run, "--name", "best", "--tag", "kept").returncode == 0

    assert "identical" in steptape("verify", run).stdout
    assert steptape("doctor", run).returncode == 0
    assert (run / "run.json").read_bytes() == before


def test_a_flipped_byte_of_run_json_is_found_after_a_rename(run: Path) -> None:
    """A rename hides no damage."""
    append_annotation(run, RENAME)
    content = (run / "run.json").read_bytes()
    (run / "run.json").write_bytes(content.replace(b'"digits"', b'"digitz"'))

    assert steptape("verify", run).returncode == 1
    assert "run.json" in steptape("doctor", run).stdout


def test_an_open_catalog_sees_a_rename_at_its_next_look(run: Path) -> None:
    """Appending to a file changes no time of its folder, and the entry of an ended run is kept."""
    append_annotation(run, RENAME)
    catalog = Catalog(run.parent)
    assert [entry.summary.name for entry in catalog.look().entries] == ["best"]

    append_annotation(run, Annotation("b", 2, "", name="newer"))

    assert [entry.summary.name for entry in catalog.look().entries] == ["newer"]


def test_a_resumed_run_keeps_the_recorded_name_and_shows_the_one_of_a_person(run: Path) -> None:
    """The next attempt does not take the person's name for its own."""
    append_annotation(run, RENAME)

    with Recorder(run.parent, resume="run-1") as rec:
        rec.step(loss=1.0)

    assert read_run_info(run).name == "digits"
    assert shown(run) == Shown("best", ("kept",))


def test_sql_http_and_the_command_line_show_the_same_name(run: Path) -> None:
    """All of them read one overlay."""
    append_annotation(run, RENAME)
    store = run.parent

    with served(store) as client:
        (item,) = client.get("/api/v1/runs", params={"where": "tag:kept name:BES"}).json()["items"]
        detail = client.get("/api/v1/runs/best").json()
        page = client.get("/runs/run-1").text
        none = client.get("/api/v1/runs", params={"where": "name:digits"}).json()["items"]

    assert (item["name"], item["tags"]) == (detail["name"], detail["tags"]) == ("best", ["kept"])
    assert "<title>best" in page
    assert none == []
    assert open_store(store).rows("SELECT name, tags FROM runs") == [{"name": "best", "tags": ["kept"]}]
    assert " best " in steptape("runs", "--store", store).stdout
    assert "best  run-1" in steptape("show", "best", "--store", store).stdout
    assert [result.name for result in backtest(POLICY, [open_run(run)]).results] == ["best"]


def test_http_lists_a_rename_to_a_client_that_holds_an_earlier_answer(run: Path) -> None:
    """The ETag covers what people say."""
    with served(run.parent) as client:
        before = client.get("/api/v1/runs/run-1")
        append_annotation(run, RENAME)
        after = client.get("/api/v1/runs/run-1", headers={"If-None-Match": before.headers["ETag"]})
        listed = client.get("/api/v1/runs/run-1/annotations").json()["items"]

    assert after.json()["name"] == "best"
    assert [(item["name"], item["tag"], item["untag"]) for item in listed] == [("best", ["kept"], ["draft"])]


def test_a_rename_changes_no_family(run: Path) -> None:
    """Verdicts follow what was recorded."""
    family = family_of(open_run(run).info, "name")

    append_annotation(run, RENAME)

    assert family_of(open_run(run).info, "name") == family


def test_a_file_of_labels_names_a_run_as_lists_do(run: Path) -> None:
    """A person writes the name that is shown."""
    append_annotation(run, RENAME)

    (result,) = backtest(POLICY, [open_run(run)], labels=IncidentLabels({"best": []})).results

    assert result.detection is not None


def test_a_patch_returns_the_run_and_the_next_list_shows_it(run: Path) -> None:
    """The note names its author."""
    with served(run.parent) as client:
        patched = client.patch("/api/v1/runs/run-1", json={"name": "best", "tag": ["a, b"], "untag": ["draft"]})
        (item,) = client.get("/api/v1/runs").json()["items"]
        (noted,) = client.get("/api/v1/runs/run-1/annotations").json()["items"]

    assert patched.json() == item
    assert (item["name"], item["tags"], item["archived"]) == ("best", ["a, b"], False)
    assert (noted["origin"], noted["name"], noted["tag"], noted["archived"]) == ("api", "best", ["a, b"], None)


@pytest.mark.parametrize("body", [{"text": "labels were wrong"}, {"text": "labels were wrong", "tag": ["kept"]}])
def test_a_patch_adds_a_note_in_the_same_annotation_as_its_other_changes(run: Path, body: dict[str, object]) -> None:
    """The list of annotations shows it; what was recorded stays."""
    before = (run / "run.json").read_bytes()
    with served(run.parent) as client:
        patched = client.patch("/api/v1/runs/run-1", json=body)
        (noted,) = client.get("/api/v1/runs/run-1/annotations").json()["items"]

    assert patched.json()["tags"] == ["draft", *noted["tag"]]
    assert (noted["text"], noted["tag"], noted["first_step"]) == ("labels were wrong", body.get("tag", []), None)
    assert (run / "run.json").read_bytes() == before


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"text": ""},
        {"text": "x" * 10_001},
        {"name": ""},
        {"tag": [" "]},
        {"name": "\ud800"},
        {"tags": ["x"]},
        {"archived": "x"},
    ],
)
def test_a_patch_that_cannot_be_is_refused_and_writes_nothing(run: Path, body: dict[str, object]) -> None:
    """It is a problem of the client."""
    with served(run.parent) as client:
        headers = {"Content-Type": "application/json"}
        answer = client.patch("/api/v1/runs/run-1", content=json.dumps(body), headers=headers)

    assert answer.status_code in (400, 422)
    assert not (run / ANNOTATIONS).exists()


def test_a_refusal_names_the_run_by_its_id(run: Path) -> None:
    """Not by a path of the server."""
    with served(run.parent) as client:
        answer = client.patch("/api/v1/runs/digits", json={"name": " "})

    assert answer.json()["detail"] == "run-1: a name must not be empty; got ' '"


def test_a_token_that_may_only_read_changes_no_run(run: Path) -> None:
    """The refusal names the scope that is needed."""
    token = "t" * 32
    with running(create_app(run.parent, tokens=parse_tokens(f"{token} read ann", source=""))) as url:
        headers = {"Authorization": f"Bearer {token}"}
        answer = httpx.patch(f"{url}/api/v1/runs/run-1", json={"archived": True}, headers=headers)

    assert answer.status_code == 403
    assert "write" in answer.json()["detail"]
    assert not (run / ANNOTATIONS).exists()


def test_lists_leave_out_an_archived_run_and_count_it(run: Path) -> None:
    """It is not deleted: SQL has it, and it can be listed again."""
    with Recorder(run.parent, run_id="run-2", name="other") as rec:
        rec.step(loss=1.0)
    with served(run.parent) as client:
        client.patch("/api/v1/runs/run-1", json={"archived": True})
        listed = client.get("/api/v1/runs").json()
        shown = client.get("/").text
        one = client.get("/api/v1/runs/run-1").json()
    printed = steptape("runs", "--store", run.parent)
    rows = open_store(run.parent).rows("SELECT run_id, archived FROM runs ORDER BY run_id")

    assert ([item["run_id"] for item in listed["items"]], listed["archived"]) == (["run-2"], 1)
    assert [name in shown for name in ("run-1", "run-2", "1 archived")] == [False, True, True]
    assert [name in printed.stdout for name in ("run-1", "run-2")] == [False, True]
    assert printed.stderr.startswith("1 archived")
    assert one["archived"]
    assert rows == [{"run_id": "run-1", "archived": True}, {"run_id": "run-2", "archived": False}]


def test_an_archived_run_is_listed_again(run: Path) -> None:
    """The newest note wins."""
    steptape("note", run, "--archive")
    steptape("note", run, "--unarchive")

    assert open_store(run.parent).newest(1).total == 1


def test_a_question_about_archived_runs_finds_them(run: Path) -> None:
    """Any other question leaves them out."""
    steptape("note", run, "--archive")
    look = open_store(run.parent).catalog.look()

    assert [len(selected(look, where)) for where in ("", "digits", "archived:true", "archived:true,false")] == [
        0,
        0,
        1,
        1,
    ]


def test_a_backtest_takes_an_archived_run_like_others(run: Path) -> None:
    """A verdict does not depend on what a person lists."""
    steptape("note", run, "--archive")

    assert len(backtest(POLICY, open_store(run.parent)).results) == 1


def test_two_writers_at_once_lose_nothing(run: Path) -> None:
    """Each tag of each writer is there."""

    def note(writer: int) -> None:
        for number in range(20):
            append_annotation(run, Annotation(f"{writer}-{number}", number, "", tag=(f"{writer}-{number}",)))

    threads = [threading.Thread(target=note, args=(writer,)) for writer in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(shown(run).tags) == 41


def test_the_newest_name_wins_whatever_the_order_of_the_lines(run: Path) -> None:
    """A push appends older lines behind newer ones."""
    append_annotation(run, Annotation("b", 2, "", name="newer"))
    append_annotation(run, Annotation("a", 1, "", name="older"))

    assert shown(run).name == "newer"


def test_notes_that_cannot_be_read_hide_no_run(run: Path) -> None:
    """The run shows what was recorded, and doctor names the file."""
    (run / ANNOTATIONS).mkdir()

    assert shown(run).name == "digits"
    assert "annotations.jsonl" in steptape("doctor", run).stdout


@pytest.mark.parametrize("name", ["a/b", "é 漢字 🙂", '"quoted"\nline', "x" * 1000])
def test_a_name_may_hold_any_characters(run: Path, name: str) -> None:
    """It comes back as it was given, and is printed on one line."""
    noted = steptape("note", run, "--name", name)

    assert len(noted.stdout.splitlines()) == 1
    assert open_store(run.parent).rows("SELECT name FROM runs") == [{"name": name}]


@pytest.mark.parametrize(
    ("note", "said"),
    [
        (Annotation("a", 1, "", name=" "), "a name must not be empty; got ' '"),
        (Annotation("a", 1, "", tag=("",)), "a tag must not be empty; got ''"),
        (Annotation("a", 1, "", name="\udcff"), r"a name must be valid Unicode; got '\udcff'"),
    ],
)
def test_a_name_or_tag_that_cannot_be_is_refused_in_a_sentence(run: Path, note: Annotation, said: str) -> None:
    """Nothing is written."""
    with pytest.raises(InvalidEvent) as refused:
        append_annotation(run, note)

    assert str(refused.value) == f"{run}: {said}"
    assert not (run / ANNOTATIONS).exists()


@pytest.mark.parametrize("name", [" ", 5, ["x"]])
def test_a_line_with_a_name_or_tag_that_cannot_be_keeps_its_text(run: Path, name: object) -> None:
    """Another program may have written it."""
    line = {"id": "a", "time_ns": 1, "text": "said", "name": name, "tag": [name, "kept"]}
    (run / ANNOTATIONS).write_text(json.dumps(line) + "\n")

    assert [note.text for note in read_annotations(run)] == ["said"]
    assert shown(run) == Shown("digits", ("draft", "kept"))


def test_a_command_notes_several_runs(run: Path) -> None:
    """It prints what each is shown as then."""
    with Recorder(run.parent, run_id="run-2", name="other") as rec:
        rec.step(loss=1.0)

    noted = steptape(
        "note", "run-1", "other", "--tag", "kept", "--untag", "draft", "--text", "both", "--store", run.parent
    )

    assert noted.stdout.splitlines() == [
        "run-1: noted; name digits, tags kept",
        "run-2: noted; name other, tags kept",
    ]
    assert [(each.text, each.tag) for each in read_annotations(run)] == [("both", ("kept",))]


def test_ten_thousand_tags_are_read_in_order(run: Path) -> None:
    """A script may tag a run at each of its steps."""
    facts = [Annotation(str(number), number, "", tag=(f"tag-{number}",)) for number in range(10_000)]
    lines = [{"id": fact.id, "time_ns": fact.time_ns, "text": "", "tag": fact.tag} for fact in facts]
    (run / ANNOTATIONS).write_text("".join(json.dumps(line) + "\n" for line in lines))

    assert shown(run).tags == ("draft", *(f"tag-{number}" for number in range(10_000)))
