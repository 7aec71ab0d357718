"""Limits who may send requests, how large they are and how slow: ASGI middleware and uvicorn's protocol."""
