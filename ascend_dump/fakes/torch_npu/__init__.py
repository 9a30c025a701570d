"""A fake of torch_npu, with eager operators and captured graphs."""
