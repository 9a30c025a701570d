"""A fake of npu_device, CANN's adapter for TensorFlow 2."""
