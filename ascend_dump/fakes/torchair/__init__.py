"""Fakes of torchair: one of the whole package, and one of its native module only."""
