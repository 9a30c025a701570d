"""A stand-in for pyACL."""
