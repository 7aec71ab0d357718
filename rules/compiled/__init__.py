"""Compiles bound rules to Python code, and holds the series and windows that this code reads."""
