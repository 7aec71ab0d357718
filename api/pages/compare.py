"""Serves ``/compare``: the overlaid curves of several runs, and the differences of their configurations."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final

from fastapi import APIRouter, Request, Response
from fastapi import Query as InQuery

from ...store.errors import QuestionRefused
from ...store.event_json import encoded
from ...store.questions import parse
from ...store.reading.snapshot import Snapshot
from ...store.reading.summary import RunSummary, leading_metric, summarize
from ...store.run_fields import Field
from ...store.run_info import flattened
from ...store.store import Store
from ..access import OpenStore, find_run
from .layout import PageRoute, render_page

router = APIRouter(include_in_schema=False, route_class=PageRoute)

#: Most runs that one page compares. Beyond 50, curves have fewer points, so that the page holds no more of them.
MOST: Final = 500

#: Runs suggested in the field that adds one; it accepts any id or name.
OFFERED: Final = 500


@router.get("/compare")
def compare_runs(
    request: Request,
    store: OpenStore,
    keys: Annotated[list[str] | None, InQuery(alias="run", max_length=MOST)] = None,
    where: Annotated[str | None, InQuery(max_length=2000)] = None,
    metric: Annotated[str | None, InQuery(max_length=1000)] = None,
) -> Response:
    """Return the page: chosen runs, or those that a question admits, with their curves, values and configurations.

    A blank question admits all.
    """
    look = store.recent()
    refusal, found = "", []
    if where is not None:
        try:
            found = parse(where).bound(look).admitted(look.newest_first)
        except QuestionRefused as error:
            refusal = str(error)
    chosen_keys = [*(keys or ()), *(entry.summary.run_id for entry in found)]
    snapshots = chosen_snapshots(store, chosen_keys[:MOST])
    metrics = common_metrics(snapshots)
    chosen = {snapshot.info.run_id for snapshot in snapshots}
    runs = [summarize(snapshot) for snapshot in snapshots]
    differences = config_differences([snapshot.info.config for snapshot in snapshots])
    data = [
        {
            "id": run.run_id,
            "name": run.name,
            "live": snapshot.is_live,
            "status": run.status,
            "steps": run.steps,
            "config": {key: values[row] for key, values in differences.items()},
        }
        for row, (run, snapshot) in enumerate(zip(runs, snapshots, strict=True))
    ]
    return render_page(
        request,
        "compare.html",
        runs=runs,
        others=[run for run in newest(store) if run.run_id not in chosen and not run.archived][:OFFERED],
        metrics=metrics,
        metric=metric if metric in metrics else leading_metric(metrics),
        differences=differences,
        group_keys=group_keys(runs, differences),
        numbers={key for key, values in differences.items() if all(map(_is_number, values))},
        where=where or "",
        is_asked=where is not None,
        refusal=refusal,
        left_out=max(0, len(chosen_keys) - MOST),
        data={"runs": data, "metrics": metrics, "leading": leading_metric(metrics)},
    )


def group_keys(runs: Sequence[RunSummary], differences: Mapping[str, Sequence[Any]]) -> dict[str, str]:
    """Return the fields by which runs may be grouped, each with its label: those with fewer values than runs first."""
    keys = sorted(differences, key=lambda key: len({json.dumps(value) for value in differences[key]}) == len(runs))
    own = {"group": "group of the run"} if len({run.group for run in runs}) > 1 else {}
    return {**{str(Field("config", key)): key for key in keys}, **own}


def _is_number(value: object) -> bool:
    return value is None or (isinstance(value, (int, float)) and not isinstance(value, bool))


def chosen_snapshots(store: Store, keys: Sequence[str]) -> list[Snapshot]:
    """Return the runs of these ids or names, each once, in the given order; blank names are skipped.

    Raises:
        RunNotFound: One of them does not exist.
    """
    runs = (find_run(store, key) for key in dict.fromkeys(keys) if key)
    snapshots = [run.read(lambda snapshot: snapshot) for run in runs]
    return list({snapshot.info.run_id: snapshot for snapshot in snapshots}.values())


def newest(store: Store) -> list[RunSummary]:
    """Return all runs, newest first."""
    return [entry.summary for entry in store.recent().newest_first]


def common_metrics(snapshots: Sequence[Snapshot]) -> list[str]:
    """Return the metrics of the runs: those that most runs have first, then in order of appearance."""
    counts = Counter(metric for snapshot in snapshots for metric in snapshot.columns.by_metric)
    return [metric for metric, _ in counts.most_common()]


def config_differences(configs: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Return the keys whose values differ between configurations, with each one's value; None where a key is missing.

    >>> config_differences([{"lr": 0.1, "seed": 1}, {"lr": 0.2, "seed": 1}])
    {'lr': [0.1, 0.2]}

    """
    flat = [encoded(flattened(dict(config))) for config in configs]
    keys = dict.fromkeys(key for one in flat for key in one)
    values = {key: [one.get(key) for one in flat] for key in keys}
    return {key: found for key, found in values.items() if len({json.dumps(value) for value in found}) > 1}
