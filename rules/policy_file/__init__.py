"""Reads policy files: checks every key, and identifies each policy by its digest."""
