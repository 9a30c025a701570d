"""What the schema of an ATen operator says of the memory it reads and writes."""

from __future__ import annotations

from typing import Any

import msgspec
import torch

__all__ = ["Schema", "read_schema"]

_has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key

#: Arguments that operators write to without saying so in their schema: batch norms of every
#: backend, and the recurrent layers of oneDNN, cuDNN and MIOpen.
_WRITTEN_FORWARD = ("running_mean", "running_var")
_WRITTEN_BACKWARD = ("workspace", "reserve")

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


class Schema(msgspec.Struct, frozen=True, eq=False):
    """What an operator's schema says, looked up once."""

    #: The operator itself, so that no other gets its id.
    func: Any
    op_type: str
    base: str
    #: Positions and names of the arguments it writes to.
    writes: tuple[tuple[int, str], ...]
    #: Names of those among them that are results only.
    outs: frozenset[str]
    #: Its outputs are memory that nobody has filled, or not all of it.
    unset: bool
    #: It keeps what fits of the content.
    resizes: bool
    #: It overwrites its first argument without reading it, or gives a view of it.
    ignores_first: bool
    #: It is made of other operators, which are recorded instead of it.
    composite: bool
    #: It reads its arguments; otherwise it looks at them in another way, or lets others read them.
    reads: bool
    #: It works on after it returned (collectives), on the memory of its arguments.
    asynchronous: bool
    #: It works on after it returned, on the memory of its outputs; `wait_tensor` waits for it.
    functional: bool
    #: It is that `wait_tensor`.
    waits: bool


def read_schema(func: Any) -> Schema:
    schema = func._schema
    name = schema.name
    namespace, _, base = name.partition("::")
    writes = tuple(
        (position, argument.name)
        for position, argument in enumerate(schema.arguments)
        if (argument.alias_info is not None and argument.alias_info.is_write)
        or argument.name in (_WRITTEN_BACKWARD if "backward" in base else _WRITTEN_FORWARD)
        or (namespace == "c10d" and not argument.name.startswith("input"))  # collectives say it in names
    )
    outs = frozenset(argument.name for argument in schema.arguments if argument.is_out)
    unset = namespace == "aten" and base in _UNSET
    # A device's own kernel goes before the composite one and may round differently.
    own_kernel = any(_has_kernel(func.name(), device) for device in ("CPU", "CUDA", "PrivateUse1"))
    composite = not own_kernel and _has_kernel(func.name(), "CompositeImplicitAutograd")
    asynchronous = namespace == "c10d"
    functional = namespace in ("c10d_functional", "_c10d_functional")
    waits = functional and base == "wait_tensor"
    views = any(value.alias_info is not None and not value.alias_info.is_write for value in schema.returns)
    reads = not (asynchronous or functional or views or base in ("_unsafe_view", "record_stream"))
    ignores_first = views or (namespace == "aten" and base in _FILLS)
    return Schema(
        func,
        name,
        base,
        writes,
        outs,
        unset,
        base in _RESIZES,
        ignores_first,
        composite,
        reads,
        asynchronous,
        functional and not waits,
        waits,
    )
