"""Dumps with modules beside the functions that these call, such as msprobe's level "mix": the same tensors twice."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence

from ascend_dump.analysis.numerics.tensor_pair import identity_of
from ascend_dump.analysis.operators.operator import Operator
from ascend_dump.errors import AscendDumpError, NotSupported
from ascend_dump.reading import Record

__all__ = ["without_modules"]


def without_modules(operators: Sequence[Operator]) -> list[Operator]:
    """Leave out the modules whose outputs are outputs of functions too; a dump of modules alone keeps them all.

    The gradient of a weight may be transposed: the function multiplied by the transposed weight.
    """
    modules = {one.position for one in operators if _is_module(one)}
    if not modules or len(modules) == len(operators):
        return [*operators]
    made = {
        identity
        for one in operators
        if one.position not in modules
        for record in one.outputs
        for identity in _identities(record)
    }
    return [
        one
        for one in operators
        if one.position not in modules
        or not one.outputs
        or any(identity_of(record) not in made for record in one.outputs)
    ]


def _is_module(operator: Operator) -> bool:
    records = [*operator.inputs, *operator.outputs]
    return bool(records) and records[0].attrs.get("level") == "module"


def _identities(record: Record) -> Iterator[Hashable]:
    found = identity_of(record)
    if found is None:
        return
    yield found
    if record.shape is not None and len(record.shape) == 2 and 1 not in record.shape:
        import numpy as np
        import xxhash

        try:
            turned = np.ascontiguousarray(record.numpy().T)
        except NotSupported:
            # Statistics do not mind.
            if isinstance(found, tuple):
                yield (record.shape[::-1], *found[1:])
            return
        except AscendDumpError:
            return
        yield xxhash.xxh3_128_hexdigest(turned.reshape(-1).view(np.uint8).data if turned.size else b"")
