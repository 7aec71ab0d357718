"""Serves a store over HTTP: the API and the web pages. It reads runs through ``store`` only, and needs no torch."""
