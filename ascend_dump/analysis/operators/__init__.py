"""Operators of a dump, their records and their properties."""
