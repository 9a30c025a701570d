"""Captures without a code change: the environment variable ASCEND_DUMP, and commands that are started with it."""
