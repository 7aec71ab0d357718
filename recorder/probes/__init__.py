"""Probes: read a model, its optimizer and the machine into metrics, at a bounded cost."""
