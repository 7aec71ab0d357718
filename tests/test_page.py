"""The server's pages show their data, load only local files, escape untrusted text, and explain errors."""

from __future__ import annotations

import dataclasses
import html
import json
import re
import shutil
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from served_page import POLICY, SPIKE, STEPS, WRONG, record_run, serving
from typer.testing import CliRunner
from waiting import PATIENCE_S

from steptape import Recorder, open_run, open_store
from steptape.api.pages.sparkline import HEIGHT, points_of, sparkline
from steptape.cli.app import app
from steptape.replay.reports.html import glossary
from steptape.store.run_info import write_run_info

GLOSSARY = Path(__file__).parents[1] / "docs" / "reference" / "GLOSSARY.md"

#: A text that would run, or end its context, if unescaped.
HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\"'&{{7*7}}"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with rules, a run without, and one with hostile names everywhere."""
    folder = tmp_path_factory.mktemp("page")
    policy = folder / "guard.yaml"
    policy.write_text(POLICY)
    runs = folder / "runs"
    record_run(runs, "guarded", rules=policy, group="cats", tags=("small",), config={"optimizer": {"lr": 0.1}})
    record_run(runs, "free", config={"optimizer": {"lr": 0.2}})
    with Recorder(runs, name=HOSTILE, group=HOSTILE, tags=(HOSTILE,), config={HOSTILE: HOSTILE}) as rec:
        for _ in range(3):
            rec.step({HOSTILE: 1.0}, samples=[1.0], sample_ids=[HOSTILE])
        rec.annotate(HOSTILE)
    return runs


@pytest.fixture(scope="module")
def client(store: Path) -> Iterator[httpx.Client]:
    """A client of a server over that store, with a folder of policies."""
    with serving(store, policies_path=store.parent) as url, httpx.Client(base_url=url, timeout=PATIENCE_S) as client:
        yield client


def run_id(store: Path, name: str) -> str:
    """Return the id of the run with that name."""
    return open_store(store).run(name).run_id


def data_of(page: str) -> Any:
    """Return the data that a page passes to its script."""
    (found,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page, flags=re.DOTALL)
    return json.loads(found)


def tags_of(page: str) -> list[tuple[str, dict[str, str]]]:
    """Return the tags of a page as a browser parses them, with their attributes."""
    found: list[tuple[str, dict[str, str]]] = []

    class Reader(HTMLParser):
        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            found.append((tag, {name: value or "" for name, value in attrs}))

    Reader().feed(page)
    return found


def is_active(attribute: str) -> bool:
    """Whether an attribute holds an inline script or style."""
    return attribute.startswith("on") or attribute == "style"


PAGES = (
    *("/", "/compare", "/backtest", "/glossary", "/login"),
    *("/runs/guarded", "/compare?run=guarded&run=free", "/backtest?run=free"),
)


@pytest.mark.parametrize("path", PAGES)
def test_every_page_is_html_that_loads_nothing_from_elsewhere(client: httpx.Client, path: str) -> None:
    """A page has no other host and no inline script or style, and its content security policy forbids them."""
    answer = client.get(path).raise_for_status()

    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    assert "'unsafe" not in answer.headers["content-security-policy"]
    tags = tags_of(answer.text)
    loaded = [attributes[name] for _, attributes in tags for name in ("src", "href", "action") if name in attributes]
    assert loaded
    assert all(target.startswith(("/", "#")) and not target.startswith("//") for target in loaded)
    assert not [tag for tag, attributes in tags if tag == "style" or any(map(is_active, attributes))]
    assert all("src" in found or found["type"] == "application/json" for tag, found in tags if tag == "script")


@pytest.mark.parametrize("path", PAGES)
def test_every_file_that_a_page_loads_is_served(client: httpx.Client, path: str) -> None:
    """Scripts have an executable media type; a repeated request sends no body."""
    for target in re.findall(r'(?:src|href)="(/static/[^"]*)"', client.get(path).text):
        answer = client.get(target).raise_for_status()
        again = client.get(target, headers={"If-None-Match": answer.headers["etag"]})

        assert answer.headers["content-type"].split(";")[0] in ("text/javascript", "text/css", "image/svg+xml")
        assert (again.status_code, again.content) == (304, b"")


@pytest.mark.parametrize("path", PAGES)
def test_files_of_a_page_are_kept_for_good_under_the_address_of_their_version(client: httpx.Client, path: str) -> None:
    """Scripts that import each other share one version. An address of another version serves the file unkept."""
    for target in re.findall(r'(?:src|href)="(/static/[^"]*)"', client.get(path).text):
        answer = client.get(target)
        other = client.get(re.sub("/static/[0-9a-f]{24}/", "/static/0123456789abcdef01234567/", target))
        plain = client.get(target, headers={"Accept-Encoding": "identity"})

        assert answer.headers["cache-control"] == "public, max-age=31536000, immutable"
        assert other.headers["cache-control"] == "no-cache"
        assert answer.headers["content-encoding"] == "gzip"
        assert answer.content == other.content == plain.content


def test_every_script_that_a_script_imports_is_served(client: httpx.Client) -> None:
    """Modules import each other."""
    scripts = Path(__file__).parents[1].joinpath("api", "pages", "static").glob("*.js")
    imported = {
        name for path in scripts for name in re.findall(r'from "\./([\w.]+)"', path.read_text(encoding="utf-8"))
    }

    assert imported
    assert all(client.get(f"/static/{name}").status_code == 200 for name in imported)


@pytest.mark.parametrize("name", ["../files.py", "%2e%2e/files.py", "nothing.js", "page.css/", "..%2f..%2fapp.py"])
def test_no_other_file_is_served(client: httpx.Client, name: str) -> None:
    """A name is compared with the existing ones and never becomes a path."""
    assert client.get(f"/static/{name}").status_code == 404


def test_nothing_hostile_runs(client: httpx.Client, store: Path) -> None:
    """Names of runs, groups, tags, metrics, samples, config and annotations are text everywhere."""
    hostile = run_id(store, HOSTILE)
    paths = ("/", f"/runs/{hostile}", f"/runs/{hostile}/worst-samples", f"/compare?run={hostile}&run=free",
             f"/backtest?run={hostile}", "/")  # fmt: skip
    for path in paths:
        text = client.get(path).raise_for_status().text

        assert "alert(1)" in text or path.startswith("/backtest")
        assert "<script>alert" not in text
        assert "<img" not in text
        assert "49" not in re.findall(r"<h1>(.*?)</h1>", text)
    found = data_of(client.get(f"/runs/{hostile}").text)
    assert (found["name"], found["metrics"]) == (HOSTILE, [HOSTILE])


@pytest.mark.parametrize("path", ["/?q={}", "/compare?run={}", "/login?next={}", "/backtest?policy={}", "/runs/{}"])
def test_what_a_link_says_is_text(client: httpx.Client, path: str) -> None:
    """A foreign link may hold anything."""
    answer = client.get(path.format(quote(HOSTILE, safe="")))

    if answer.headers["content-type"].startswith("text/html"):
        assert "<script>alert" not in answer.text
        assert "<img" not in answer.text
    else:
        assert answer.headers["content-type"] == "application/problem+json"
        assert answer.headers["x-content-type-options"] == "nosniff"


def test_runs_are_searched_by_every_word(client: httpx.Client) -> None:
    """A word is part of name, id, group or tag, in any case."""

    def found(where: str) -> list[str]:
        page = client.get("/", params={"where": where}).text
        return re.findall(r'<a href="/runs/[^"]*" title="[^"]*">(\w+)</a>', page)

    assert found("GUARD small status:completed") == ["guarded"]
    assert found("free") == ["free"]
    assert sorted(found("status:completed")) == ["free", "guarded"]
    assert "No run matches" in client.get("/", params={"where": "nothing at all"}).text


def test_runs_are_sorted_either_way(client: httpx.Client) -> None:
    """The request names the field."""

    def names(sort: str) -> list[str]:
        page = client.get("/", params={"sort": sort, "where": "status:completed"}).text
        return re.findall(r'<a href="/runs/[^"]*" title="[^"]*">(\w+)</a>', page)

    assert names("name") == ["free", "guarded"]
    assert names("-name") == ["guarded", "free"]


def test_a_page_beyond_the_last_shows_the_last(client: httpx.Client) -> None:
    """Runs may have been deleted since the link was made."""
    assert "guarded" in client.get("/", params={"page": 99}).text


def test_the_table_draws_each_run_in_a_line(client: httpx.Client) -> None:
    """The line is the loss in few points."""
    lines = re.findall(r'<polyline points="([^"]*)"', client.get("/").text)

    assert len(lines) == 3
    assert max(len(line.split()) for line in lines) <= 60


def test_one_spike_does_not_flatten_a_run_s_line() -> None:
    """The line ends at the border there; the other values use its height."""
    heights = [float(point.split(",")[1]) for point in points_of([1.0 + k % 4 for k in range(40)] + [1e6]).split()]

    assert min(heights[:-1]) == heights[-1] == 1
    assert max(heights) == HEIGHT - 1


def test_a_question_that_cannot_be_read_is_not_answered_with_no_run(client: httpx.Client) -> None:
    """The fault is said alone; a question that finds nothing says that."""
    refused, empty = (client.get("/", params={"where": where}).text for where in ("lr<<1", "lr<0"))

    assert "a second operator" in refused
    assert "No run matches" not in refused
    assert "No run matches" in empty


def test_a_live_run_without_sample_losses_has_no_section_for_them(tmp_path: Path) -> None:
    """It appears with the first one."""
    with Recorder(tmp_path, name="live", quiet=True) as rec, serving(tmp_path) as url:
        rec.step(loss=1.0)
        before = httpx.get(f"{url}/runs/live", timeout=PATIENCE_S).text
        rec.step(loss=1.0, samples=[1.0], sample_ids=["a"])
        after = httpx.get(f"{url}/runs/live", timeout=PATIENCE_S).text

    assert ["<h2>Samples</h2>" in text for text in (before, after)] == [False, True]


def test_a_run_s_page_tells_what_is_known(client: httpx.Client) -> None:
    """It shows status, steps, group, tags, configuration and rules."""
    text = client.get("/runs/guarded").text

    assert all(part in text for part in ("guarded", "completed", f"{STEPS}", "cats", "small", "optimizer.lr"))
    assert "loss &gt; spike * mean(loss, window)" in text
    assert data_of(text)["metrics"] == ["loss", "lr", "eval_loss"]


def _items(url: str) -> list[dict[str, Any]]:
    """Return the items of all pages of a list."""
    items: list[dict[str, Any]] = []
    cursor: str | None = ""
    while cursor is not None:
        page = httpx.get(f"{url}&cursor={cursor}" if cursor else url, timeout=PATIENCE_S).json()
        items, cursor = items + page["items"], page["next"]
    return items


def test_a_run_without_a_clock_tells_no_time(tmp_path: Path) -> None:
    """Imported logs often lack a clock; page and API must not show 1970. Such runs come last in either order."""
    (tmp_path / "log.csv").write_text("step,loss\n1,2.0\n2,1.0\n")
    assert CliRunner().invoke(app, ["import", "auto", str(tmp_path), "--store", str(tmp_path / "runs")]).exit_code == 0
    Recorder(tmp_path / "runs", name="timed").close()
    with serving(tmp_path / "runs") as url:
        page = httpx.get(url, timeout=PATIENCE_S).text
        listed = {sort: _items(f"{url}/api/v1/runs?sort={sort}&limit=1") for sort in ("started", "-started", "-steps")}
        before = httpx.get(f"{url}/api/v1/runs?where=started<2000", timeout=PATIENCE_S).json()["items"]

    assert "1970" not in page
    assert [[run["started"] is None for run in runs] for runs in listed.values()] == [
        [False, True],
        [False, True],
        [True, False],
    ]
    assert before == []
    assert re.findall(r'data-label="Time"[^>]*>([^<]*)<', page)[-1] == "\N{EN DASH}"


def test_an_attempt_that_goes_on_says_how_far_it_is(tmp_path: Path) -> None:
    """The header of the page shows it too."""
    with Recorder(tmp_path) as rec:
        for _ in range(1234):
            rec.step(loss=1.0)
        with serving(tmp_path) as url:
            page = httpx.get(f"{url}/runs/{rec.run_id}", timeout=PATIENCE_S).text

    assert "<td>1,234</td>" in page


def test_a_page_with_curves_loads_one_script_of_another_project(client: httpx.Client) -> None:
    """It is the plotter, with its style sheet, and no other page loads it. The first visit is light."""
    for path, has in (("/runs/guarded", True), ("/compare?run=guarded", True), ("/backtest", True), ("/", False)):
        loaded = re.findall(r'(?:src|href)="/static/[0-9a-f]+/([^"]*)"', client.get(path).text)

        assert {"uPlot.iife.min.js", "uPlot.min.css"}.issubset(loaded) is has
    sizes = [len(client.get(f"/static/{name}").read()) for name in ("uPlot.iife.min.js", "uPlot.min.css")]
    assert sum(sizes) < 60_000


def test_the_samples_with_wrong_labels_come_first(client: httpx.Client) -> None:
    """They are ordered by mean loss."""
    samples = re.findall(r"<code>(cat-\d+)</code>", client.get("/runs/guarded/worst-samples").text)

    assert set(samples[:2]) == set(WRONG)


def test_runs_that_are_compared_show_what_they_differ_in(client: httpx.Client) -> None:
    """Equal settings are hidden."""
    text = client.get("/compare", params={"run": ["guarded", "free"]}).text

    assert 'data-column="config.optimizer.lr"' in text
    assert re.findall(r'<td><span title="0\.\d">(0\.\d)</span></td>', text) == ["0.1", "0.2"]
    assert [(run["name"], run["config"]) for run in data_of(text)["runs"]] == [
        ("guarded", {"optimizer.lr": 0.1}),
        ("free", {"optimizer.lr": 0.2}),
    ]


def test_a_policy_of_the_folder_can_be_chosen(client: httpx.Client) -> None:
    """The editor gets its text, and the names of the language. The list holds the shipped policies, too."""
    text = client.get("/backtest", params={"policy": "guard"}).text
    data = data_of(text)

    assert (data["policy"], data["text"].strip(), data["faults"]) == ("guard", POLICY.strip(), [])
    assert {"median", "stop", 'warn "text"', "controllers", "triggers"} <= {word["text"] for word in data["words"]}
    assert ">overfitting</option>" in text


def test_a_question_chooses_the_runs_of_a_backtest(client: httpx.Client) -> None:
    """Runs that are named count, too; a question that is none is told."""

    def ticked(**asked: str) -> int:
        return len(re.findall(r'name="run" [^>]* checked', client.get("/backtest", params=asked).text))

    fault = data_of(client.get("/backtest", params={"where": "lr<<1"}).text)["faults"][0]

    assert ticked() == ticked(where="steps>0") > ticked(where="name:free") == 1
    assert ticked(where="name:free", run="guarded") == 2
    assert ticked(where="name:nobody") == 0
    assert fault.startswith("where: ")


def test_a_policy_that_does_not_load_can_be_mended_in_the_editor(tmp_path: Path) -> None:
    """The page works, and a check of the text tells its errors."""
    (tmp_path / "broken.yaml").write_text("controllers: [{name: x, triggers: [on_step_ned], rule: loss > 1}]\n")
    (tmp_path / "runs").mkdir()

    with serving(tmp_path / "runs", policies_path=tmp_path) as url:
        answer = httpx.get(f"{url}/backtest?policy=broken", timeout=PATIENCE_S)

    assert answer.status_code == 200
    assert "on_step_ned" in data_of(answer.text)["text"]


@pytest.mark.parametrize("path", ["/runs/nobody", "/compare?run=nobody", "/runs/nobody/worst-samples"])
def test_a_run_that_is_not_there_is_a_page_that_says_so(client: httpx.Client, path: str) -> None:
    """It links back."""
    answer = client.get(path)

    assert answer.status_code == 404
    assert answer.headers["content-type"].startswith("text/html")
    assert "nobody" in answer.text
    assert 'href="/"' in answer.text


def test_an_empty_store_says_how_to_begin(tmp_path: Path) -> None:
    """Each page does."""
    with serving(tmp_path) as url:
        texts = [
            httpx.get(f"{url}{path}", timeout=PATIENCE_S).raise_for_status().text
            for path in ("/", "/compare", "/backtest")
        ]

    assert "No runs yet" in texts[0]
    assert "There are no runs yet" in texts[2]


def test_the_page_is_no_part_of_the_api_s_document(client: httpx.Client) -> None:
    """It may change from day to day."""
    paths = client.get("/api/v1/openapi.json").json()["paths"]

    assert not [path for path in paths if path.startswith(("/runs", "/static", "/login")) or path == "/"]


def test_a_run_that_cannot_be_drawn_hides_no_other(tmp_path: Path) -> None:
    """A damaged file is an example."""
    record_run(tmp_path, "whole")
    (file,) = record_run(tmp_path, "damaged").glob("events-*.parquet")
    file.write_bytes(file.read_bytes()[:100])
    with serving(tmp_path) as url:
        page = httpx.get(url, timeout=PATIENCE_S)

    assert (page.status_code, page.text.count("<polyline")) == (200, 1)


def test_a_run_that_was_deleted_since_it_was_looked_at_has_no_line(tmp_path: Path) -> None:
    """The table may be older than the deletion."""
    folder = record_run(tmp_path, "gone")
    entry = open_store(tmp_path).catalog.entry(folder)
    shutil.rmtree(folder)

    assert sparkline(entry) == ""


def test_the_glossary_explains_every_word_of_the_document(client: httpx.Client) -> None:
    """Each word has an anchor, and its row of GLOSSARY.md is read."""
    rows = [line for line in GLOSSARY.read_text(encoding="utf-8").splitlines() if line.startswith("| <a")]
    answer = client.get("/glossary").text

    assert len(glossary()) == len(rows) > 20
    assert all(f'id="{term.anchor}"' in answer and html.escape(term.word) in answer for term in glossary())


def test_the_page_of_a_failed_run_shows_its_traceback_and_does_without_in_older_runs(tmp_path: Path) -> None:
    """Code in a traceback is untrusted text."""
    folders = []
    for text in (HOSTILE, "older"):
        with pytest.raises(ValueError, match=re.escape(text)), Recorder(tmp_path, name=text[:5]) as rec:
            raise ValueError(text)
        folders.append(rec.folder)
    info = open_run(folders[1]).info
    last = dataclasses.replace(info.last, failure={"type": "ValueError", "message": "older"})
    write_run_info(folders[1], dataclasses.replace(info, attempts=(last,)))

    with serving(tmp_path) as url:
        new, old = (httpx.get(f"{url}/runs/{folder.name}", timeout=PATIENCE_S).text for folder in folders)

    assert "<summary>Traceback</summary><pre>Traceback (most recent call last):" in new
    assert f"ValueError: {HOSTILE}" in html.unescape(new)
    assert HOSTILE not in new
    assert '<p class="headline">Failed before its first step: ValueError: older. Last checkpoint: none.</p>' in old
    assert "Traceback" not in old


def test_the_page_of_a_run_begins_with_its_headline_and_links_to_the_steps(store: Path, client: httpx.Client) -> None:
    """It is the first thing below the title: the same sentence as the API's and the terminal's."""
    page = client.get("/runs/guarded").text
    sentence = client.get("/api/v1/runs/guarded/headline").raise_for_status().json()
    shown = CliRunner().invoke(app, ["show", "guarded", "--store", str(store)]).stdout

    (said,) = re.findall(r'</h1>\s*<p class="headline">(.*?)</p>', page)
    assert html.unescape(re.sub(r"<[^>]*>", "", said)) == sentence["text"] == shown.splitlines()[1]
    linked = [int(step) for step in re.findall(r'<a href="#step=(\d+)">', said)]
    assert linked == [part["step"] for part in sentence["parts"] if part["step"] is not None]
    assert SPIKE in linked
    assert sentence["firings"][0]["controller"] == "loss_spike"
