"""A fake of TensorFlow 1.15."""
