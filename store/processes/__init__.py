"""Starts child processes, exchanges messages with them, limits and ends them."""
