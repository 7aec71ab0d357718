"""Serves ``/backtest`` and ``/glossary``.

The former is the page to choose a policy and runs, start a job, read its savings and change a parameter. The latter
explains the words of the pages and reports.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Final

from fastapi import APIRouter, Request, Response
from fastapi import Query as InQuery

from ...replay.reports.html import glossary
from ...rules.errors import PolicyError
from ...rules.policy_file.policy import Policy, parse_policy, shipped_policies
from ...store.errors import shortened
from ...store.event_json import encoded
from ...store.reading.summary import RunSummary
from ..access import OpenStore, policies_known
from .compare import newest
from .layout import PageRoute, render_page

router = APIRouter(include_in_schema=False, route_class=PageRoute)

#: Most runs listed to choose from; the job covers all runs of the store when none is chosen.
LISTED: Final = 500

#: The shipped rule file that the page opens with: what it reads, most runs record.
FIRST: Final = "loss_spike"


@router.get("/backtest")
def show_backtest(
    request: Request,
    store: OpenStore,
    policy: Annotated[str | None, InQuery(max_length=200)] = None,
    keys: Annotated[list[str] | None, InQuery(alias="run", max_length=1000)] = None,
) -> Response:
    """Return the page."""
    known = policies_known(request.app.state.policies)
    own = sorted(set(known) - set(shipped_policies()))
    name = policy if policy in known else next(iter(own), FIRST)
    loaded, problem = _loaded(name, known[name])
    params = encoded(dict(loaded.params)) if loaded else {}
    runs = newest(store)
    chosen = {run.run_id for run in runs if {run.run_id, run.name} & set(keys or ())}
    listed = sorted(runs, key=lambda run: run.run_id not in chosen)[: max(LISTED, len(chosen))]
    return render_page(
        request,
        "backtest.html",
        policies=sorted(known),
        policy=name,
        loaded=loaded,
        problem=problem,
        params=params,
        saves=loaded is not None and loaded.asks_for_checkpoints,
        runs=listed,
        total=len(runs),
        chosen=chosen,
        data={"policy": name, "params": params, "faults": list(_faults(policy, known, keys or (), runs))},
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


def _loaded(name: str, path: Path) -> tuple[Policy | None, str | None]:
    """Return the policy of a file, or its error; neither reveals the file's path."""
    try:
        return parse_policy(path.read_text(encoding="utf-8"), source=name), None
    except PolicyError as error:
        return None, str(error)
    except (OSError, UnicodeDecodeError) as error:
        return None, f"{name}: cannot be read ({type(error).__name__})"


@router.get("/glossary")
def show_glossary(request: Request) -> Response:
    """Return the page."""
    return render_page(request, "glossary.html", terms=glossary())
