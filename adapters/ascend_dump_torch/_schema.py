"""Determine from its schema which memory an ATen operator reads and writes, and how it is recorded."""

from __future__ import annotations

from typing import Any, NamedTuple, Optional

import msgspec
import torch

from ascend_dump.dump_format import OVERWRITES_FIRST
from ascend_dump_torch._call_arguments import Signature, read_signature
from ascend_dump_torch._devices import BACKENDS, privateuse1
from ascend_dump_torch.ranks.groups import kind_of_collective

__all__ = ["Argument", "Schema", "schema_of"]

_has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key

#: Names of arguments that operators write to although their schema does not say so. The operators are batch norms of
#: every backend, and the recurrent layers of oneDNN, cuDNN and MIOpen.
_WRITTEN_FORWARD = ("running_mean", "running_var")
_WRITTEN_BACKWARD = ("workspace", "reserve")
#: An operator of FSDP fills a part of this argument and returns it, although its schema does not say so.
_WRITTEN_AND_RETURNED = {"fsdp::all_gather_copy_in": "all_gather_output"}
#: Arguments of batch norms that switch the update of running statistics on.
_TRAINING = ("training", "train")
#: Operators of c10d that only read their tensors. The others write to tensors (`_is_result_of_collective`).
_SENDERS = ("send", "barrier", "monitored_barrier_", "check_for_nan")

#: Operators that resize a tensor and keep its content as far as it fits.
_RESIZES = ("resize_", "resize_as_")
#: Operators that return uninitialized memory.
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
    # The operators of torch_npu.
    "empty_with_format",
    "unsafe_empty_with_format",
}


class Argument(NamedTuple):
    """An argument of an operator."""

    position: int
    name: str

    def of(self, args: Any, kwargs: Any) -> Any:
        """Return the value of the argument in a call; None if it is omitted."""
        return args[self.position] if self.position < len(args) else kwargs.get(self.name)


class Schema(msgspec.Struct, frozen=True, eq=False):
    """Properties of an operator ("it" in the comments), computed once from its schema."""

    #: The operator itself, kept alive so that its id stays unique.
    func: Any
    op_type: str
    base: str
    #: The arguments that it writes to.
    writes: tuple[Argument, ...]
    #: The arguments among `writes` that are results of the operator, but that it does not return.
    unreturned: tuple[Argument, ...]
    #: The argument that must be True so that it writes to `unreturned`; None if it always does.
    training: Optional[Argument]
    #: Names of the `out=` arguments.
    outs: frozenset[str]
    #: Whether its outputs are uninitialized memory, at least in part.
    unset: bool
    #: Whether it resizes a tensor and keeps its content as far as it fits.
    resizes: bool
    #: Whether it does not read its first argument, because it overwrites this argument or returns a view of it.
    ignores_first: bool
    #: Whether it may get uninitialized tensors to fill with its results, as collectives and operators of FSDP do.
    fills: bool
    #: The index of an output that it fills only in part; -1 if there is none.
    partial: int
    #: Whether its outputs are views of its inputs.
    views: bool
    #: Whether it does nothing but return one view of its first argument, which is its only tensor.
    views_first: bool
    #: Whether it is composed of other operators, which are recorded instead of it.
    composite: bool
    #: Device types on which it has its own kernel although it is composite.
    own_kernels: frozenset[str]
    #: Whether it reads the values of its arguments when it is called.
    reads: bool
    #: Whether it is a collective that writes to its arguments after it has returned.
    asynchronous: bool
    #: Whether it is a functional collective: it writes to its outputs after it has returned, until `wait_tensor`.
    functional: bool
    #: Whether it is `wait_tensor`.
    waits: bool
    #: Whether it only computes results from its arguments; it may write the results into its arguments. It is no
    #: collective, returns no view or uninitialized memory, and draws no random numbers.
    ordinary: bool
    #: What is needed to describe its calls.
    signature: Signature
    #: `CollectiveCall.kind`, "" if it is not a collective.
    collective: str
    #: The names of all its arguments.
    arguments: tuple[str, ...]
    #: Names of its results; empty if none has a name.
    returns: tuple[str, ...]


