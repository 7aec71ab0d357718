"""A line that breaks and processes that are killed cost a push time only: both logs are equal every time."""

from __future__ import annotations

from pathlib import Path

from shipping import Campaign


def test_cuts_and_kills_lose_and_double_nothing(tmp_path: Path) -> None:
    """A small part of the campaign of ``benchmarks/shipping.py``: two rounds with four kills."""
    campaign = Campaign(tmp_path, seed=1)
    try:
        folders = [campaign.round(steps=300, kills=2) for _ in range(2)]
    finally:
        campaign.close()

    assert len(folders) == 2
    assert campaign.kills == 4
