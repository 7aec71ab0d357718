"""Serves ``/backtest`` and ``/glossary``.

The former is the workshop: a rule to write or to choose, runs, where it fires, its backtest, its sweep, and the saved
file. The latter explains the words of the pages and reports.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Final

from fastapi import APIRouter, Request, Response
from fastapi import Query as InQuery

from ...replay.reports.html import glossary
from ...rules.policy_file.policy import KEYS, shipped_policies
from ...rules.policy_file.sentences import ACTIONS
from ...rules.readings.table import FUNCTIONS
from ...store.errors import QuestionRefused, shortened
from ...store.questions import parse
from ...store.reading.summary import RunSummary
from ..access import OpenStore, policies_known
from .layout import PageRoute, render_page

router = APIRouter(include_in_schema=False, route_class=PageRoute)

#: Most runs listed to choose from; the job covers all runs of the store when none is chosen.
LISTED: Final = 500

#: The shipped rule file that is tried first: what it reads, most runs record.
FIRST: Final = "loss_spike"

#: Names of the language that the editor completes: functions, what a sentence orders, and keys of a file.
_WORDS: Final = [
    *({"text": row.name, "insert": f"{row.name}(", "more": row.signature} for row in FUNCTIONS.values()),
    *({"text": action, "insert": action, "more": "order"} for action in ACTIONS),
    *({"text": key, "insert": f"{key}: ", "more": "key"} for key in KEYS),
]


@router.get("/backtest")
def show_backtest(
    request: Request,
    store: OpenStore,
    policy: Annotated[str | None, InQuery(max_length=200)] = None,
    keys: Annotated[list[str] | None, InQuery(alias="run", max_length=1000)] = None,
    where: Annotated[str, InQuery(max_length=2000)] = "",
) -> Response:
    """Return the page: a rule to edit, and the runs of a question or of a list, or all, to try it on."""
    known = policies_known(request.app.state.policies)
    own = sorted(set(known) - set(shipped_policies()))
    look = store.recent()
    runs = [entry.summary for entry in look.newest_first]
    faults = list(_faults(policy, known, keys or (), runs))
    chosen = {run.run_id for run in runs if {run.run_id, run.name} & set(keys or ())}
    if where.strip():
        try:
            chosen |= {entry.summary.run_id for entry in parse(where).bound(look).admitted(look.newest_first)}
        except QuestionRefused as error:
            faults.append(f"where: {error}")
    is_all = not chosen and not where.strip()
    listed = sorted(runs, key=lambda run: run.run_id not in chosen)[: max(LISTED, len(chosen))]
    return render_page(
        request,
        "backtest.html",
        policies=sorted(known),
        policy=policy,
        runs=listed,
        total=len(runs),
        chosen={run.run_id for run in listed} if is_all else chosen,
        where=where,
        data={
            "policy": policy if policy in known else "",
            "text": _text(known[policy]) if policy in known else "",
            "faults": faults,
            "words": _WORDS,
            "candidates": [*own, FIRST, *sorted(set(known) - {*own, FIRST})],
            "saves": request.app.state.policies is not None,
        },
    )


def _faults(
    policy: str | None, known: Container[str], keys: Sequence[str], runs: Sequence[RunSummary]
) -> Iterator[str]:
    """Yield a sentence for what the address names and the store has not."""
    if policy and policy not in known:
        yield f"policy: no rule file has this name; got {shortened(policy)}"
    names = {name for run in runs for name in (run.run_id, run.name)}
    for key in keys:
        if key not in names:
            yield f"run: no run has this id or name; got {shortened(key)}"


def _text(path: Path) -> str:
    """Return the text of a rule file; empty if it is gone."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


@router.get("/glossary")
def show_glossary(request: Request) -> Response:
    """Return the page."""
    return render_page(request, "glossary.html", terms=glossary())
