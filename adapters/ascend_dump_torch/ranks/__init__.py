"""Collective operators, process groups and placements of tensors on ranks."""
