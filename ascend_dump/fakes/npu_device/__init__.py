"""A stand-in for npu_device, the bridge of TensorFlow 2."""
