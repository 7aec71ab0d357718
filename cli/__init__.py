"""The ``steptape`` command line. ``app`` registers the commands; each command has one module in ``commands``."""
