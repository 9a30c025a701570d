"""A stand-in for TensorFlow 1.15."""
