"""Holds the built-in readers, one module for each format of ``steptape import``."""
