"""Questions for runs parse, print, filter and sort as "Query runs" says, and errors say where and how to go on."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from drawing import examples
from hypothesis import given
from hypothesis import strategies as st

from steptape.store.errors import QuestionRefused
from steptape.store.events import JsonObject
from steptape.store.journal.writer import JournalWriter
from steptape.store.parquet.sealing import seal
from steptape.store.questions import (
    Clause,
    Ordering,
    Question,
    columns_of,
    fields_of,
    parse,
    parse_fields,
    parse_order,
    selected,
)
from steptape.store.reading.catalog import Look
from steptape.store.reading.summary import Entry, RunSummary, Stamp
from steptape.store.run_fields import RUN_FIELDS, Field, FieldKind
from steptape.store.run_info import Attempt, RunInfo, write_run_info
from steptape.store.store import open_store

NOW = datetime(2026, 11, 28, 12, 0)
DAY_NS = 86_400 * 10**9
NOW_NS = 1_795_867_200 * 10**9

SMALL = {"optimizer": {"name": "AdamW", "lr": 0.001, "betas": [0.9, 0.95]}, "seed": 1, "amp": True}
LARGE = {"optimizer": {"name": "SGD", "lr": 0.1}, "seed": 2, "amp": False, "note": "1e-3", "my key": "a b"}


@pytest.fixture(scope="module")
def look(tmp_path_factory: pytest.TempPathFactory) -> Look:
    """Four runs: ``small`` of today, ``large`` of three days ago, ``old`` of November 1, and ``timeless``."""
    store = tmp_path_factory.mktemp("runs")

    def add(run_id: str, name: str, age_days: float | None, status: str, steps: int, **info: Any) -> None:
        started_ns = 0 if age_days is None else NOW_NS - int(age_days * DAY_NS)
        ended_ns = started_ns + 3600 * 10**9 if started_ns else None
        attempt = Attempt(0, status, started_ns, ended_ns, environment={"host": f"gpu-{name[0]}"}, steps=steps)
        (store / run_id).mkdir()
        write_run_info(store / run_id, RunInfo(run_id, name, (attempt,), **info))

    add("a-1", "small", 0.25, "completed", 100, group="Paper", tags=("base", "keep"), config=SMALL)
    add("b-2", "large", 3, "failed", 2000, group="paper", tags=("old",), config=LARGE)
    add("c-3", "Small again", 27.25, "stopped", 50, config={"lr": 0.01, "seed": None, "steps": 7})
    add("d-4", "timeless", None, "completed", 10, source={"path": "/logs/Wandb/run.json"}, config={"a.x": 1, "b.x": 2})
    return open_store(store).catalog.look()


def found(look: Look, where: str, sort: str = "-started") -> str:
    """Return the first letters of the ids of the runs that match."""
    return "".join(entry.summary.run_id[0] for entry in selected(look, where, sort, now=NOW))


@pytest.mark.parametrize(
    ("where", "runs"),
    [
        ("", "abcd"),
        ("   ", "abcd"),
        # Words are looked for in name, id, group and tags, in any case.
        ("small", "ac"),
        ("SMALL again", "c"),
        ("paper -old", "a"),
        ('"small again"', "c"),
        ("d-4", "d"),
        ("keep", "a"),
        ("completed", ""),
        # Text: ':' in any case, a part of name and source; '=' and '!=' to the letter; '~' is a regular expression.
        ("name:small", "ac"),
        ("name=small", "a"),
        ("name!=small", "bcd"),
        ("name~^s.*l$", "a"),
        ("name~l{2}|time", "acd"),
        ("group:paper", "ab"),
        ("group=paper", "b"),
        ("group!=paper", "a"),
        ("-group=paper", "acd"),
        ("group~.", "ab"),
        ("-group~.", "cd"),
        ("source:wandb", "d"),
        ("id:A-1", "a"),
        ("host:gpu-l", "b"),
        ("status:completed,failed", "abd"),
        ("status:Completed", "ad"),
        ("status!=completed", "bc"),
        # Of several values, one is enough; '!=' wants none.
        ("tag:keep", "a"),
        ("tag:old,base", "ab"),
        ("tag:ol", ""),
        ("tag!=old", "a"),
        ("-tag:old", "acd"),
        # Numbers compare as numbers, also as text.
        ("steps>50", "ab"),
        ("steps >= 50", "abc"),
        ("steps:1e2", "a"),
        ("steps=100,50", "ac"),
        ("steps!=100", "bcd"),
        ("config.steps=7", "c"),
        ("lr<0.01", "a"),
        ("lr<=0.01", "ac"),
        ("lr:1e-3", "a"),
        ("config.lr>0.01", "b"),
        ("optimizer.lr>0", "ab"),
        ("note=0.001", "b"),
        ("note<1", "b"),
        # A key of the configuration holds any value of JSON; null counts as no value.
        ("optimizer.name:adamw", "a"),
        ("optimizer.name=adamw", ""),
        ("optimizer.name!=SGD", "a"),
        ("optimizer.name~^[as]", "ab"),
        ("optimizer.name>1", ""),
        ("amp:true", "a"),
        ("amp=false", "b"),
        ("amp>0", ""),
        ('betas:"[0.9, 0.95]"', "a"),
        ("betas~0.95", "a"),
        ("seed!=1", "b"),
        ("-seed~.", "cd"),
        ('"my key":"A B"', "b"),
        ('config."my key"~^a', "b"),
        ("'my key'='a b'", "b"),
        # Times: a date lasts a day, an age until now.
        ("started:7d", "ab"),
        ("started:12h", "a"),
        ("-started:7d", "cd"),
        ("started:2026-11-01", "c"),
        ("started:2026-11-01,2026-11-25", "bc"),
        ("started:2026-11", "abc"),
        ("started<2026-11-01", ""),
        ("started<=2026-11-01", "c"),
        ("started>2026-11-01", "ab"),
        ("started>=2026-11-01", "abc"),
        ("started<2026-11-01T07:00+01:00", ""),
        ("started<=2026-11-01T07:00+01:00", "c"),
        ("ended<2027", "abc"),
        ("time>59m", "abc"),
        ("time<=3600", "abcd"),
        ("time<1h", "d"),
    ],
)
def test_a_question_finds_its_runs(look: Look, where: str, runs: str) -> None:
    """A run matches all terms; without a field it matches no comparison, and every negated one."""
    assert found(look, where) == runs


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ("lr<", "where:4: a value is missing after '<'. Write one; \"\" is the empty text"),
        ("tag:a,", "where:7: a value is missing after ','. Write one; \"\" is the empty text"),
        ("<5", "where:1: a field is missing; got '<5'. Write FIELD OPERATOR VALUE, as in lr<0.01, or a word"),
        ("steps>1 -", "where:9: a term is missing after '-'; got '-'. Write -tag:old, without a blank"),
        ("lr==5", "where:4: a second operator follows '='; got '=5'. Write one operator, or quotes around a value "),
        ("lr<abc", "where:4: 'lr<' compares with a number; got 'abc'. Write one such as 10, 0.01 or 1e-3"),
        ("lr<nan", "where:4: no number is less or greater than NaN; got 'nan'. Write lr:nan for the runs that have it"),
        ("lr<1,2", "where:4: '<' takes one value; got '1,2'. Write one alone"),
        ("name<5", "where:1: '<' does not suit 'name'. Write one of : = != ~"),
        ("small time:5", "where:7: ':' does not suit 'time'. Write one of < <= > >= ~"),
        (
            "time<soon",
            "where:6: 'time' compares with a time; got 'soon'. Write seconds, or a number with s, m, h, d or w",
        ),
        ("started<7d", "where:9: an age has no order; got '7d'. Write started:7d for within that time, or -started:7d"),
        ("started:2026-13", "where:9: 'started' takes a date, a time or an age; got '2026-13'. Write 2026-11-01, "),
        ("started:9999-12", "where:9: 'started' takes a date, a time or an age; got '9999-12'. Write 2026-11-01, "),
        ("started:30", "where:9: 'started' takes a date, a time or an age; got '30'. Write 2026-11-01, "),
        ("started:99999999d", "where:9: 'started' takes a date, a time or an age; got '99999999d'. Write 2026-11-01, "),
        ("status:asleep", "where:8: no run has this status; got 'asleep'. Statuses: running, completed, stopped, "),
        ("name~(", "where:6: no regular expression of RE2 (missing ): (); got '('. To look for the text itself, "),
        ("name~(?=x)", "where:6: no regular expression of RE2 (invalid perl operator: (?=); got '(?=x)'. To look for"),
        ('"abc', "where:1: the closing quote is missing; got '\"abc'. End it with \""),
        ('tag:"a"b', "where:8: a blank is missing after the closing quote; got 'b'. Put blanks between terms"),
        ('"a"b', "where:4: a blank is missing after the closing quote; got 'b'. Put blanks between terms"),
        ('small ""', "where:7: nothing is between the quotes; got '\"\"'. Write a word or a name there"),
        ("min(loss", "where:1: min() takes the name of one metric; got 'min(loss'. Write min(METRIC); a name with "),
        ("max()>1", "where:1: max() takes the name of one metric; got 'max()>1'. Write max(METRIC); a name with "),
        ("min(loss)", "where:1: an operator is missing; got 'min(loss)'. Write min(loss)<2, for example"),
        (
            "a OR b",
            "where:3: the language has no such word; got 'OR'. Write tag:a,b for one of several values; to look ",
        ),
        ("seeed:1", "where:1: no run has this field; got 'seeed'. Did you mean seed"),
        ("steps>1 LR<1", "where:9: no run has this field; got 'LR'. Did you mean lr or optimizer.lr?"),
        ("config.opt<1", "where:1: no run has this field; got 'opt'. Did you mean optimizer.name or optimizer.lr or "),
        ("zzz:1", "where:1: no run has this field; got 'zzz'. Fields of every run: name, id, group, tag, status, "),
        ("x:1", "where:1: several keys of each run end so; got 'x'. Write config.a.x or config.b.x"),
        ("a" * 2001, "where: 2,001 characters are too many. Write at most 2,000"),
    ],
)
def test_an_error_says_where_it_is_what_is_wrong_and_how_to_go_on(look: Look, where: str, message: str) -> None:
    """The place counts characters from 1, within the parameter."""
    with pytest.raises(QuestionRefused) as caught:
        selected(look, where)

    assert str(caught.value).startswith(message)


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Look:
    """Three trainings: ``good`` with rule firings, ``bad`` that ends in NaN, and ``idle`` without events."""
    store = tmp_path_factory.mktemp("runs")

    def add(run_id: str, config: JsonObject, losses: Sequence[float], *fired: str) -> None:
        (store / run_id).mkdir()
        attempt = Attempt(0, "completed", NOW_NS, NOW_NS + (1 + len(losses)) * 10**9, steps=len(losses))
        write_run_info(store / run_id, RunInfo(run_id, run_id, (attempt,), config=config))
        writer = JournalWriter(store / run_id, run_id=run_id)
        for step, loss in enumerate(losses, 1):
            values = {"eval/loss": loss, "lr": 1e-4, "my metric": 1.0}
            at_ns = NOW_NS + step * 10**9
            writer.append("step_end", tuple(values), tuple(values.values()), step=step, time_ns=at_ns, elapsed_ns=step)
        for number, name in enumerate(fired):
            attrs = {"controller": name, "trigger": "on_step_end", "event_seq": 0, "operations": [], "values": {}}
            attrs |= {"mode": "shadow" if number else "act", "event_step": 1}
            writer.append("decision", (), (), step=1, time_ns=NOW_NS, elapsed_ns=1, attrs=json.dumps(attrs).encode())
        writer.close()

    add("good", {"lr": 0.01, "eval/loss": "mse"}, [3.0, 1.0, 2.0], "spike", "Plateau")
    add("bad", {"lr": 0.1}, [0.5, math.inf, math.nan], "spike")
    add("idle", {}, [])
    return open_store(store).catalog.look()


@pytest.mark.parametrize(
    ("where", "runs"),
    [
        ("metric.eval/loss<2.5", "good"),
        ("metric.eval/loss>0", "good"),
        ("metric.eval/loss!=2", "bad"),
        ("metric.eval/loss:nan", "bad"),
        ("-metric.eval/loss<1e9", "bad idle"),
        ("min(eval/loss)<1", "bad"),
        ("min(eval/loss)>=0.5", "good bad"),
        ("max(eval/loss)>1", "good"),
        ("metric.eval/loss~.", "good bad"),
        ("-max(eval/loss)~.", "idle"),
        ("-age~. steps~^[23]$", ""),
        ("started~^2026-11-28T12 eta~.", ""),
        ("time~. ended~T12:00:04", "good bad"),
        ("eval/loss:MSE", "good"),
        ("lr>=0.01", "good bad"),
        ("metric.lr<0.01", "good bad"),
        ('"my metric"=1', "good bad"),
        ('max("my metric"):1', "good bad"),
        ("fired:spike", "good bad"),
        ("fired:plateau", "good"),
        ("fired!=Plateau", "bad"),
        ("-fired~.", "idle"),
        ("age<5s", "good bad"),
        ("age>=1h", ""),
        ("-age<5", "idle"),
    ],
)
def test_metrics_and_firings_are_fields(measured: Look, where: str, runs: str) -> None:
    """A bare name is a key where any run has one, else the last value of a metric; NaN is less than nothing."""
    found = selected(measured, where, "name", now=NOW + timedelta(seconds=7))

    assert {entry.summary.run_id for entry in found} == set(runs.split())


@pytest.mark.parametrize(
    ("sort", "runs"),
    [
        ("metric.eval/loss", "good bad idle"),
        ("-metric.eval/loss", "good bad idle"),
        ("min(eval/loss)", "bad good idle"),
        ("-max(eval/loss)", "good bad idle"),
        ("lr", "good bad idle"),
        ("fired", "bad good idle"),
    ],
)
def test_runs_are_sorted_by_metrics(measured: Look, sort: str, runs: str) -> None:
    """NaN comes after every number in either direction, and runs without the metric last."""
    assert [entry.summary.run_id for entry in selected(measured, "", sort)] == runs.split()


def test_a_metric_that_no_run_has_is_refused_with_the_nearest(measured: Look) -> None:
    """An explicit kind of field has the names of its kind."""
    refused = []
    for where in ("eval_loss<2", "min(loss)<1", "metric.lrr>1", "config.lrr>1"):
        with pytest.raises(QuestionRefused) as caught:
            selected(measured, where)
        refused.append(caught.value.fix)

    assert refused == ["Did you mean eval/loss?", "Did you mean eval/loss?", "Did you mean lr?", "Did you mean lr?"]


def test_metrics_are_listed_with_a_prefix_where_a_key_has_their_name(measured: Look) -> None:
    """So each name means the field that it stands for."""
    facts = {each.name: each.kind for each in fields_of(measured) if each.kind != "run"}

    assert facts == {
        "lr": "config",
        "eval/loss": "config",
        "metric.eval/loss": "metric",
        "metric.lr": "metric",
        '"my metric"': "metric",
    }


def test_a_metric_that_is_asked_for_is_kept_of_a_settled_run(measured: Look, tmp_path: Path) -> None:
    """A question about thousands of runs makes it once."""
    folder = tmp_path / "good"
    shutil.copytree(next(entry.folder for entry in measured.entries if entry.name == "good"), folder)
    seal(folder)
    for path in (folder / "run.json", folder):
        os.utime(path, (1e9, 1e9))

    (entry,) = open_store(tmp_path).catalog.look().entries
    assert entry.is_settled
    assert entry.metric("eval/loss") is entry.metric("eval/loss")
    assert entry.metric("other") is None


def test_a_run_whose_events_are_damaged_lacks_its_metrics_and_hides_no_other(measured: Look, tmp_path: Path) -> None:
    """The doctor finds the damage."""
    for entry in measured.entries:
        shutil.copytree(entry.folder, tmp_path / entry.name)
        seal(tmp_path / entry.name)
    (table,) = (tmp_path / "bad").glob("events-*.parquet")
    table.write_bytes(table.read_bytes()[:-9] + b"damaged!!")
    (tmp_path / "bad" / "summary.jsonl").unlink()

    found = selected(open_store(tmp_path).catalog.look(), "max(eval/loss)>0 fired:spike")
    assert [entry.summary.run_id for entry in found] == ["good"]


#: What each everyday example of "Query runs" finds among the runs of ``everyday``.
EVERYDAY = {
    "lr<0.01 eval/loss<2": "gpt-10m",
    "min(eval/loss)<1.9 -tag:old": "gpt-10m, diverged",
    "status:running,stalled age>1h": "silent",
    "fired:spike started:7d": "diverged",
    "-fired~. time>2h": "silent",
    "eval/loss:nan,inf": "diverged",
    "optimizer.name:adamw batch:32,64": "gpt-10m",
    "name~^gpt-[0-9]+m$ -started:2026": "gpt-10m",
    '"wide model" group:ablation': "wide model 2",
    "-seed~.": "silent",
}


@pytest.fixture(scope="module")
def everyday(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Look]:
    """Four runs, one of them live."""
    store = tmp_path_factory.mktemp("runs")
    writers = []

    def add(name: str, age_h: int, status: str, losses: Sequence[float], fired: str = "", **info: Any) -> None:
        folder, began_ns = store / name.replace(" ", "-"), NOW_NS - age_h * 3600 * 10**9
        folder.mkdir()
        ended_ns = None if status == "running" else began_ns + 3600 * 10**9
        attempt = Attempt(0, status, began_ns, ended_ns, steps=None if status == "running" else len(losses))
        write_run_info(folder, RunInfo(folder.name, name, (attempt,), **info))
        writers.append(JournalWriter(folder, run_id=folder.name))
        for step, loss in enumerate(losses, 1):
            at_ns = began_ns + 3 * 3600 * 10**9
            writers[-1].append("step_end", ("eval/loss",), (loss,), step=step, time_ns=at_ns, elapsed_ns=step)
        if fired:
            attrs = {"controller": fired, "trigger": "on_step_end", "event_seq": 0, "operations": [], "values": {}}
            text = json.dumps({**attrs, "mode": "act", "event_step": 1}).encode()
            writers[-1].append("decision", (), (), step=1, time_ns=began_ns, elapsed_ns=1, attrs=text)
        if status != "running":
            writers[-1].close()

    adam = {"optimizer": {"name": "AdamW", "lr": 0.001}, "batch": 64, "seed": 1}
    sgd = {"optimizer": {"name": "SGD", "lr": 0.1}, "batch": 64, "seed": 2}
    add("gpt-10m", 24 * 400, "completed", [3.0, 1.5], config=adam)
    add("diverged", 48, "failed", [1.0, math.nan], "spike", config=sgd, tags=("new",))
    add(
        "wide model 2",
        24 * 30,
        "completed",
        [1.0, 2.5],
        "spike",
        config={**adam, "batch": 8},
        group="ablation",
        tags=("old",),
    )
    add("silent", 24, "running", [4.0], config={"optimizer": {"lr": 0.1}})
    yield open_store(store).catalog.look()
    writers[-1].close()


def test_every_example_of_the_document_finds_its_runs(everyday: Look) -> None:
    """The table of "Query runs" has these questions, and each chooses among the runs."""
    page = Path(__file__).parents[1] / "docs" / "how-to" / "query.md"
    table = page.read_text().partition("| question | finds runs |")[2].partition("\n\n")[0]
    questions = re.findall(r"^\| `(.*?)` \|", table, re.MULTILINE)

    found = {where: {entry.summary.name for entry in selected(everyday, where, now=NOW)} for where in questions}
    assert found == {where: set(names.split(", ")) for where, names in EVERYDAY.items()}


def test_a_store_without_runs_has_no_unknown_fields() -> None:
    """Nothing says yet which fields its runs will have."""
    assert list(selected(Look((), ()), "lr<1", "-eval/loss")) == []


@pytest.mark.parametrize(
    ("sort", "runs"),
    [
        ("started", "cbad"),
        ("-started", "abcd"),
        ("steps", "dcab"),
        ("-steps", "bacd"),
        ("name", "bacd"),
        ("group", "abcd"),
        ("-group", "abcd"),
        ("time", "dabc"),
        ("lr", "acbd"),
        ("-lr", "bcad"),
        ("optimizer.name", "abcd"),
        ("-optimizer.name", "bacd"),
        ("-config.seed", "bacd"),
        ('"my key"', "bacd"),
    ],
)
def test_runs_are_sorted_by_any_field(look: Look, sort: str, runs: str) -> None:
    """In either direction runs without the field come last, and equal ones newest first."""
    assert found(look, "", sort) == runs


@pytest.mark.parametrize(
    ("sort", "message"),
    [
        ("sted", "sort:1: no run has this field; got 'sted'. Did you mean"),
        ("-sted", "sort:2: no run has this field; got 'sted'. Did you mean"),
        ("", "sort:1: a field is missing. Write FIELD OPERATOR"),
        ("steps name", "sort:6: an order is one field; got 'name'. Write FIELD or -FIELD, such as -started"),
    ],
)
def test_an_order_that_is_none_is_refused(look: Look, sort: str, message: str) -> None:
    """With its place, as in questions."""
    with pytest.raises(QuestionRefused) as caught:
        selected(look, "", sort)

    assert str(caught.value).startswith(message)


def test_columns_are_the_values_of_fields(look: Look) -> None:
    """None where a run lacks the field; values of the configuration as they are."""
    columns = columns_of(look, "lr, tag,optimizer.betas , 'my key',lr,note,started", look.newest_first)

    assert [tuple(column) for column in columns[:-1]] == [
        ("lr", "number", [0.001, 0.1, 0.01, None]),
        ("tag", "text", [("base", "keep"), ("old",), None, None]),
        ("optimizer.betas", "text", [[0.9, 0.95], None, None, None]),
        ('"my key"', "text", [None, "a b", None, None]),
        ("note", "number", [None, 0.001, None, None]),
    ]
    assert columns[-1].type == "moment"
    assert columns_of(look, " ", look.newest_first) == []


@pytest.mark.parametrize(("columns", "place"), [(",", 1), ("lr,", 4), ("lr,,steps", 4), ("lr steps", 4), ("lr<1", 3)])
def test_a_list_of_fields_that_is_none_is_refused(columns: str, place: int) -> None:
    """With its place, as in questions."""
    with pytest.raises(QuestionRefused, match=f"^columns:{place}: "):
        parse_fields(columns)


def test_fields_of_a_store_are_listed_with_type_count_and_commonest_values(look: Look) -> None:
    """Each name is spelled as a question can hold it."""
    facts = {each.name: each for each in fields_of(look)}

    assert [*facts][: len(RUN_FIELDS)] == [*RUN_FIELDS]
    assert facts["status"][1:] == ("run", "text", 4, ("completed", "failed", "stopped"))
    assert facts["tag"][1:4] == ("run", "texts", 2)
    assert facts["optimizer.lr"][1:] == ("config", "number", 2, ())
    assert facts["optimizer.name"][1:] == ("config", "text", 2, ("AdamW", "SGD"))
    assert facts["config.steps"][1:4] == ("config", "number", 1)
    assert '"my key"' in facts


NAMES = st.sampled_from(["lr", "a.b", "eval/loss", "my key", "status", "min(x", "config.a", "-x", 'q"q', "a,b", "!"])
PATTERNS = st.sampled_from(["a b", "^x", "[a,b]{1,2}", "=", '"', "\\d+"])
KINDS: list[FieldKind] = ["run", "name", "config", "metric", "min", "max"]
TEXTS = st.text(st.sampled_from("abAB01 ._-/\\\"',:=<>~!()"), min_size=1, max_size=6)
VALUES = st.sampled_from(["1", "0.5", "1e-3", "nan", "true", "ab", "AB", "a b", "", "-", "[1]"]) | TEXTS


@st.composite
def fields(draw: st.DrawFn) -> Field:
    """A field of any kind."""
    kind = draw(st.sampled_from(KINDS))
    return Field(kind, draw(st.sampled_from(sorted(RUN_FIELDS)) if kind == "run" else NAMES | TEXTS))


@st.composite
def terms(draw: st.DrawFn) -> Clause:
    """A term whose operator and values suit its field."""
    is_negated = draw(st.booleans())
    if draw(st.integers(0, 3)) == 0:
        return Clause(is_negated, None, "", (draw(NAMES | TEXTS),))
    named = draw(fields())
    numbers = st.sampled_from(["1", "-2", "0.5", "1e-3"])
    match named.type:
        case "text" | "texts" | "value":
            operator = draw(st.sampled_from([":", "=", "!=", "~"]))
            values = st.sampled_from(["completed", "stopped"]) if named.name == "status" else VALUES
        case "moment":
            operator, values = draw(st.sampled_from([":", "<", ">="])), st.sampled_from(["2026", "2026-01-02T03:04Z"])
        case "number":
            operator, values = draw(st.sampled_from([":", "=", "!=", "<", ">"])), numbers
        case _:
            operator, values = draw(st.sampled_from(["<", ">="])), st.sampled_from(["2h", "30", "1.5d"])
    if operator == "~":
        return Clause(is_negated, named, operator, (draw(PATTERNS),))
    most = 1 if operator in "<>=" and operator != "=" else 3
    return Clause(is_negated, named, operator, tuple(draw(st.lists(values, min_size=1, max_size=most))))


@examples(300)
@given(drawn=st.lists(terms(), max_size=4))
def test_a_printed_question_parses_to_itself(drawn: list[Clause]) -> None:
    """Quotes are where a name or a value needs them."""
    question = Question(tuple(drawn), NOW)

    assert parse(str(question)) == question


@given(named=fields(), is_descending=st.booleans())
def test_printed_orders_and_columns_parse_to_themselves(named: Field, is_descending: bool) -> None:
    """Alone and in a list."""
    order = Ordering(named, is_descending)

    assert parse_order(str(order)) == order
    assert parse_fields(f"{named},lr , {named}") == tuple(dict.fromkeys((named, Field("name", "lr"))))


WORDS = ["lr", "min(", ")", "config.", "metric.", "started", "7d", "2026-11-01", "tag"]
PIECES = st.sampled_from([*WORDS, *"\"':=<>~!,- \\(0"])


@examples(500)
@given(text=st.lists(PIECES | st.characters(), max_size=12).map("".join))
def test_any_text_is_a_question_or_is_refused_with_its_place(look: Look, text: str) -> None:
    """Nothing else happens, in a filter, an order or a list of columns."""
    for parameter, read in (
        ("where", lambda: selected(look, text)),
        ("sort", lambda: selected(look, "", text)),
        ("columns", lambda: columns_of(look, text, look.entries)),
    ):
        try:
            read()
        except QuestionRefused as error:
            place = int(error.where.removeprefix(f"{parameter}:"))
            assert 1 <= place <= len(text) + 1


def entry_of(number: int, config: JsonObject, tags: tuple[str, ...]) -> Entry:
    """Return an entry of a run, which is in no folder."""
    started = None if number % 5 == 4 else NOW - timedelta(days=number % 3)
    name, steps, text = "ab" if number % 2 else "B", number % 3, json.dumps(config)
    empty = RunSummary._make([None] * len(RunSummary._fields))
    summary = empty._replace(
        run_id=f"run-{number}", name=name, tags=tags, status="completed", started=started, steps=steps, config=text
    )
    return Entry(Path(), summary.run_id, Stamp(0, 0, 0), summary, files="")


SCALARS = st.sampled_from([0, 1, -2, 0.5, 0.001, "1e-3", "ab", "AB", "NaN", True, None, "1"])
CONFIGS = st.dictionaries(st.sampled_from(["lr", "k"]), SCALARS | st.fixed_dictionaries({"lr": SCALARS}), max_size=2)
TAGS = st.lists(st.sampled_from(["a", "AB"]), max_size=2).map(tuple)
STORES = st.lists(st.tuples(CONFIGS, TAGS), min_size=1, max_size=6)
FIELDS = st.sampled_from([Field("run", "name"), Field("run", "tag"), Field("config", "lr"), Field("config", "k.lr")])


def plainly(entry: Entry, term: Clause) -> bool:
    """Whether a run matches a term, by the words of the document, one run at a time."""
    run, config = entry.summary, dict[str, Any]()
    for key, value in json.loads(run.config).items():
        config |= {f"{key}.{inner}": one for inner, one in value.items()} if isinstance(value, dict) else {key: value}
    if term.field is None:
        word = term.values[0].lower()
        return any(word in text.lower() for text in (run.name, run.run_id, *run.tags)) is not term.is_negated
    if term.field.kind == "run":
        had: list[Any] = [run.name] if term.field.name == "name" else list(run.tags)
    else:
        name = term.field.name
        keys = [name] if name in config else [key for key in config if key.endswith(f".{name}")]
        had = [config[keys[0]]] if len(keys) == 1 and config[keys[0]] is not None else []
    return (bool(had) and compared(had, term)) is not term.is_negated


def compared(had: list[Any], term: Clause) -> bool:
    """Whether the values of a field match a comparison."""

    def number(value: Any) -> float:
        try:
            return math.nan if isinstance(value, bool) else float(value)
        except ValueError:
            return math.nan

    def equal(value: Any, wanted: str) -> bool:
        if number(value) == number(wanted) or str(value) == wanted == "NaN":
            return term.field is not None and term.field.name not in ("name", "tag")
        text = value if isinstance(value, str) else json.dumps(value)
        is_part = term.field == Field("run", "name") and term.operator == ":"
        text, wanted = (text.lower(), wanted.lower()) if term.operator == ":" else (text, wanted)
        return wanted in text if is_part else text == wanted

    match term.operator:
        case ":" | "=":
            return any(equal(value, wanted) for value in had for wanted in term.values)
        case "!=":
            return not any(equal(value, wanted) for value in had for wanted in term.values)
        case "<":
            return number(had[0]) < float(term.values[0])
        case _:
            return number(had[0]) >= float(term.values[0])


@st.composite
def plain_terms(draw: st.DrawFn) -> Clause:
    """A term that ``plainly`` evaluates."""
    is_negated, wanted = draw(st.booleans()), st.sampled_from(["1", "0.5", "0.001", "ab", "AB", "B", "a", "true"])
    if draw(st.integers(0, 4)) == 0:
        return Clause(is_negated, None, "", (draw(st.sampled_from(["ab", "AB", "run-1", "B"])),))
    named, limits = draw(FIELDS), st.sampled_from(["1", "0.001", "-2"])
    if named.kind != "run" and draw(st.booleans()):
        return Clause(is_negated, named, draw(st.sampled_from(["<", ">="])), (draw(limits),))
    operator = draw(st.sampled_from([":", "=", "!="]))
    return Clause(is_negated, named, operator, tuple(draw(st.lists(wanted, min_size=1, max_size=2))))


@examples(400)
@given(held=STORES, drawn=st.lists(plain_terms(), min_size=1, max_size=3))
def test_a_question_finds_what_its_words_say_run_by_run(
    held: list[tuple[JsonObject, tuple[str, ...]]], drawn: list[Clause]
) -> None:
    """An evaluation by columns agrees with one that reads each run plainly."""
    entries = [entry_of(number, *each) for number, each in enumerate(held)]
    expected = [entry for entry in entries if all(plainly(entry, term) for term in drawn)]

    question = Question(tuple(drawn), NOW)
    assert question.admitted(entries) == expected


@given(held=STORES, name=st.sampled_from(["lr", "started", "tag", "steps", "k"]), is_descending=st.booleans())
def test_places_in_an_order_are_those_of_its_sorted_runs(
    held: list[tuple[JsonObject, tuple[str, ...]]], name: str, is_descending: bool
) -> None:
    """So a cursor that names a place finds the runs after it."""
    entries = [entry_of(number, *each) for number, each in enumerate(held)]
    newest_first = sorted(entries, key=lambda entry: entry.summary.age_order, reverse=True)
    order = Ordering(Field("run" if name in RUN_FIELDS else "config", name), is_descending)

    ordered = order.sorted(newest_first)
    assert [order.after(ordered, order.place_of(entry)) for entry in ordered] == [
        ordered[number + 1 :] for number in range(len(ordered))
    ]


def test_a_pattern_that_backtracks_without_end_is_answered_at_once(
    store_path: Path, store_folder: Callable[..., Path]
) -> None:
    """Python's ``re`` would take hours for this one."""
    store_folder("a" * 60 + "-b")

    assert len(selected(open_store(store_path).catalog.look(), "name~^(a+)+$")) == 0
