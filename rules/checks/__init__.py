"""Warnings about policies that load but look wrong."""
