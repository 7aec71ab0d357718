"""The script that keeps a page's state in its address: what it reads, writes, leaves out and names as wrong."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from browsing import NEEDS_CHROMIUM

pytestmark = NEEDS_CHROMIUM

DEFAULTS = '{text: "", count: 3, least: null, log: false, many: ["a"]}'


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store without runs: the script is loaded into a page of it."""
    return tmp_path_factory.mktemp("state")


def run(page: Any, script: str) -> Any:
    """Return what a script yields that has imported the module as ``state``."""
    return page.evaluate(f"async () => {{ const state = await import('/static/state.js'); {script} }}")


def test_what_is_written_is_read_after_a_reload(open_page: Callable[..., Any]) -> None:
    """Texts of any characters, numbers, booleans and lists."""
    page = open_page("/glossary#run")
    value = '{text: "a&b=c #é", count: 0.5, least: -1e300, log: true, many: ["x,y", "", "z"]}'
    written = run(page, f"state.read({DEFAULTS}); return state.write({value});")
    page.reload()

    assert run(page, f"return state.read({DEFAULTS});") == written
    assert written["many"] == ["x,y", "", "z"]
    assert page.url.endswith("#run")


def test_a_default_is_not_written(open_page: Callable[..., Any]) -> None:
    """What other scripts or the server keep in the address remains; an empty list is written."""
    page = open_page("/glossary?other=1&count=7&log=1")
    run(page, f"state.read({DEFAULTS}); state.write({{count: 3, log: false, many: []}});")

    assert page.url.endswith("/glossary?other=1&many=")
    assert run(page, f"return state.read({DEFAULTS}).many;") == []


def test_each_change_is_reported_once(open_page: Callable[..., Any]) -> None:
    """A value that stays the same is no change."""
    page = open_page("/glossary")
    script = f"""
        const told = [];
        state.read({DEFAULTS});
        state.onChange((now, names) => told.push([now.count, names]));
        state.write({{count: 4, text: ""}});
        state.write({{count: 4}});
        state.write({{count: 3, log: true}});
        return told;
    """

    assert run(page, script) == [[4, ["count"]], [3, ["count", "log"]]]


def test_nothing_in_the_address_is_ignored_in_silence(open_page: Callable[..., Any]) -> None:
    """An unknown parameter, one of the wrong kind and one given twice are named; the default holds."""
    page = open_page("/glossary?smoth=1&count=many&least=NaN&log=yes&text=a&text=b&many=c")
    script = f"const read = state.read({DEFAULTS}); return [read, state.problems()];"
    read, problems = run(page, script)

    assert [problem.split(":")[0] for problem in problems] == ["smoth", "count", "least", "log", "text"]
    assert "got many" in problems[1]
    assert read == {"text": "", "count": 3, "least": None, "log": False, "many": ["c"]}
