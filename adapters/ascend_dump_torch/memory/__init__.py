"""The memory of tensors: its layout, writes to it, and the records of tensors that share it."""
