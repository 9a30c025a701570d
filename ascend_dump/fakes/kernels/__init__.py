"""Kernels of the simulated NPU."""
