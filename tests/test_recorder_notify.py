"""What rules order to tell people reaches them, and never holds up or ends the training."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
from notice_channels import hanging, hook, mailbox, refusing
from waiting import PATIENCE_S

from steptape import Recorder, open_run
from steptape.recorder.arguments import Push, Ranks
from steptape.replay.runs.verification import verify
from steptape.store.errors import TelemetryError

RULES = ['notify "loss is {loss:.3g}" if loss > 3']

#: A program that never closes its recorder.
PROGRAM = """
from steptape import Recorder
rec = Recorder({!r}, rules=["notify if loss > 3"], notify={!r})
rec.step(loss=4)
"""


def warned(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return the warnings about notices."""
    records = (each for each in caplog.records if each.levelno == logging.WARNING)
    return [each.getMessage() for each in records if "notify" in each.getMessage()]


def test_a_notice_has_the_message_the_headline_and_the_link_of_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The link follows from ``STEPTAPE_URL``."""
    monkeypatch.setenv("STEPTAPE_URL", "https://runs.example.org/")
    with hook() as channel, Recorder(tmp_path, name="digits", rules=RULES, notify=channel.address, quiet=True) as rec:
        for loss in (1.0, 7.125):
            rec.step(loss=loss)
        rec.close()

        assert channel.titles == ["digits: loss is 7.12 at step 2"]
        first, headline, link = channel.texts[0].split("\n")
        assert first == "loss = 7.125"
        assert headline.startswith(("Running at step 2", "Completed after 2 steps"))
        assert link == f"https://runs.example.org/runs/{rec.run_id}"


def test_mail_takes_notices(tmp_path: Path) -> None:
    """The title is the subject. A rule without a message is named there."""
    with mailbox() as (address, messages):
        with Recorder(tmp_path, name="digits", rules=["notify if loss > 3"], notify=address, quiet=True) as rec:
            rec.step(loss=4.5)

        (mail,) = messages
        assert mail["Subject"] == "digits: notify_if_loss_3 at step 1"
        assert "loss = 4.5" in mail.get_body(("plain",)).get_content()


def test_mail_takes_the_last_notices_before_the_end(tmp_path: Path) -> None:
    """Two rules fire one after the other, and the second one stops the training."""
    rules = ['notify "high" if loss > 3', 'notify "too high" and stop if loss > 5']
    with mailbox() as (address, messages), Recorder(tmp_path, rules=rules, notify=address, quiet=True) as rec:
        for loss in (4.0, 6.0):
            rec.step(loss=loss)
        rec.close()

        assert [mail["Subject"].partition(": ")[2] for mail in messages] == ["high at step 1", "too high at step 2"]


def test_the_environment_says_whom_to_tell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Several addresses have blanks between them."""
    with hook() as one, hook() as other:
        monkeypatch.setenv("STEPTAPE_NOTIFY", f"{one.address} {other.address}")
        with Recorder(tmp_path, rules=RULES, quiet=True) as rec:
            rec.step(loss=4.0)

        assert len(one.titles) == len(other.titles) == 1


def test_a_thousand_orders_in_a_second_are_one_notice_and_a_count(tmp_path: Path) -> None:
    """The last notice counts what was held back, by rule."""
    rules = [*RULES, "notify if loss > 100"]
    with hook() as channel:
        with Recorder(tmp_path, rules=rules, notify=channel.address, quiet=True) as rec:
            for step in range(1000):
                rec.step(loss=4.0 if step < 998 else 101.0)

        assert len(channel.titles) == 3
        assert channel.texts[1].split("\n")[-2] == "998 messages held back before this one: " + (
            "notify_loss_is_loss_3g_if_loss_3 998"
        )
        assert channel.titles[2].endswith("messages held back")
        assert channel.texts[2].split("\n")[-2].startswith("2 messages held back before this one: ")


def test_all_rules_of_a_run_send_twelve_notices_an_hour(tmp_path: Path) -> None:
    """What is above that is counted in the last one."""
    rules = [f"notify if loss > {limit}" for limit in range(14)]
    with hook() as channel:
        with Recorder(tmp_path, rules=rules, notify=channel.address, quiet=True) as rec:
            rec.step(loss=99.0)

        assert len(channel.titles) == 13
        assert channel.texts[-1].split("\n")[-2].startswith("2 messages held back before this one: ")


def test_the_first_rank_alone_sends(tmp_path: Path) -> None:
    """Its rules decide."""
    with hook() as channel:
        more: dict[str, Any] = {
            "rules": RULES,
            "notify": channel.address,
            "run_id": "one",
            "name": "one",
            "quiet": True,
        }
        with (
            Recorder(tmp_path, ranks=Ranks(rank=0, world_size=2), **more) as first,
            Recorder(tmp_path, ranks=Ranks(rank=1, world_size=2), **more) as second,
        ):
            first.step(loss=4.0)
            second.step(loss=4.0)

        assert channel.titles == ["one: loss is 4 at step 1"]


def test_a_missing_package_is_named_at_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The run is recorded all the same."""
    monkeypatch.setitem(sys.modules, "apprise", None)
    with Recorder(tmp_path, rules=RULES, notify="json://localhost", quiet=True) as rec:
        rec.step(loss=4.0)

    assert warned(caplog) == ["notify: the package apprise is not installed. Run pip install 'steptape[notify]'"]


def test_a_package_that_fails_to_load_lets_the_training_begin(tmp_path: Path) -> None:
    """The log has its error."""
    (tmp_path / "apprise.py").write_text("raise RuntimeError('broken')")
    command = [sys.executable, "-c", PROGRAM.format(str(tmp_path / "runs"), "json://localhost")]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)

    assert "notify: rules send no messages" in done.stderr
    assert "RuntimeError: broken" in done.stderr


def test_a_channel_that_hangs_delays_no_step_and_the_end_by_seconds(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The steps are done while it hangs, and the run ends without it."""
    with (
        hanging() as address,
        Recorder(tmp_path, rules=RULES, notify=address, quiet=True) as rec,
    ):
        for _ in range(100):
            rec.step(loss=4.0)
        rec.close()

        assert open_run(rec.folder).status == "completed"
        assert warned(caplog) == ["notify: the last messages were not sent within 5 s; the run ends without them"]


