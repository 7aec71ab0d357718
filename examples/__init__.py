"""Holds example training loops that use a recorder, to read and to run."""
