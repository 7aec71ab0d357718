"""A policy file: read, checked at every key, and identified by its digest."""
