"""Helpers that all packages use: paths, logging, ranks, name patterns, and numbers as text."""
