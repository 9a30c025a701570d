"""A stand-in for torch_npu in eager mode."""
