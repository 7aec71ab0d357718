"""Finds what a model is made of: blocks, sentinel tensors, normalisation layers."""
