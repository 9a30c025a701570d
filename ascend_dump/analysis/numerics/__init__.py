"""Distances of two tensors."""
