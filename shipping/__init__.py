"""Brings runs from one store to another: the pusher reads a log as it grows, the intake receives it."""
