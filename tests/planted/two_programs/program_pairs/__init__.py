"""Pairs of PyTorch programs: harmless rewrites and planted faults, each with the places that may be named."""
