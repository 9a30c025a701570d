"""What adapters for PyTorch have in common. It imports torch, so nothing else of the core imports it."""
