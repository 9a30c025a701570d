"""Origins: differences that no earlier record explains."""
