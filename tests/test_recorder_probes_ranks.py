"""Ranks that share a model, whole or in parts, record the norms of the whole model."""

from __future__ import annotations

from pathlib import Path

import pytest
from probed_ranks import STEPS
from torchrun import run_job

from steptape import open_run


@pytest.mark.parametrize(("world_size", "hows"), [(2, ("ddp", "fsdp")), (4, ("hybrid",))])
def test_each_rank_records_the_norms_of_the_whole_model(world_size: int, hows: tuple[str, ...], tmp_path: Path) -> None:
    """Norms, means and finiteness equal those of gathered tensors; the cadence is the same on all ranks."""
    program = Path(__file__).with_name("probed_ranks.py")
    trainings = [{"store": str(tmp_path / "runs"), "how": how} for how in hows]

    done = run_job(program, tmp_path, world_size, trainings)

    for ranks in done:
        for rank, result in enumerate(ranks):
            run = open_run(tmp_path / "runs" / result["run_id"])
            found = [event for event in run.events(rank) if "Probes/every" in event.metrics]
            assert [event.step for event in found] == [1, *range(2, STEPS + 1, 2)]
            for event in found:
                expected = result["norms"][event.step - 1]
                assert {name: event.metrics[name] for name in expected} == pytest.approx(expected, rel=1e-5, abs=1e-7)
            checks = [event.metrics["Optimizer/opt_state_finite"] for event in found if event.step in (1, 4)]
            assert checks == [1, 1]
