"""Formats of CANN itself: files, names, types, layouts and settings, without a framework."""
