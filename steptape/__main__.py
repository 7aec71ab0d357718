"""``python -m steptape``, and the command ``steptape``."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line; without its packages, say what is missing."""
    try:
        from .cli.app import main as run
    except ModuleNotFoundError as error:
        sys.exit(f"error: the command line needs {error.name}: 'pip install steptape' brings it")
    run()


if __name__ == "__main__":
    main()
