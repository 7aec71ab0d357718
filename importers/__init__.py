"""Past runs from other tools' logs: files in, runs of a store out.

Each reader knows one kind of source. Other packages add readers by the entry point group ``steptape.importers``.
"""
