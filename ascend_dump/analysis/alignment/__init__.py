"""Which part of one tensor holds the same elements as which part of the other."""
