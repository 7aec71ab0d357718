"""The arguments of each command, a module for each group of ``steptape --help``. They load nothing of other rooms."""
