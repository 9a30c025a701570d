"""Formats of torchair: its graphs as Python text, and its dump options."""
