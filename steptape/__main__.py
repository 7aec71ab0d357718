"""``python -m steptape``: the command line."""

from .cli.app import main

main()
