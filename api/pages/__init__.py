"""Holds the web pages, rendered from templates."""
