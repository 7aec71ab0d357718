"""One module for each command of ``steptape``."""
