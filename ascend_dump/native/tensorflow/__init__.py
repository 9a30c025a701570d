"""What the TensorFlow adapter of CANN defines: the dump settings in a ConfigProto."""
