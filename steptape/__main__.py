"""Entry point of ``python -m steptape`` and of the ``steptape`` command."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line. Exit with an error if one of its packages is missing."""
    try:
        from .cli.app import main as run
    except ModuleNotFoundError as error:
        sys.exit(f"error: the command line needs {error.name}: 'pip install steptape' brings it")
    run()


if __name__ == "__main__":
    main()
