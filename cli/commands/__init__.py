"""Holds one module for each command of ``steptape``."""
