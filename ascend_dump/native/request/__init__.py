"""Our own settings as a file, for `--config` and ASCEND_DUMP."""
