"""Imports past runs: reads the logs of other tools and writes them as runs of a store.

Each reader handles one kind of source. Other packages add readers through the entry point group ``steptape.importers``.
"""
