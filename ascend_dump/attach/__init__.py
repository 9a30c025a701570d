"""Captures of processes that are already running, asked for over a socket."""
