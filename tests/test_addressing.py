"""A command line's reference to a run is resolved, or the error shows how to name the run."""

from __future__ import annotations

from pathlib import Path

import pytest

from steptape import Recorder, TelemetryError
from steptape.cli.lookup import run_named


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of runs; two of them share a name."""
    path = tmp_path_factory.mktemp("store")
    for name in ("digits", "digits uncontrolled", "digits under rules", "twice", "twice"):
        with Recorder(path, name=name) as rec:
            rec.step(loss=1.0)
    return path


def test_a_name_without_a_store_is_told_to_need_one() -> None:
    """A bare name is what users type first."""
    with pytest.raises(TelemetryError, match="digits: no such run folder") as caught:
        run_named("digits", None)

    assert caught.value.fix == "With --store STORE, a run's id or name is enough; 'steptape runs STORE' lists them"


def test_a_run_that_there_is_not_may_be_another_one(store: Path) -> None:
    """The error suggests the nearest name and a copyable command that lists all names."""
    with pytest.raises(TelemetryError, match="no run has this id or name; got 'dgits'") as caught:
        run_named("dgits", store)

    assert caught.value.fix == f"Did you mean 'digits'? 'steptape runs {store}' lists them"


def test_a_part_of_a_name_brings_up_the_names_that_hold_it(store: Path) -> None:
    """The length of the names does not matter."""
    with pytest.raises(TelemetryError) as caught:
        run_named("Digits u", store)

    assert caught.value.fix.startswith("Did you mean 'digits uncontrolled' or 'digits under rules'? ")


def test_a_name_that_runs_share_is_told_with_their_ids(store: Path) -> None:
    """The error lists the ids to choose from."""
    with pytest.raises(TelemetryError, match="several runs have this name; got 'twice'") as caught:
        run_named("twice", store)

    assert caught.value.fix.startswith("Use an id: ")


def test_a_store_without_runs_has_nothing_to_suggest(tmp_path: Path) -> None:
    """The error says that there are no runs."""
    with pytest.raises(TelemetryError, match="no run has this id or name; got 'digits'") as caught:
        run_named("digits", tmp_path)

    assert caught.value.fix == "There are no runs"
