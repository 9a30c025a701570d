"""Drop modules from dumps that record both modules and the functions they call, such as msprobe's level "mix".

The tensors of these modules occur twice: in the records of the module and of its functions.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence

from ascend_dump.analysis.numerics.tensor_pair import identity_of
from ascend_dump.analysis.operators.operator import Operator
from ascend_dump.errors import AscendDumpError, NotSupported
from ascend_dump.reading import Record

__all__ = ["without_modules"]


def without_modules(operators: Sequence[Operator]) -> list[Operator]:
    """Return the operators, minus the modules whose every output is also an output of a function.

    Modules without recorded outputs stay, and so do all modules if there are no functions. A weight gradient may be
    recorded transposed, because the function computes with the transposed weight: both forms are recognised.
    """
    modules = {operator.position for operator in operators if _is_module(operator)}
    if not modules or len(modules) == len(operators):
        return [*operators]
    identities = {
        identity
        for operator in operators
        if operator.position not in modules
        for record in operator.outputs
        for identity in _identities_with_transposed(record)
    }
    return [
        operator
        for operator in operators
        if operator.position not in modules
        or not operator.outputs
        or any(identity_of(record) not in identities for record in operator.outputs)
    ]


def _is_module(operator: Operator) -> bool:
    records = [*operator.inputs, *operator.outputs]
    return bool(records) and records[0].attrs.get("level") == "module"


def _identities_with_transposed(record: Record) -> Iterator[Hashable]:
    identity = identity_of(record)
    if identity is None:
        return
    yield identity
    if record.shape is not None and len(record.shape) == 2 and 1 not in record.shape:
        import numpy as np
        import xxhash

        try:
            transposed = np.ascontiguousarray(record.numpy().T)
        except NotSupported:
            # Only statistics are known: they are equal after a transposition, only the shape changes.
            if isinstance(identity, tuple):
                yield (record.shape[::-1], *identity[1:])
            return
        except AscendDumpError:
            return
        yield xxhash.xxh3_128_hexdigest(transposed.reshape(-1).view(np.uint8).data if transposed.size else b"")
