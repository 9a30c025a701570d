"""Modules that several adapters for PyTorch share. All but `base` import torch, so no other module imports them."""
