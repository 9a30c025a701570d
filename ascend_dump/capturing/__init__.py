"""Captures: one call that starts a dump, the same for a block, a decorated function and a launcher."""
