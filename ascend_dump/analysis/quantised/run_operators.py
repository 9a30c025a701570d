"""Run operators of the reference again one after another, with other values for some tensors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Optional, cast

import numpy as np

from ascend_dump.analysis.operators.operator import Operator
from ascend_dump.analysis.quantised.segments import tensor_key
from ascend_dump.analysis.replay import NotRun, Runner
from ascend_dump.analysis.replay.checked_operators import is_checked
from ascend_dump.analysis.replay.verify import arguments_of
from ascend_dump.reading import Record

__all__ = ["ChainRunner"]

_Values = Mapping[Any, np.ndarray]


class _WithValues:
    """A record with other values."""

    def __init__(self, record: Record, values: np.ndarray) -> None:
        self._record, self._values = record, values

    def __getattr__(self, name: str) -> Any:
        return getattr(self._record, name)

    def numpy(self) -> np.ndarray:
        return self._values


class ChainRunner:
    """Runs operators again. Raises FrameworkMissing without PyTorch.

    is_trusted  False to run only operators whose kernels check their arguments
    """

    def __init__(self, *, is_trusted: bool) -> None:
        self._runner = Runner()
        self._is_trusted = is_trusted
        #: Ids of operators that were run before, with tensors of the same sizes.
        self._small: set[int] = set()

    def run(self, operators: Iterable[Operator], values: _Values, wide: Optional[str]) -> dict[Any, np.ndarray]:
        """Run operators with other values for some tensors, and return all tensors that change, by `tensor_key`.

        Operators that read no changed tensor are not run. Raises NotRun.

        values  the other values, as arrays in the shapes of the tensors, by `tensor_key`
        wide    the type that floating-point tensors are converted to; None: each keeps its own type
        """
        changed = dict(values)
        for operator in operators:
            keys = [tensor_key(record) for record in operator.inputs]
            if not any(key in changed for key in keys):
                continue
            if not self._is_trusted and not is_checked(operator.op_type, in_layers=True):
                raise NotRun("unchecked", operator.op_type)
            inputs = [
                record if key not in changed else cast(Record, _WithValues(record, _typed(changed[key], record, wide)))
                for key, record in zip(keys, operator.inputs)
            ]
            again, is_small = replace(operator, inputs=inputs), id(operator) in self._small
            results = self._runner.run(again, arguments_of(operator), wide, is_small=is_small)
            self._small.add(id(operator))
            for record in operator.outputs:
                key = tensor_key(record)
                if key is not None and record.index in results:
                    changed[key] = results[record.index]
        return changed


def _typed(values: np.ndarray, record: Record, wide: Optional[str]) -> np.ndarray:
    if wide is not None:
        return values
    from ascend_dump.dump_format import numpy_dtype

    with np.errstate(all="ignore"):
        return values.astype(numpy_dtype(record.dtype or "float32"))
