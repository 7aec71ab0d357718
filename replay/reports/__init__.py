"""Formats backtests as HTML, JSON, sentences and terminal tables."""
