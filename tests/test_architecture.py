"""Who may import whom: rooms, heavy dependencies, and what loads when."""

from __future__ import annotations

import ast
import importlib
import pkgutil
import subprocess
import sys
import textwrap
import types
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
ROOMS = ("store", "rules", "recorder", "importers", "replay", "api")

#: The rooms that each room may import, itself aside.
MAY_IMPORT = {
    "store": set(),
    "rules": {"store"},
    "recorder": {"rules", "store"},
    "importers": {"store"},
    "replay": {"rules", "store"},
    "api": {"replay", "rules", "store"},
    "examples": {"recorder"},
}

#: Heavy or outside dependencies, and the rooms that own them. Whatever is not listed here or in the standard library is
#: an error too.
OWNERS = {
    "duckdb": {"store"},
    "isal": {"store"},
    # Importers read tables with it that other tools exported.
    "pyarrow": {"store", "importers"},
    # Rules add up long windows with it, in the order of `rules/language/reductions.py`; the engine itself loads without it.
    # A sweep asks a rule at all events at once, over numpy's arrays.
    "numpy": {"store", "rules", "replay"},
    "simpleeval": {"rules"},
    "yaml": {"rules"},
    "torch": {"recorder", "examples"},
    "polars": {"replay"},
    "anyio": {"api"},
    "fastapi": {"api"},
    "starlette": {"api"},
    "pydantic": {"api"},
    "pydantic_core": {"api"},
    "uvicorn": {"api"},
    "jinja2": {"api"},
    "markupsafe": {"api"},
    "typer": {
        "addressing",
        "backtest_command",
        "cli",
        "cli_options",
        "difference_command",
        "doctor_command",
        "import_command",
        "policy_commands",
        "sweep_command",
        "tail_command",
        "verify_command",
    },
    "rich": {"console"},
    "sklearn": {"examples"},
}


def source_files() -> list[Path]:
    """Every module of the package."""
    return sorted(path for room in (*ROOMS, "examples") for path in (ROOT / room).rglob("*.py")) + sorted(
        ROOT.glob("*.py")
    )


def imports_of(path: Path) -> Iterator[tuple[int, int, str]]:
    """Line, level and dotted name of every import, inside functions and ``if TYPE_CHECKING`` too."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, 0, alias.name
        elif isinstance(node, ast.ImportFrom):
            if node.module is None:
                for alias in node.names:
                    yield node.lineno, node.level, alias.name
            else:
                yield node.lineno, node.level, node.module


def room_of(path: Path) -> str:
    """The room of a module; the module's own name at the root."""
    relative = path.relative_to(ROOT)
    return relative.parts[0] if len(relative.parts) > 1 else relative.stem


def room_imported(path: Path, level: int, name: str) -> str:
    """The room, or root module, that a relative import reaches."""
    folder = path.parent
    for _ in range(level - 1):
        folder = folder.parent
    target = (folder / name.replace(".", "/")).relative_to(ROOT)
    return target.parts[0]


def violations(path: Path) -> Iterator[str]:
    """Sentences that name the line."""
    room = room_of(path)
    for line, level, name in imports_of(path):
        where = f"{path.relative_to(ROOT)}:{line}"
        top = name.split(".")[0]
        if level == 0:
            if top == "steptape":
                yield f"{where}: inside the package imports are relative; got {name!r}"
            elif top not in sys.stdlib_module_names and room not in OWNERS.get(top, set()):
                yield f"{where}: {room} does not own {top!r}; owners: {sorted(OWNERS.get(top, set())) or 'nobody'}"
        elif room in MAY_IMPORT:
            target = room_imported(path, level, name)
            if target != room and target not in MAY_IMPORT[room]:
                yield f"{where}: {room} must not import {target}"


@pytest.mark.parametrize("path", source_files(), ids=lambda path: str(path.relative_to(ROOT)))
def test_a_module_imports_only_what_its_room_may(path: Path) -> None:
    """Arrows point one way, and each heavy dependency has its owner."""
    assert list(violations(path)) == []


