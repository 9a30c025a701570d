"""What operators compute on the simulated NPU."""
