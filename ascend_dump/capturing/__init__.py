"""The capture: the object that records a dump of a `with` block, of a decorated function or of a whole process."""