def test_a_wrong_import_is_named_with_its_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The checker itself finds an import that is hidden in a function."""
    monkeypatch.setattr(sys.modules[__name__], "ROOT", tmp_path)
    module = tmp_path / "api" / "bad.py"
    module.parent.mkdir()
    module.write_text("def f():\n    from ..recorder import Recorder\n    import torch\n")

    found = list(violations(module))

    assert found == [
        "api/bad.py:2: api must not import recorder",
        "api/bad.py:3: api does not own 'torch'; owners: ['examples', 'recorder']",
    ]


def test_rooms_do_not_import_in_a_circle() -> None:
    """Following the allowed arrows from any room never leads back to it."""

    def reachable(room: str) -> set[str]:
        direct = MAY_IMPORT[room]
        return direct.union(*(reachable(other) for other in direct))

    assert all(room not in reachable(room) for room in MAY_IMPORT)


def test_the_root_is_a_namespace_package() -> None:
    """An ``__init__.py`` at the root would make tools depend on the folder's name."""
    assert not (ROOT / "__init__.py").exists()


def test_nothing_in_rules_or_replay_reads_a_clock_a_random_number_or_the_network() -> None:
    """The engine is a pure fold: what it decides depends on events and policy alone."""
    impure = {
        "time",
        "random",
        "secrets",
        "socket",
        "urllib",
        "http",
        "os",
        "threading",
        "subprocess",
        "datetime",
        "asyncio",
    }
    found = [
        f"{path.relative_to(ROOT)}:{line}: {name}"
        for room in ("rules", "replay")
        for path in sorted((ROOT / room).rglob("*.py"))
        for line, level, name in imports_of(path)
        if level == 0 and name.split(".")[0] in impure
    ]

    assert found == []


def test_a_loop_that_logs_floats_loads_neither_torch_nor_duckdb(tmp_path: Path) -> None:
    """Instrumenting a loop costs nothing that the loop does not use."""
    script = textwrap.dedent("""
        import sys
        from steptape import Recorder
        with Recorder(sys.argv[1], rules=sys.argv[2]) as rec:
            for loss in (3.0, 2.0, 1.0):
                rec.step(loss=loss, samples=[loss, loss], sample_ids=[1, 2])
        print(sorted({"torch", "duckdb", "pyarrow", "polars", "fastapi", "numpy"} & set(sys.modules)))
    """)
    policy = ROOT / "rules" / "policies" / "overfitting.yaml"

    result = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "runs"), str(policy)], capture_output=True, text=True, check=True
    )

    assert result.stdout == "[]\n"


def test_the_server_and_the_command_line_load_without_torch() -> None:
    """``api`` and ``cli`` import where torch cannot be imported at all."""
    script = textwrap.dedent("""
        import sys
        sys.modules["torch"] = None
        import steptape.api, steptape.cli.app, steptape.replay
        for room in (steptape.api, steptape.replay):
            assert all(getattr(room, name) is not None for name in room.__all__)
        print("loaded")
    """)

    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)

    assert result.stdout == "loaded\n"


def test_a_server_starts_without_what_only_its_other_processes_need() -> None:
    """Queries, backtests and sweeps run elsewhere: whoever opens the page waits for none of that to be loaded."""
    script = textwrap.dedent("""
        import sys
        import steptape.cli.app, steptape.api.app, steptape.api.middleware.connections
        heavy = {"duckdb", "polars", "plotly", "steptape.replay.backtests.backtesting", "steptape.replay.sweeps.sweeping"}
        print(sorted(heavy & set(sys.modules)))
    """)

    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)

    assert result.stdout == "[]\n"


@pytest.mark.parametrize("name", ["store", "replay", "api"])
def test_a_room_that_loads_late_offers_all_that_it_names(name: str) -> None:
    """Each name is what the module that it comes from calls so, and no module has taken a name for itself."""
    room = importlib.import_module(f"steptape.{name}")
    for module in pkgutil.iter_modules(room.__path__):
        importlib.import_module(f"{room.__name__}.{module.name}")

    assert [each for each in room.__all__ if isinstance(getattr(room, each), types.ModuleType)] == []
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = room.nothing
