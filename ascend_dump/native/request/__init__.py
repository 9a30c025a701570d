"""The format of our own settings files, for `--config` and ASCEND_DUMP."""
