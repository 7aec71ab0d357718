"""Breaks the line and kills processes while runs are pushed, and compares the digests of both ends each time.

Run ``python benchmarks/shipping.py --cuts 1000 --kills 200``. A proxy on loopback drops connections, delays bytes and
cuts in the middle of frames. Pushers and servers are killed with SIGKILL, at random moments of recordings that go on.
Prints one line a round and exits with status 1 if a digest differs.

Run ``python benchmarks/shipping.py --storm 600`` for a storm of ten minutes: recorders of three machines, their
pushers, a second pusher to a folder, and the server are killed at random. Recorders resume, or use a run id again that
another recording has. No step may be lost, doubled or mixed, and ``doctor`` and ``verify`` find nothing at any end.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

from steptape import Recorder, open_run
from steptape.store.parquet.sealing import complaints

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


#: The run ids of a storm: few, so that they are used again on purpose.
IDS: Final = ("nightly", "sweep", "first", "20260101T000000-aaaaaa")

#: Recordings after which the storm adds an id: a target refuses an id for good once the recording that it knows is
#: deleted, and a long storm would have nothing left that both ends hold.
RECORDINGS_PER_ID: Final = 8

#: Machines of a storm, each with a store and a pusher of its own.
MACHINES: Final = 3

#: Recorders that train at a time.
RECORDERS: Final = 4

#: Mean seconds between two kills: starting a process takes one or two of a core.
KILL_EVERY_S: Final = 1.5

_COUNT: Final = struct.Struct("<qq")

#: How a push refuses a run whose id another recording has at the target.
_REFUSED: Final = "is of another recording"


def train(store: Path, run_id: str, tag: int, acks: Path) -> None:
    """Record steps with the recording's tag until killed, or to the end; count the calls that returned.

    Args:
        store: The machine's store.
        run_id: The run.
        tag: The recording; 0 to resume the one that is there.
        acks: A file for the tag and the count.
    """
    if tag:
        done, rec = 0, Recorder(store, run_id=run_id, config={"tag": tag}, quiet=True)
    else:
        run = open_run(store / run_id)
        tag, done = run.info.config["tag"], run.series("at").num_rows
        rec = Recorder(store, resume=(run_id, done), quiet=True)
    chance, last = random.Random(f"{tag}-{done}"), done + random.Random(tag).choice((100, 500, 10**9))
    with open(acks, "wb") as file:
        for at in range(done + 1, last + 1):
            rec.step(tag=float(tag), at=float(at))
            os.pwrite(file.fileno(), _COUNT.pack(tag, at), 0)
            time.sleep(chance.random() / 100)
    rec.close()


class Storm:
    """Machines that record under a few run ids and push to one server and to a folder, while everything is killed.

    Args:
        folder: An empty folder.
        seed: Seed of all random choices.

    Attributes:
        counts: Recordings begun, resumed and deleted, and kills by kind of process.
    """

    def __init__(self, folder: Path, seed: int) -> None:
        self._chance, self._folder = random.Random(seed), folder
        self._stores = [folder / f"machine-{number}" for number in range(MACHINES)]
        self._server, self._beside = folder / "server", folder / "beside"
        for place in (*self._stores, self._server, self._beside):
            place.mkdir(parents=True)
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        address = f"http://127.0.0.1:{port}"
        self._routes = [(store, address) for store in self._stores] + [(self._stores[0], str(self._beside))]
        self._commands = {"server": ("serve", self._server, "--port", port)}
        self._commands |= {f"pusher {n}": ("push", *route, "--follow") for n, route in enumerate(self._routes)}
        self._services: dict[str, subprocess.Popen[bytes]] = {}
        self._recorders: dict[Path, subprocess.Popen[bytes]] = {}
        self.counts: Counter[str] = Counter()

    def close(self) -> None:
        """End all processes."""
        for process in (*self._recorders.values(), *self._services.values()):
            process.kill()
            process.wait()

    def rage(self, seconds: float) -> None:
        """Start and kill processes at random."""
        until_s = time.monotonic() + seconds
        while time.monotonic() < until_s:
            self._start_services(self._commands)
            self._recorders = {run: each for run, each in self._recorders.items() if each.poll() is None}
            while len(self._recorders) < RECORDERS:
                newest = f"newest-{self.counts['recordings'] // RECORDINGS_PER_ID}"
                self._begin(self._chance.choice(self._stores) / self._chance.choice((*IDS, newest)))
            time.sleep(self._chance.expovariate(1 / KILL_EVERY_S))
            if self._chance.random() < 0.6:
                begun = [run for run in sorted(self._recorders) if self._acks_of(run).exists()]
                run = self._chance.choice(begun or sorted(self._recorders))
                self._recorders[run].send_signal(self._chance.choice((signal.SIGTERM, signal.SIGKILL, signal.SIGKILL)))
                self._recorders.pop(run).wait()
                self.counts["recorders killed"] += 1
            else:
                name = self._chance.choice(sorted(self._services))
                self._services.pop(name).kill()
                self.counts[f"{name.split()[0]}s killed"] += 1

    def _start_services(self, names: Iterable[str]) -> None:
        for name in names:
            if name not in self._services or self._services[name].poll() is not None:
                self._services[name] = _steptape(*self._commands[name])

    def _begin(self, run: Path) -> None:
        """Resume a run of this machine, or record another one under its id."""
        if run in self._recorders:
            return
        tag = 0
        ended = (run / "run.json").exists() and open_run(run).status not in ("crashed", "interrupted")
        if not (run / "run.json").exists() or ended or self._chance.random() < 0.3:
            self.counts["runs deleted"] += run.exists()
            shutil.rmtree(run, ignore_errors=True)
            self.counts["recordings"] += 1
            tag = self.counts["recordings"]
        else:
            self.counts["resumed"] += 1
        self._acks_of(run).unlink(missing_ok=True)
        order = (str(run.parent), run.name, str(tag), str(self._acks_of(run)))
        self._recorders[run] = subprocess.Popen(
            [sys.executable, __file__, "--train", *order], stderr=subprocess.DEVNULL
        )

    def _acks_of(self, run: Path) -> Path:
        return self._folder / f"{run.parent.name}.{run.name}.acks"

    def settle(self) -> list[str]:
        """Kill everything, push the rest, and return what is wrong at any end."""
        self.close()
        self._services.clear()
        self._start_services(["server"])
        faults = []
        for store, target in self._routes:
            result = _finished("push", store, target, "--wait", 120)
            refused = [line for line in result.stderr.splitlines() if ": not pushed: " in line]
            faults += [f"{store.name}: push: {line}" for line in refused if _REFUSED not in line]
            if result.returncode != bool(refused) or "Traceback" in result.stderr:
                faults.append(f"{store.name}: push: status {result.returncode}: {result.stderr}")
            self.counts["refused at the end"] += len(refused)
        self.close()
        for store in (*self._stores, self._server, self._beside):
            for run in store.iterdir():
                if (run / "run.json").exists():
                    faults += [f"{run}: {text}" for text in complaints(run, other_hosts=True)]
                    faults += self._faults_of(run)
            for command in ("doctor", "verify"):
                result = _finished(command, "--store", store)
                faults += [] if result.returncode == 0 else [f"{store.name}: {command}: {result.stdout}{result.stderr}"]
        for store, target in self._routes:
            there = self._beside if target == str(self._beside) else self._server
            faults += self._faults_between(store, there)
        return faults if self.counts["runs at both ends"] else [*faults, "no run arrived, so nothing was checked"]

    def _faults_of(self, run: Path) -> list[str]:
        """Return what is mixed, doubled or lost in one run."""
        read = open_run(run)
        tags = {event.metrics["tag"] for event in read.events(attempts="all") if "tag" in event.metrics}
        at = read.series("at")["value"].to_pylist()
        acks = self._acks_of(run)
        tag, count = _COUNT.unpack(acks.read_bytes()) if acks.exists() and acks.stat().st_size else (0, 0)
        faults = []
        if not tags <= {float(read.info.config["tag"])}:
            faults.append(f"{run}: MIXED: recordings {sorted(tags)} in that of {read.info.config['tag']}")
        if at != [float(number) for number in range(1, len(at) + 1)]:
            faults.append(f"{run}: LOST OR DOUBLED: {len(at)} steps up to {max(at)}")
        if run.parent in self._stores and tag == read.info.config["tag"] and len(at) < count:
            faults.append(f"{run}: LOST: {count} steps were recorded, {len(at)} are there")
        self.counts["runs checked"] += 1
        self.counts["steps checked"] += len(at)
        return faults

    def _faults_between(self, store: Path, there: Path) -> list[str]:
        """Return the runs that differ at the target, of those that have the same recording at both ends."""
        faults = []
        for run in (run for run in store.iterdir() if (run / "run.json").exists()):
            own, other = open_run(run), open_run(there / run.name) if (there / run.name / "run.json").exists() else None
            if other is None:
                faults.append(f"{run}: LOST: nothing of it is in {there}")
            elif own.info.config["tag"] == other.info.config["tag"]:
                self.counts["runs at both ends"] += 1
                if [*own.events(attempts="all")] != [
                    *other.events(attempts="all")
                ] or own.log_digest != other.log_digest:
                    faults.append(f"{run}: the log in {there} differs")
        return faults


def _finished(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "steptape", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def storm(seconds: float, seed: int) -> None:
    """Let a storm rage for some seconds, print what it did, and exit with status 1 if anything is wrong."""
    with tempfile.TemporaryDirectory() as folder:
        storm = Storm(Path(folder), seed)
        try:
            storm.rage(seconds)
            faults = storm.settle()
        finally:
            storm.close()
    for fault in faults:
        print(f"FAILED: {fault}", file=sys.stderr)
    print(json.dumps({**storm.counts, "faults": len(faults), "seed": seed}))
    sys.exit(1 if faults else 0)


def main() -> None:
    """Run rounds until there have been enough cuts and kills."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cuts", type=int, default=1000)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--storm", type=float, metavar="SECONDS")
    parser.add_argument("--train", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.train:
        store, run_id, tag, acks = options.train
        train(Path(store), run_id, int(tag), Path(acks))
        return
    if options.storm:
        storm(options.storm, options.seed)
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
