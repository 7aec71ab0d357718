"""Helpers for tests in a real browser: Chromium, pages that may not fail, and conditions to wait for."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")

#: Seconds of a wait in the browser. A busy machine may need more.
PATIENCE_S = float(os.environ.get("STEPTAPE_PATIENCE_S", "30"))

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")

#: The mark of a test file that needs the browser.
NEEDS_CHROMIUM = pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium here: apt-get install chromium")


@contextmanager
def chromium() -> Iterator[Any]:
    """Run Debian's Chromium for the duration of the context."""
    with sync_api.sync_playwright() as playwright:
        # Its socket is in the temporary folder, and Chromium exits if the path exceeds the length limit of a socket.
        environment = {**os.environ, "TMPDIR": "/tmp"}
        arguments = ["--no-sandbox", "--disable-gpu"]
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=arguments, env=environment)
        yield browser
        browser.close()


@contextmanager
def pages(browser: Any, base: str, *, expected: str | None = None) -> Iterator[Callable[..., Any]]:
    """Yield a function that opens pages of a server: ``open_page("/runs/digits", width=390)``.

    Args:
        browser: The browser.
        base: The server's address; ``base=`` of a page is another one.
        expected: A part of errors that the test provokes.

    Raises:
        AssertionError: A script failed, the browser reported an error, a request failed, or left the server.
    """
    wrong: list[str] = []
    contexts = []

    def opened(
        path: str,
        *,
        base: str = base,
        width: int = 1280,
        height: int = 900,
        scheme: str = "light",
        files: dict[str, str] | None = None,
        wait_until: str = "load",
        **more: Any,
    ) -> Any:
        viewport = {"width": width, "height": height}
        context = browser.new_context(viewport=viewport, color_scheme=scheme, **more)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(1_000 * PATIENCE_S)
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("console", lambda said: wrong.append(said.text) if said.type == "error" else None)
        page.on(
            "response", lambda answer: wrong.append(f"{answer.status} {answer.url}") if answer.status > 399 else None
        )
        own = (base, "data:", "blob:")
        page.on("request", lambda asked: None if asked.url.startswith(own) else wrong.append(asked.url))
        for pattern, body in (files or {}).items():
            kind = "text/javascript" if pattern.endswith(".js") else "text/html"
            page.route(pattern, lambda route, _, body=body, kind=kind: route.fulfill(body=body, content_type=kind))
        page.goto(base + path, wait_until=wait_until)
        return page

    yield opened
    for context in contexts:
        context.close()
    assert [said for said in wrong if expected is None or expected not in said] == []


def holds(page: Any, condition: str) -> bool:
    """Whether a JavaScript condition holds in the page; False during a navigation."""
    try:
        return bool(page.evaluate(f"() => {{ try {{ return Boolean({condition}); }} catch {{ return false; }} }}"))
    except sync_api.Error:
        return False


def when(page: Any, condition: str, gesture: Callable[[], object] | None = None) -> bool:
    """Make a gesture and wait until a JavaScript condition holds, which is the result; repeat the gesture every 5 s.

    A busy page can miss a gesture. The condition is polled from outside: the page's policy forbids evaluating text.
    """
    deadline_s = time.monotonic() + PATIENCE_S
    again_s = 0.0
    while not holds(page, condition):
        assert time.monotonic() < deadline_s, condition
        if gesture and time.monotonic() >= again_s:
            gesture()
            again_s = time.monotonic() + 5.0
        page.wait_for_timeout(50)
    return True


def held_back(page: Any, pattern: str) -> list[Any]:
    """Hold back the first request to an address and return the list that it comes into; others go on."""
    held: list[Any] = []
    page.route(pattern, lambda route: held.append(route) if not held else route.continue_())
    return held


def until_held(page: Any, held: list[Any]) -> None:
    """Wait until the request is held back."""
    while not held:
        page.wait_for_timeout(50)


def release(page: Any, held: list[Any]) -> None:
    """Let the request go on and wait for its answer."""
    with page.expect_response(held[0].request.url):
        held[0].continue_()
    page.evaluate("() => new Promise((done) => setTimeout(done))")
