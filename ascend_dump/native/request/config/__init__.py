"""Our own settings files as a configuration language, like those of the frameworks."""
