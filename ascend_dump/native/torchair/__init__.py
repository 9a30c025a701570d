"""The formats of torchair: its graph files, which are Python text, and its dump options."""
