"""Statistics of tensors: the value, and the kernels that compute it."""