@pytest.mark.parametrize("status", [None, 500])
def test_a_dead_channel_costs_one_line_without_its_secrets(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, status: int | None, capfd: pytest.CaptureFixture[str]
) -> None:
    """Others still take the notice."""
    rules = [*RULES, "notify if loss > 3"]
    with hook() as alive, hook(status or 200) as dead:
        addresses = [refusing() if status is None else dead.address, alive.address]
        with caplog.at_level(logging.WARNING), Recorder(tmp_path, rules=rules, notify=addresses, quiet=True) as rec:
            rec.step(loss=4.0)

        assert len(alive.titles) == 2
        (line,) = warned(caplog)
        assert line.startswith("notify: address 1 (json://) did not take a message: ")
        assert "s3cret" not in caplog.text + capfd.readouterr().err


def test_a_run_that_the_exit_of_its_program_ends_has_its_notices(tmp_path: Path) -> None:
    """Nobody closes the recorder."""
    with hook() as channel:
        command = [sys.executable, "-c", PROGRAM.format(str(tmp_path), channel.address)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)

        assert channel.texts[0].startswith("loss = 4\n")
        assert "notify: " not in done.stderr


def test_an_address_that_is_none_is_named_at_the_start(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The run is recorded all the same."""
    with Recorder(tmp_path, rules=RULES, notify="slack://only nothing://s3cret-token", quiet=True) as rec:
        rec.step(loss=1.0)

    first, second = warned(caplog)
    assert first.startswith("notify: address 1 (slack://) is the address of no service (")
    assert second.startswith("notify: address 2 (nothing://) is the address of no service")
    assert "s3cret" not in caplog.text


def test_an_order_without_any_address_is_named_by_the_first_update(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """One line says how to give one; a shadow rule orders nothing."""
    shadow = tmp_path / "shadow.yaml"
    shadow.write_text(
        "controllers: [{name: a, triggers: [on_step_end], rule: loss > 3, mode: shadow, operations: [notify]}]"
    )
    for rules in (str(shadow), RULES):
        with Recorder(tmp_path / "runs", rules=rules, quiet=True) as rec:
            rec.step(loss=4.0)

    assert warned(caplog) == [
        "rules may order notify, and no address is given. "
        "Give Recorder notify= an address such as slack://..., or set STEPTAPE_NOTIFY"
    ]


def test_another_type_than_addresses_is_refused(tmp_path: Path) -> None:
    """Nothing is recorded then."""
    with pytest.raises(TelemetryError, match="notify must be addresses such as slack://"):
        Recorder(tmp_path, notify=3)  # type: ignore[arg-type]

    assert list(tmp_path.iterdir()) == []


def test_a_run_that_is_pushed_to_a_server_links_to_its_page_there(tmp_path: Path) -> None:
    """So the address of the page needs no variable."""
    push = Push("http://127.0.0.1:9", wait_s=0)
    with hook() as channel:
        with Recorder(tmp_path, rules=RULES, notify=channel.address, push=push, quiet=True) as rec:
            rec.step(loss=4.0)

        assert channel.texts[0].split("\n")[-1] == f"http://127.0.0.1:9/runs/{rec.run_id}"


def test_an_order_leaves_the_training_as_it_is_in_live_and_replay(tmp_path: Path) -> None:
    """A replay decides alike, and sends nothing."""
    with hook() as channel:
        with Recorder(tmp_path, rules=RULES, notify=channel.address, quiet=True) as rec:
            for loss in (4.0, 1.0, 5.0):
                assert not rec.step(loss=loss).should_stop
        sent = len(channel.titles)
        found = verify(open_run(rec.folder))

        assert found.identical
        assert len(channel.titles) == sent


def test_addresses_are_in_no_file_of_the_run(tmp_path: Path) -> None:
    """Neither as an argument of the recorder, nor of the program, nor in its configuration."""
    script = tmp_path / "train.py"
    script.write_text(
        textwrap.dedent("""
        import sys
        from steptape import Recorder
        address = sys.argv[2]
        with Recorder("runs", rules=["notify if loss > 3"], notify=address, config={"notify": address}) as rec:
            rec.step(loss=4.0)
            raise ValueError(f"STEPTAPE_NOTIFY={address}")
        """)
    )
    address = refusing()
    environment = {**os.environ, "STEPTAPE_NOTIFY": address}
    done = subprocess.run(
        [sys.executable, str(script), "--notify", address],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )

    (folder,) = (tmp_path / "runs").iterdir()
    assert json.loads((folder / "run.json").read_text())["attempts"][0]["status"] == "failed"
    assert [path.name for path in folder.iterdir() if b"s3cret" in path.read_bytes()] == []
    assert "did not take a message" in done.stderr


def test_the_exit_of_a_program_does_not_wait_for_a_hanging_channel(tmp_path: Path) -> None:
    """The connection would last for days."""
    with hanging() as address:
        command = [sys.executable, "-c", PROGRAM.format(str(tmp_path), address)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)

    assert done.returncode == 0
    assert "the last messages were not sent" in done.stderr
