"""A stand-in for MindSpore."""
