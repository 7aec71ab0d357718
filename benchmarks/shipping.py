"""Breaks the line and kills processes while runs are pushed, and compares the digests of both ends each time.

Run ``python benchmarks/shipping.py --cuts 1000 --kills 200``. A proxy on loopback drops connections, delays bytes and
cuts in the middle of frames. Pushers and servers are killed with SIGKILL, at random moments of recordings that go on.
Prints one line a round and exits with status 1 if a digest differs.
"""

from __future__ import annotations

import argparse
import random
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

from steptape import Recorder, open_run

#: Seconds within which a round must end.
_PATIENCE_S: Final = 300.0

#: Seconds after which the line is left alone, so that a round ends.
_CUTTING_S: Final = 60.0

#: Probability of a cut at each read of up to 4 KiB.
_CUT: Final = 0.1


class Proxy:
    """A proxy on loopback that breaks connections.

    Args:
        port: The port of the server behind it.
        chance: The random choices.

    Attributes:
        port: Its own port.
        cuts: Number of connections that it has broken.
        is_kind: Whether it breaks none from now on.
    """

    def __init__(self, port: int, chance: random.Random) -> None:
        self._behind, self._chance = port, chance
        self.cuts, self.is_kind = 0, False
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Accept no more."""
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        try:
            server = socket.create_connection(("127.0.0.1", self._behind), timeout=5)
        except OSError:
            client.close()
            return
        pair = ((client, server), (server, client))
        threads = [threading.Thread(target=self._pass, args=each, daemon=True) for each in pair]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        client.close()
        server.close()

    def _pass(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(4096):
                if self._chance.random() < 0.05:
                    time.sleep(self._chance.random() / 50)
                if not self.is_kind and self._chance.random() < _CUT:
                    # In a head, in a frame, or in an answer, whose request has been carried out by then.
                    sink.sendall(data[: self._chance.randrange(len(data) + 1)])
                    self.cuts += 1
                    break
                sink.sendall(data)
        for end in (source, sink):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


class Campaign:
    """Pushes runs through a proxy to a server, and kills both.

    Args:
        folder: An empty folder.
        seed: Seed of all random choices.
    """

    def __init__(self, folder: Path, seed: int) -> None:
        self._chance = random.Random(seed)
        self._source, self._target = folder / "source", folder / "target"
        self._target.mkdir(parents=True)
        with socket.create_server(("127.0.0.1", 0)) as free:
            self._port: int = free.getsockname()[1]
        self._proxy = Proxy(self._port, self._chance)
        self._server: subprocess.Popen[bytes] | None = None
        self._pusher: subprocess.Popen[bytes] | None = None
        self.kills = 0

    @property
    def cuts(self) -> int:
        """Number of broken connections."""
        return self._proxy.cuts

    def close(self) -> None:
        """End all processes."""
        for process in (self._pusher, self._server):
            if process is not None:
                process.kill()
                process.wait()
        self._proxy.close()

    def round(self, *, steps: int, kills: int) -> Path:
        """Record one run while it is pushed, with kills on the way; return its folder once both ends have all of it.

        Raises:
            AssertionError: The logs differ, or the push does not end.
        """
        self._proxy.is_kind = False
        self._start()
        name = f"round-{self._chance.random()}"
        at = sorted(self._chance.randrange(steps) for _ in range(kills))
        with Recorder(self._source, name=name, quiet=True, config={"seed": name}) as rec:
            for step in range(steps):
                rec.step(loss=self._chance.random(), samples=[1.0, 2.0], sample_ids=[step, step + 1])
                if step % 10 == 0:
                    time.sleep(self._chance.random() / 100)
                while at and at[0] == step:
                    at.pop(0)
                    self._kill()
        began_s = time.monotonic()
        there = self._target / rec.run_id
        while not (there / "digests.json").exists() or not open_run(there).log_digest:
            seconds = time.monotonic() - began_s
            assert seconds < _PATIENCE_S, f"{rec.folder}: not pushed within {_PATIENCE_S:g} s"
            self._proxy.is_kind = seconds > _CUTTING_S
            self._start()
            time.sleep(0.1)
        rec.close(seal=True)
        assert open_run(there).log_digest == open_run(rec.folder).log_digest, f"{rec.folder}: the logs differ"
        assert not open_run(there).digest_faults(), f"{there}: {open_run(there).digest_faults()}"
        return rec.folder

    def _start(self) -> None:
        """Start the server and the pusher, where they do not run."""
        if self._server is None or self._server.poll() is not None:
            self._server = _steptape("serve", self._target, "--port", self._port)
        if self._pusher is None or self._pusher.poll() is not None:
            self._source.mkdir(exist_ok=True)
            address = f"http://127.0.0.1:{self._proxy.port}"
            self._pusher = _steptape("push", self._source, address, "--follow")

    def _kill(self) -> None:
        victim = self._chance.choice((self._server, self._pusher))
        if victim is not None:
            victim.send_signal(signal.SIGKILL)
            victim.wait()
            self.kills += 1
        self._start()


def _steptape(*arguments: object) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "steptape", *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def main() -> None:
    """Run rounds until there have been enough cuts and kills."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cuts", type=int, default=1000)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        campaign = Campaign(Path(folder), options.seed)
        began_s, rounds = time.monotonic(), 0
        try:
            while campaign.cuts < options.cuts or campaign.kills < options.kills:
                kills = min(8, max(0, options.kills - campaign.kills))
                campaign.round(steps=options.steps, kills=kills)
                rounds += 1
                seconds = time.monotonic() - began_s
                done = f"{campaign.cuts} cuts, {campaign.kills} kills, {seconds:.0f} s"
                print(f"round {rounds}: both logs are equal; {done}", flush=True)
        except AssertionError as error:
            sys.exit(f"FAILED: {error}")
        finally:
            campaign.close()


if __name__ == "__main__":
    main()
