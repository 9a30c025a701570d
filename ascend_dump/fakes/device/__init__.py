"""The simulated NPU with the dump service of CANN."""
