"""Formats of TensorFlow on Ascend: dump settings in a ConfigProto, and the events of tfdbg."""
