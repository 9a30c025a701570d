"""The formats of TensorFlow: dump settings in a ConfigProto for Ascend, and the files of the debugger tfdbg."""
