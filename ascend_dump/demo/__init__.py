"""The script that `ascend-dump demo` runs; it lies here as data and is copied before it runs."""
