"""The version, as a literal: reading it must not import anything."""

__version__ = "0.1.0"