#: The properties of operators, by the id of the operator. They are kept, because reading a schema takes as long as
#: recording ten calls.
_schemas: dict[int, Schema] = {}


def schema_of(func: Any) -> Schema:
    """Return the properties of an operator."""
    schema = _schemas.get(id(func))
    if schema is None:
        schema = _read(func)
        if not schema.composite:  # a package that is imported later may add a device, which changes `own_kernels`
            _schemas[id(func)] = schema
    return schema


def _read(func: Any) -> Schema:
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
    # The workspace of a backward pass holds no results.
    unreturned = tuple(
        argument
        for argument in writes
        if argument.name not in (*_WRITTEN_BACKWARD, _WRITTEN_AND_RETURNED.get(name))
        and not _is_returned(schema, schema.arguments[argument.position])
    )
    names = [argument.name for argument in schema.arguments]
    training = next((Argument(i, argument) for i, argument in enumerate(names) if argument in _TRAINING), None)
    outs = frozenset(argument.name for argument in schema.arguments if argument.is_out)
    unset = namespace in ("aten", "npu") and base in _UNSET
    # A device's own kernel takes precedence over the composite one and may round differently.
    composite = _has_kernel(func.name(), "CompositeImplicitAutograd")
    backends = {**BACKENDS, privateuse1(): "PrivateUse1"} if composite else {}
    own_kernels = frozenset(device for device, key in backends.items() if _has_kernel(func.name(), key))
    asynchronous = namespace == "c10d" and any("Work" in str(value.type) for value in schema.returns)
    of_collectives = namespace in ("c10d_functional", "_c10d_functional")
    waits = of_collectives and base == "wait_tensor"
    functional = of_collectives and not waits and not base.startswith("_wrap")
    views = any(value.alias_info is not None and not value.alias_info.is_write for value in schema.returns)
    reads = not (asynchronous or of_collectives or views or base in ("_unsafe_view", "record_stream"))
    ignores_first = views or name in OVERWRITES_FIRST
    views = views or base == "_unsafe_view"
    signature = read_signature(func)
    returns = tuple(value.name or "" for value in schema.returns)
    collective = kind_of_collective(namespace, base)
    of_ranks = collective or asynchronous or of_collectives or namespace == "fsdp"
    views_first = views and not (of_ranks or writes or any(returns)) and _is_of_one_tensor(schema)
    ordinary = not (of_ranks or unreturned or unset or ignores_first or views or signature.seeded)
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
        views,
        views_first,
        composite,
        own_kernels,
        reads,
        asynchronous,
        functional,
        waits,
        ordinary,
        signature,
        collective,
        tuple(names),
        returns if any(returns) and not asynchronous else (),
    )


def _is_of_one_tensor(schema: Any) -> bool:
    """Return True if an operator is called with one tensor, its first positional argument, and returns one."""
    types = [str(argument.type) for argument in schema.arguments]
    returned = [str(value.type) for value in schema.returns]
    if types[:1] != ["Tensor"] or schema.arguments[0].kwarg_only:
        return False
    return returned == ["Tensor"] and not any("Tensor" in kind for kind in types[1:])


def _functional(base: str) -> bool:
    """Return True if a batch norm does not write to its running statistics: it returns new ones, or changes none."""
    return "_functional" in base or "_no_" in base


def _is_result_of_collective(argument: Any) -> bool:
    """Return True if a collective writes to this argument, by its name: the schema does not show it."""
    return "Tensor" in str(argument.type) and not argument.name.startswith(("input", "sparse_indices"))


def _is_returned(schema: Any, argument: Any) -> bool:
    """Return True if an operator returns an argument that it writes to."""
    alias = argument.alias_info
    if alias is None:
        return False
    # The alias info of a list of tensors has no set of its own.
    returned = (value.alias_info for value in schema.returns if value.alias_info is not None)
    return any(value.is_write and value.before_set == alias.before_set for value in returned)
