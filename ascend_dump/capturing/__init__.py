"""Captures: the object that records a dump, the same for a block, a decorated function and a whole process."""
