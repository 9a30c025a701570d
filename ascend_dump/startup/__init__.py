"""Captures without a code change: the variable ASCEND_DUMP, and the start of a command with it."""
