"""Every metric has its own column, whatever its name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from steptape import open_run
from steptape.store.columns import RESERVED, Columns, read_columns, write_columns
from steptape.store.errors import DamagedLog
from steptape.store.events import Event


def columns_of(*metrics: str) -> list[str]:
    """Return the columns of these metrics, in this order."""
    columns = Columns()
    columns.extend(metrics)
    return list(columns.by_metric.values())


def test_a_metric_has_the_column_of_its_name() -> None:
    """Slashes, dots, blanks and quotes are included."""
    names = ["loss", "train/loss", "a.b", 'x "y" z', "it's", "größe"]

    assert columns_of(*names) == names


def test_names_that_clash_are_told_apart_by_their_checksum() -> None:
    """A name may clash with an envelope field, or with another metric except for case; the first keeps its name."""
    assert columns_of("epoch", "loss", "Loss", "LOSS", "Step") == [
        "epoch~b2fdf2af",
        "loss",
        "Loss~7e13be37",
        "LOSS~e8b4fcbd",
        "Step~e38b5102",
    ]


def test_names_that_no_column_can_have_get_one_that_can() -> None:
    """The cases are the empty name and a NUL."""
    assert columns_of("", "x\0y", "xy") == ["~00000000", "xy~8c7a2962", "xy"]


def test_a_metric_that_is_called_like_anothers_column_does_not_take_it() -> None:
    """A metric may be called ``Loss~7e13be37``."""
    assert columns_of("loss", "Loss~7e13be37", "Loss") == ["loss", "Loss~7e13be37", "Loss~7e13be37~"]


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"])) | st.sampled_from([*RESERVED, "loss", "Loss", ""])))
def test_no_two_metrics_share_a_column_and_more_metrics_change_none(names: list[str]) -> None:
    """This holds for names that SQL considers equal, in every order and in any number of batches."""
    at_once = Columns()
    at_once.extend(names)
    one_by_one = Columns()
    for name in names:
        one_by_one = Columns(one_by_one.by_metric)
        one_by_one.extend([name])
    folded = [column.casefold() for column in at_once.by_metric.values()]

    assert one_by_one.by_metric == at_once.by_metric
    assert set(at_once.by_metric) == set(names)
    assert len(set(folded)) == len(folded)
    assert not set(folded) & RESERVED


def test_the_mapping_kept_with_a_run_is_read_back(tmp_path: Path) -> None:
    """The order is kept, for any name."""
    columns = Columns()
    columns.extend(["ü", "Loss", "loss", "\0"])
    write_columns(tmp_path, columns)

    assert list(read_columns(tmp_path).by_metric.items()) == list(columns.by_metric.items())


def test_a_run_that_was_never_sealed_has_no_mapping_yet(tmp_path: Path) -> None:
    """A missing mapping is not an error."""
    assert read_columns(tmp_path).by_metric == {}


@pytest.mark.parametrize("content", [b"", b"[1]", b"not JSON", b"\xff", b'{"loss": 3}'])
def test_a_broken_mapping_is_an_error_of_ours(store_record: Callable[..., Path], content: bytes) -> None:
    """The error names the second place of the mapping."""
    folder = store_record([Event("log", metrics={"loss": 1.0})], sealed=True)
    (folder / "columns.json").write_bytes(content)

    with pytest.raises(DamagedLog, match=r"columns\.json: .*steptape\.columns"):
        open_run(folder)
