"""Bound rules as generated Python code, and the series and windows that this code reads."""
