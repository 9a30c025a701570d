"""Names of the API of aclnn that op-plugin calls for an ATen operator, and of the kernel that does the API's work.

The tables are `analysis/operators/aclnn.json` and `apis.json`. An operator that is not in them gets a name in the same
style. (assumption torch_npu.api_names)
"""

from __future__ import annotations

import functools
from pathlib import Path

import msgspec

from ascend_dump.analysis.operators.names import api_names

__all__ = ["api_of", "generated_type", "is_in_place", "kernel_of"]

_INPLACE = "Inplace"


class _Apis(msgspec.Struct, forbid_unknown_fields=True):
    """The content of `apis.json`."""

    about: str
    kernels: dict[str, str]
    generated: frozenset[str]
    generated_types: dict[str, str]
    apis: dict[str, str]


@functools.lru_cache(maxsize=1)
def _tables() -> _Apis:
    return msgspec.json.decode((Path(__file__).parent / "apis.json").read_bytes(), type=_Apis)


@functools.lru_cache(maxsize=1024)
def api_of(operator: str, tensors: int) -> str:
    """Return the API for an ATen operator such as `aten::add_.Tensor`. tensors: number of its tensor operands."""
    base, _, overload = operator.partition("::")[2].partition(".")
    is_scalar = tensors == 1 or overload.endswith("Scalar")
    for name in (base, base.rstrip("_")):
        candidates = api_names(name)
        if candidates:
            rank = functools.partial(_rank, overload=overload.replace("_", "").lower(), is_scalar=is_scalar)
            return min(candidates, key=lambda api: rank(api, is_variant=api[:-1] in candidates))
        if name in _tables().apis:
            return _tables().apis[name]
    plain = base.rstrip("_")
    inplace = base.endswith("_") and not base.endswith("__")
    return f"aclnn{_INPLACE if inplace else ''}{_camel(plain.removeprefix('npu_'))}"


def _rank(api: str, *, overload: str, is_scalar: bool, is_variant: bool) -> tuple[bool, bool, int, str]:
    """Return the sort key of an API among the candidates for an operator; the smallest is chosen.

    An API that is named after the overload comes first, then one that takes a scalar, or a tensor, as the operator
    does. overload: in lower case. is_scalar: an operand is a number. is_variant: the API's name is the name of another
    candidate with one letter appended, such as aclnnAdds for aclnnAdd; such an API takes a scalar.
    """
    is_named_after_overload = overload not in ("", "tensor", "scalar") and api.lower().endswith(overload)
    takes_scalar = is_variant or api.endswith("Scalar")
    takes_tensor = api.endswith("Tensor")
    return not is_named_after_overload, takes_scalar is not is_scalar or (is_scalar and takes_tensor), len(api), api


def _camel(name: str) -> str:
    return "".join(part[:1].upper() + part[1:] for part in name.split("_"))


def generated_type(api: str) -> str:
    """Return the operator type of an API that CANN's build generates; "" for other APIs."""
    name = api.removeprefix("aclnn")
    return _tables().generated_types.get(api) or (name if name in _tables().generated else "")


def kernel_of(api: str) -> str:
    """Return the name of the main kernel of an API. If it is not in the table, it is formed from the API's name.

    (assumption torch_npu.kernel_names)
    """
    plain = api.replace(_INPLACE, "", 1)
    kernels = _tables().kernels
    return kernels.get(api) or kernels.get(plain) or f"{plain.removeprefix('aclnn')}AiCore"


def is_in_place(api: str) -> bool:
    return _INPLACE in api
