"""What the schema of an ATen operator says of the memory it reads and writes."""

from __future__ import annotations

from typing import Any, NamedTuple, Optional

import msgspec
import torch

from ascend_dump_torch._devices import BACKENDS, privateuse1
from ascend_dump_torch._given import Signature, read_signature
from ascend_dump_torch._groups import kind_of_collective

__all__ = ["Argument", "Schema", "read_schema"]

_has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key

#: Arguments that operators write to without saying so in their schema: batch norms of every
#: backend, and the recurrent layers of oneDNN, cuDNN and MIOpen.
_WRITTEN_FORWARD = ("running_mean", "running_var")
_WRITTEN_BACKWARD = ("workspace", "reserve")
#: And one of FSDP's, of which it fills a part.
_WRITTEN_AND_RETURNED = {"fsdp::all_gather_copy_in": "all_gather_output"}
#: Arguments of batch norms without which they only read the running statistics.
_TRAINING = ("training", "train")
#: Operators of c10d that only read their tensors. The others say in names what they write to.
_SENDERS = ("send", "barrier", "monitored_barrier_", "check_for_nan")

#: These keep what fits of the content.
_RESIZES = ("resize_", "resize_as_")
#: These give memory that nobody has filled.
_UNSET = {
    *_RESIZES,
    "empty",
    "empty_like",
    "empty_strided",
    "empty_permuted",
    "empty_quantized",
    "_empty_affine_quantized",
    "_empty_per_channel_affine_quantized",
    "new_empty",
    "new_empty_strided",
    "_efficientzerotensor",
    # torch_npu's
    "empty_with_format",
    "unsafe_empty_with_format",
}

#: These overwrite their first argument without reading it.
_FILLS = {
    "bernoulli_",
    "cauchy_",
    "copy_",
    "exponential_",
    "fill_",
    "geometric_",
    "log_normal_",
    "normal_",
    "random_",
    "uniform_",
    "zero_",
}


class Argument(NamedTuple):
    """An argument of an operator."""

    position: int
    name: str

    def of(self, args: Any, kwargs: Any) -> Any:
        """Its value in a call, None where it is left out."""
        return args[self.position] if self.position < len(args) else kwargs.get(self.name)


class Schema(msgspec.Struct, frozen=True, eq=False):
    """What an operator's schema says, looked up once."""

    #: The operator itself, so that no other gets its id.
    func: Any
    op_type: str
    base: str
    #: The arguments it writes to.
    writes: tuple[Argument, ...]
    #: Those among them that are outputs and that it does not return.
    unreturned: tuple[Argument, ...]
    #: The one that says whether it writes to `unreturned` at all.
    training: Optional[Argument]
    #: Names of the arguments that are results only.
    outs: frozenset[str]
    #: Its outputs are memory that nobody has filled, or not all of it.
    unset: bool
    #: It keeps what fits of the content.
    resizes: bool
    #: It overwrites its first argument without reading it, or gives a view of it.
    ignores_first: bool
    #: Among its arguments may be memory for its results that nobody has filled: collectives, and what FSDP is made of.
    fills: bool
    #: The output that it fills in part only, -1 for none.
    partial: int
    #: Its outputs are views of what it is given.
    views: bool
    #: It is made of other operators, which are recorded instead of it.
    composite: bool
    #: The kinds of devices on which it is not.
    own_kernels: frozenset[str]
    #: It reads its arguments; otherwise it looks at them in another way, or lets others read them.
    reads: bool
    #: It works on after it returned (collectives), on the memory of its arguments.
    asynchronous: bool
    #: It works on after it returned, on the memory of its outputs; `wait_tensor` waits for it.
    functional: bool
    #: It is that `wait_tensor`.
    waits: bool
    #: How its calls are described.
    signature: Signature
    #: `CollectiveCall.kind`, "" of operators of no group; and the names of its arguments.
    collective: str
    arguments: tuple[str, ...]


def read_schema(func: Any) -> Schema:
    schema = func._schema
    name = schema.name
    namespace, _, base = name.partition("::")
    writes = tuple(
        Argument(position, argument.name)
        for position, argument in enumerate(schema.arguments)
        if (argument.alias_info is not None and argument.alias_info.is_write)
        or (argument.name in (_WRITTEN_BACKWARD if "backward" in base else _WRITTEN_FORWARD) and not _functional(base))
        or (namespace == "c10d" and base not in _SENDERS and _is_result_of_collective(argument))
        or _WRITTEN_AND_RETURNED.get(name) == argument.name
    )
    # What a backward pass leaves in its workspace means nothing.
    unreturned = tuple(
        one
        for one in writes
        if one.name not in (*_WRITTEN_BACKWARD, _WRITTEN_AND_RETURNED.get(name))
        and not _is_returned(schema, schema.arguments[one.position])
    )
    training = next((Argument(i, one.name) for i, one in enumerate(schema.arguments) if one.name in _TRAINING), None)
    outs = frozenset(argument.name for argument in schema.arguments if argument.is_out)
    unset = namespace in ("aten", "npu") and base in _UNSET
    # A device's own kernel goes before the composite one and may round differently.
    composite = _has_kernel(func.name(), "CompositeImplicitAutograd")
    backends = {**BACKENDS, privateuse1(): "PrivateUse1"} if composite else {}
    own_kernels = frozenset(device for device, key in backends.items() if _has_kernel(func.name(), key))
    asynchronous = namespace == "c10d" and any("Work" in str(value.type) for value in schema.returns)
    of_collectives = namespace in ("c10d_functional", "_c10d_functional")
    waits = of_collectives and base == "wait_tensor"
    functional = of_collectives and not waits and not base.startswith("_wrap")
    views = any(value.alias_info is not None and not value.alias_info.is_write for value in schema.returns)
    reads = not (asynchronous or of_collectives or views or base in ("_unsafe_view", "record_stream"))
    ignores_first = views or (namespace == "aten" and base in _FILLS)
    return Schema(
        func,
        name,
        base,
        writes,
        unreturned,
        training,
        outs,
        unset,
        base in _RESIZES,
        ignores_first,
        asynchronous or namespace == "fsdp",
        1 if name in _WRITTEN_AND_RETURNED else -1,
        views or base == "_unsafe_view",
        composite,
        own_kernels,
        reads,
        asynchronous,
        functional,
        waits,
        read_signature(func),
        kind_of_collective(namespace, base),
        tuple(argument.name for argument in schema.arguments),
    )


def _functional(base: str) -> bool:
    """Whether it is one of the batch norms that return running statistics, or leave them as they are."""
    return "_functional" in base or "_no_" in base


def _is_result_of_collective(argument: Any) -> bool:
    """Collectives say in names, not in their schema, what they write to."""
    return "Tensor" in str(argument.type) and not argument.name.startswith(("input", "sparse_indices"))


def _is_returned(schema: Any, argument: Any) -> bool:
    """Whether an operator returns an argument that it writes to."""
    alias = argument.alias_info
    if alias is None:
        return False
    # PyTorch names no set for a list of tensors.
    returned = (value.alias_info for value in schema.returns if value.alias_info is not None)
    return any(one.is_write and one.before_set == alias.before_set for one in returned)
