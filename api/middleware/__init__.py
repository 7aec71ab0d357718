"""ASGI middleware and connections: who may ask, how much, and how fast."""
