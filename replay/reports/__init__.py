"""Backtests as HTML, JSON, sentences and terminal tables."""
