"""Our own settings as a file: what `--config` and ASCEND_DUMP read."""
