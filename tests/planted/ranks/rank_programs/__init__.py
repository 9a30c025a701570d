"""Distributed programs of PyTorch on gloo, healthy and with planted faults."""
