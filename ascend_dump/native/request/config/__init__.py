"""Our own settings as a configuration language among the others."""
