"""``/backtest``: choose a policy and runs, start the job, read what it would have saved, change a parameter."""

from __future__ import annotations

from typing import Annotated, Any, Final

from fastapi import APIRouter, Request, Response
from fastapi import Query as InQuery

from ..rules import Policy, PolicyError, load_policy
from .access import OpenStore
from .page_compare import newest
from .page_layout import PageRoute, page
from .policies import policies_known

router = APIRouter(include_in_schema=False, route_class=PageRoute)

#: Runs that are listed to be chosen from; the job takes all of the store when none is chosen.
LISTED: Final = 500


@router.get("/backtest")
def show_backtest(
    request: Request,
    store: OpenStore,
    policy: Annotated[str | None, InQuery(max_length=200)] = None,
    keys: Annotated[list[str], InQuery(alias="run", max_length=1000)] = [],  # noqa: B006 - FastAPI copies it
) -> Response:
    """The page."""
    known = policies_known(request.app.state.policies)
    name = policy if policy in known else next(iter(sorted(known)), None)
    loaded, problem = _loaded(known[name]) if name else (None, None)
    runs = newest(store)
    chosen = {run.run_id for run in runs if run.run_id in keys or run.name in keys}
    listed = sorted(runs, key=lambda run: run.run_id not in chosen)[: max(LISTED, len(chosen))]
    return page(
        request,
        "backtest.html",
        policies=sorted(known),
        policy=name,
        loaded=loaded,
        problem=problem,
        params=_params(loaded) if loaded else {},
        runs=listed,
        total=len(runs),
        chosen=chosen,
        data={"policy": name, "params": _params(loaded) if loaded else {}},
    )


def _loaded(path: Any) -> tuple[Policy | None, str | None]:
    try:
        return load_policy(path), None
    except PolicyError as error:
        return None, str(error)


def _params(policy: Policy) -> dict[str, Any]:
    return dict(policy.params)
