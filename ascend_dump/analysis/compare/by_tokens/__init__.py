"""Explain differences between two programs that are compared token by token."""
