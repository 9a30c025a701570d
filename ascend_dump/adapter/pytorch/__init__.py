"""Modules that several adapters for PyTorch share. All except `base` and `warmup` import torch when imported."""
