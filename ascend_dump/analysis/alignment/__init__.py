"""Align parts of tensors with the same elements on both sides."""
