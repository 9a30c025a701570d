"""The host dialect on disk, shared by its writer and its reader."""
