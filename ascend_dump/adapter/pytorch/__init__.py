"""Shared by the adapters for PyTorch. All but `base` import torch, so nothing else of the core imports them."""
