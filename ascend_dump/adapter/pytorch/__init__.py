"""Modules that several adapters for PyTorch share. All except `base` import torch when they are imported."""
