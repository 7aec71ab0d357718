"""A service that is dead delays no notice to the others."""

from __future__ import annotations

import socket

from notice_channels import hook

from steptape.store.notices import Channels, Notice


def test_a_service_that_takes_long_to_fail_is_left_alone_and_delays_no_further_notice() -> None:
    """The other service has each notice. The one that hangs still counts as one that took none."""
    with socket.create_server(("127.0.0.1", 0)) as server, hook() as taken:
        hanging = f"json://127.0.0.1:{server.getsockname()[1]}/s3cret-token?rto=2"
        channels = Channels([hanging, taken.address])
        failures = [channels.send(Notice(title, "text")) for title in ("first", "second")]
        server.setblocking(False)
        calls = 0
        while _accepted(server):
            calls += 1

    assert taken.titles == ["first", "second"]
    assert calls == 1
    assert [len(lines) for lines in failures] == [1, 1]


def _accepted(server: socket.socket) -> bool:
    try:
        server.accept()[0].close()
    except BlockingIOError:
        return False
    return True
