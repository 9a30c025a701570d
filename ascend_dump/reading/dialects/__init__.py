"""One module for each way of laying a dump out on disk."""
