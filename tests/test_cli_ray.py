"""The option --ray: an address or none, a missing extra, a cluster that does not answer."""

from __future__ import annotations

import socket
import sys

import pytest
import typer

from steptape import TelemetryError
from steptape.cli.app import with_bare_ray
from steptape.cli.policy_options import ray_pool
from steptape.replay.ray_pool import RayPool


@pytest.mark.parametrize(
    ("args", "read"),
    [
        (["p.yaml", "--ray"], ["p.yaml", "--ray="]),
        (["--ray", "--json"], ["--ray=", "--json"]),
        (["--ray", "head:6379", "p.yaml"], ["--ray", "head:6379", "p.yaml"]),
        (["--ray=head:6379"], ["--ray=head:6379"]),
        ([], []),
    ],
)
def test_ray_takes_an_address_or_none(args: list[str], read: list[str]) -> None:
    """An option or the end follows a bare one."""
    assert with_bare_ray(args) == read


def test_without_ray_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is raised before anything is read."""
    monkeypatch.setitem(sys.modules, "ray", None)

    with pytest.raises(TelemetryError, match=r"Ray is not installed. Run pip install 'steptape\[ray\]'"):
        RayPool()


def test_a_cluster_that_does_not_answer_is_named() -> None:
    """Ray would wait for minutes."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"

        with pytest.raises(TelemetryError, match=f"{address}: no Ray cluster answers"):
            ray_pool(address)


def test_ray_and_processes_exclude_each_other() -> None:
    """The cores of the cluster count."""
    with pytest.raises(typer.BadParameter, match="leave out --processes"):
        ray_pool("", 2)
