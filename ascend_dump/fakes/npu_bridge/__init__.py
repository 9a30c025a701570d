"""A fake of npu_bridge, CANN's adapter for TensorFlow 1.x."""
