"""A stand-in for npu_bridge, the bridge of TensorFlow 1.x."""
