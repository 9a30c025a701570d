"""Functions from dumps to values: comparison, overflow, suspects, replay."""
