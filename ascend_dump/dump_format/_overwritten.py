"""Operators that overwrite their first argument without reading it: NaN in it before the call is harmless.

Source: the schemas of PyTorch 2.13 (`native_functions.yaml`, `c10d/Ops.cpp`).
"""

from __future__ import annotations

__all__ = ["OVERWRITES_FIRST"]

OVERWRITES_FIRST = frozenset(
    {
        "aten::bernoulli_",
        "aten::cauchy_",
        "aten::copy_",
        "aten::exponential_",
        "aten::fill_",
        "aten::geometric_",
        "aten::log_normal_",
        "aten::normal_",
        "aten::random_",
        "aten::set_",
        "aten::uniform_",
        "aten::zero_",
        # The NPU APIs that these operators call. Their kernels do not read the argument either.
        "aclnnInplaceBernoulli",
        "aclnnInplaceBernoulliTensor",
        "aclnnInplaceCopy",
        "aclnnInplaceExponential",
        "aclnnInplaceFillScalar",
        "aclnnInplaceFillTensor",
        "aclnnInplaceNormal",
        "aclnnInplaceOne",
        "aclnnInplaceRandom",
        "aclnnInplaceUniform",
        "aclnnInplaceZero",
        "c10d::_allgather_base_",
        "c10d::_reduce_scatter_base_",
        "c10d::alltoall_base_",
        "c10d::recv_",
        "c10d::recv_any_source_",
    }
)
