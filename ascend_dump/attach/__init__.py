"""Captures of processes that are already running. `ascend-dump attach` requests them over a Unix socket."""
