"""Properties that follow from the type of an operator: its operation, and how its kernels round."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Sequence
from typing import Optional

from ascend_dump.reading import Record

__all__ = [
    "ALLOCATING",
    "COLLECTIVES",
    "COPIES",
    "EXPONENTIALS",
    "NO_INPUTS",
    "PRODUCTS",
    "RANDOM",
    "SHAPED",
    "TO_NUMBER",
    "VIEWS",
    "holds_constants",
    "input_scale_matters",
    "operator_class",
    "reduction_length",
    "rounds_as_inputs",
    "rounds_in_between",
    "sums_in_own_type",
    "writes",
]

_NAMESPACE = re.compile(r"^(?:[A-Za-z_0-9]+::|aten\.)")

#: Operators whose outputs come from a generator of random numbers.
RANDOM = frozenset(
    {
        "bernoulli",
        "binomial",
        "cauchy",
        "dropout",
        "exponential",
        "geometric",
        "log_normal",
        "multinomial",
        "native_dropout",
        "normal",
        "poisson",
        "rand",
        "rand_like",
        "randint",
        "randint_like",
        "randn",
        "randn_like",
        "randperm",
        "random",
        "rrelu_with_noise",
        "uniform",
        "_fused_dropout",
        "_sample_dirichlet",
        "_standard_gamma",
        "DropOutDoMask",
        "DropOutGenMask",
        "RandomUniform",
    }
)
#: Sums and products whose kernels may round each partial result to the type of the tensor (measured on PyTorch's CPU
#: kernels in bfloat16 and float16).
_IN_OWN_TYPE = frozenset(
    {
        "cumprod",
        "cumsum",
        "embedding_dense_backward",
        "_embedding_bag_backward",
        "_embedding_bag_dense_backward",
        "grid_sampler_2d",
        "grid_sampler_2d_backward",
        "grid_sampler_3d",
        "grid_sampler_3d_backward",
        "index_add",
        "native_layer_norm_backward",
        "index_put",
        "multi_margin_loss_backward",
        "nll_loss_forward",
        "nll_loss2d_forward",
        "pow",
        "prod",
        "scatter_add",
        "segment_reduce",
        "_softmax_backward_data",
        "_log_softmax_backward_data",
        "_trilinear",
    }
)
#: Prefixes of the types of collective operators, which several ranks run together.
COLLECTIVES = ("c10d::", "_c10d_functional::", "c10d_functional::", "Hcom", "hccl")
#: Operators that allocate memory and write nothing to it.
ALLOCATING = frozenset({"empty", "empty_like", "new_empty", "empty_strided", "new_empty_strided", "empty_permuted"})
#: The operator that reads a tensor as a number of Python.
TO_NUMBER = "_local_scalar_dense"
#: Operators without tensors as inputs: constants, parameters and inputs of graphs, and tensors made of numbers.
NO_INPUTS = frozenset(
    {
        *("Const", "Constant", "Data", "GetNext", "IteratorGetNext", "Parameter"),
        *("Placeholder", "PlaceholderWithDefault", "RefData", "VarHandleOp", "Variable", "VariableV2"),
        *("arange", "empty", "eye", "full", "linspace", "logspace", "ones", "range", "scalar_tensor", "zeros"),
    }
)
#: Operators that read only the shape and the type of their input.
SHAPED = frozenset(
    {
        *("empty_like", "full_like", "ones_like", "rand_like", "randint_like", "randn_like", "zeros_like"),
        *("new_empty", "new_empty_strided", "new_full", "new_ones", "new_zeros", "OnesLike", "ZerosLike"),
    }
)
#: Operators that return the values of their input, possibly in another type.
COPIES = frozenset({"_to_copy", "to", "clone", "contiguous", "detach", "alias", "lift_fresh", "Cast", "TransData"})
#: Operators that return a view of the memory of their input, or a copy of its elements, maybe in another shape.
VIEWS = frozenset(
    {
        *("t", "view", "detach", "alias", "expand", "permute", "transpose", "unsqueeze", "squeeze", "slice", "select"),
        *("_unsafe_view", "_reshape_alias", "reshape", "flatten", "split", "chunk", "unbind", "narrow", "clone"),
    }
)
#: Operators that turn an absolute error of their input into a relative error of their output.
EXPONENTIALS = frozenset({"exp", "exp2", "expm1", "Exp"})
#: Operators whose kernels round several intermediate results to the type of the tensor.
_ROUGH = frozenset(
    {
        "addbmm",
        "binary_cross_entropy_backward",
        "binary_cross_entropy_with_logits",
        "convolution_backward",
        "glu_backward",
        "linalg_cross",
        # They round a factor and a shift for each channel.
        "native_batch_norm",
        "_native_batch_norm_legit",
        "_native_batch_norm_legit_no_training",
        "soft_margin_loss_backward",
    }
)
#: Prefixes of operators that interpolate between pixels: kernels round the positions, which affects every element.
_INTERPOLATIONS = ("upsample_", "_upsample_", "grid_sampler")
#: Matrix products, with the index of the input that is the first matrix. Its last axis is the length of the sums.
PRODUCTS = {
    "mm": 0,
    "bmm": 0,
    "matmul": 0,
    "linear": 0,
    "dot": 0,
    "mv": 0,
    "addmm": 1,
    "addmv": 1,
    "addbmm": 1,
    "baddbmm": 1,
    "_addmm_activation": 1,
    "MatMul": 0,
    "MatMulV2": 0,
    "BatchMatMul": 0,
}
#: Operators whose kernels may round a constant argument to a narrow type before they use it.
_WITH_CONSTANTS = frozenset({"add", "addcdiv", "addcmul", "div", "lerp", "mul", "rsub", "sub"})
#: Operators that add terms into indexed elements, with the position of the input that contains the indices. All indices
#: may be equal, so an element may be the sum of all terms.
_INDICES = {
    "embedding_dense_backward": 1,
    "index_add": 1,
    "index_put": 1,
    "scatter_add": 1,
    "scatter_reduce": 1,
    "_embedding_bag": 1,
    "_embedding_bag_backward": 1,
    "_embedding_bag_dense_backward": 1,
}
#: Sums whose terms may cancel: the result may be much smaller than the terms, but the error is not.
_CANCELLING = frozenset(
    {
        "add",
        "sub",
        "rsub",
        "addcmul",
        "addcdiv",
        "lerp",
        "sum",
        "mean",
        "var",
        "var_mean",
        "std",
        "cumsum",
        "diff",
        "logsumexp",
        "_softmax_backward_data",
        "_log_softmax_backward_data",
        "native_layer_norm",
        "native_layer_norm_backward",
        "native_batch_norm",
        "native_batch_norm_backward",
        "native_group_norm",
        "native_group_norm_backward",
        "_fused_rms_norm_backward",
        "convolution",
        "convolution_backward",
        "_convolution",
        "linalg_vector_norm",
        "BiasAddGrad",
    }
) | frozenset(PRODUCTS)


@functools.lru_cache(maxsize=4096)
def operator_class(op_type: str) -> str:
    """Return the name of an operator without namespace, overload and last underscore: `add` for `aten::add_.Tensor`."""
    name = _NAMESPACE.sub("", op_type).split(".")[0]
    return name.rstrip("_") or name


@functools.lru_cache(maxsize=4096)
def writes(op_type: str) -> bool:
    """Return True if the name of an operator says that it writes to the memory of its inputs."""
    name = op_type.rpartition("::")[2].split(".")[0]
    return name.endswith("_") or name.startswith(("aclnnInplace", "native_batch_norm", "_native_batch_norm"))


def input_scale_matters(op_type: str) -> bool:
    """Return True if terms may cancel: the output may be much smaller than the inputs, but its error is not."""
    return operator_class(op_type) in _CANCELLING


def sums_in_own_type(op_type: str) -> bool:
    """Return True if the kernel may add term by term and round each partial result to the type of the tensor."""
    return operator_class(op_type) in _IN_OWN_TYPE


def rounds_in_between(op_type: str) -> bool:
    """Return True if kernels of narrow types are known to round several intermediate results."""
    name = operator_class(op_type)
    # Attention rounds its weights, by which it multiplies the values.
    return name in _ROUGH or name.startswith(_INTERPOLATIONS) or "attention" in name.lower()


def holds_constants(op_type: str) -> bool:
    """Return True if elements are computed with a number argument, which kernels may round to a narrow type first."""
    return operator_class(op_type).removeprefix("_foreach_") in _WITH_CONSTANTS


def rounds_as_inputs(op_type: str) -> bool:
    """Return True if the kernel may compute in the type of the inputs even if the output has a finer type."""
    return "attention" in operator_class(op_type).lower()


def reduction_length(
    op_type: str, inputs: Sequence[Record], output: Record, *, transposed: bool = False
) -> Optional[int]:
    """Return the number of terms that are summed for one output element; None if type and shapes do not determine it.

    transposed: the operator is a transposed convolution.
    """
    name = operator_class(op_type)
    shapes = {record.index: record.shape for record in inputs}
    if name in PRODUCTS:
        shape = shapes.get(PRODUCTS[name])
        return shape[-1] if shape else None
    if name in ("convolution", "_convolution"):
        shape = shapes.get(1)
        if not shape:
            return None
        return math.prod(shape) // max(shape[1 if transposed else 0], 1)
    if name == "convolution_backward":
        gradient, data, weight = (shapes.get(index) for index in range(3))
        if not gradient or not weight:
            return None
        if output.shape == data:
            return math.prod(weight) // max(weight[1], 1)
        return math.prod(gradient) // max(gradient[1], 1)
    if name in _INDICES:
        shape = shapes.get(_INDICES[name])
        return math.prod(shape) if shape is not None else None
    if "attention" in name.lower():
        shape = shapes.get(2 if "backward" in name else 1)  # keys
        return max(shape[-2:]) if shape is not None and len(shape) > 1 else None
    if name == "multi_margin_loss_backward":
        return output.shape[-1] if output.shape else None
    if name.startswith(_INTERPOLATIONS):
        # The error grows with the longest axis. The envelope grows with the root of the returned number, so the length
        # of this axis is squared.
        sizes = [size for shape in (*shapes.values(), output.shape) if shape is not None for size in shape[2:]]
        return (2 * max(sizes, default=1)) ** 2
    read = max((math.prod(shape) for shape in shapes.values() if shape is not None), default=0)
    written = math.prod(output.shape) if output.shape is not None else 0
    return read // written if written and read > written else None
