"""Compare programs that are built differently: fused products, other operators, tensors in another order."""
