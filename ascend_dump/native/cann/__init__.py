"""The formats of CANN, which all frameworks share: dump files, names, types, layouts and settings."""
