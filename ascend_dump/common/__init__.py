"""Common parts: paths, logging, units, ranks, suggestions."""
