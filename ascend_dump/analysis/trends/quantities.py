"""Compute the values of one step, for each module and parameter, from the statistics of the step's records."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple, Optional

from ascend_dump.analysis.operators.names import is_view
from ascend_dump.analysis.operators.next_request import is_of_module
from ascend_dump.dump_format import SYMPTOM
from ascend_dump.errors import NotSupported, ReadError
from ascend_dump.reading import Record
from ascend_dump.statistics import Statistics

__all__ = ["QUANTITIES", "CurvePoint", "StepPoints", "execution_order", "least_change"]

#: Quantities of modules, then of parameters, with their meanings.
QUANTITIES: Mapping[str, str] = MappingProxyType(
    {
        "activation_max": "largest magnitude of the outputs",
        "activation_rms": "root mean square of the outputs",
        "zeros": "part of the elements of the outputs that are 0",
        "concentration": "of outputs that are probabilities: mean over rows of the sum of squares, 1 if one element "
        "has all the weight, 1/n if n elements share it",
        "nonfinite": "number of NaN and Inf in the outputs",
        "output_gradient": "L2 norm of the gradients of the outputs",
        "weight_norm": "L2 norm of the parameter before the optimizer step",
        "gradient_norm": "L2 norm of its gradient when the optimizer reads it",
        "update_ratio": "L2 norm of its change, divided by weight_norm",
    }
)

#: By quantity: the part of a step in which it is determined, in order of execution. Quantities without an entry are
#: determined in the forward pass.
_STAGES: Mapping[str, int] = MappingProxyType(
    {"weight_norm": 0, "output_gradient": 2, "gradient_norm": 3, "update_ratio": 4}
)
_FORWARD, _BACKWARD = 1, 2

#: Quantities between 0 and 1, and the difference below which two of their values count as equal.
_PARTS, _LEAST_OF_PARTS = ("zeros", "concentration"), 0.02
#: Maximum difference between 1 and the sum of a row that counts as probabilities.
_SUM_TOLERANCE = 2e-3


class CurvePoint(NamedTuple):
    """The key of a value of one step. kind, name, quantity: as in `Curve`."""

    kind: str
    name: str
    quantity: str


def least_change(quantity: str) -> float:
    """Return the difference below which two values of a quantity count as equal."""
    return _LEAST_OF_PARTS if quantity in _PARTS else 0.0


def execution_order(quantity: str, position: int) -> tuple[int, int]:
    """Return a key that sorts the values of one step by execution. position: of its module or parameter in the step."""
    stage = _STAGES.get(quantity, _FORWARD)
    return stage, -position if stage == _BACKWARD else position


@dataclass
class _Outputs:
    """Sums over the outputs of a module in one step. A sum is None if no output has the statistic."""

    largest: Optional[float] = None
    squares: Optional[float] = None
    zeros: Optional[int] = None
    nonfinite: Optional[int] = None
    measured_elements: int = 0
    counted_elements: int = 0
    row_squares: float = 0.0
    rows: float = 0.0

    def add(self, record: Record, statistics: Statistics) -> None:
        ends = [abs(value) for value in (statistics.max, statistics.min) if value is not None]
        if ends:
            self.largest = max(*ends, self.largest or 0.0)
        if statistics.l2norm is not None:
            self.squares = (self.squares or 0.0) + statistics.l2norm * statistics.l2norm
            self.measured_elements += statistics.count
        if statistics.zero is not None:
            self.zeros = (self.zeros or 0) + statistics.zero
            self.counted_elements += statistics.count
        if statistics.nan is not None:
            infinite = (statistics.posinf or 0) + (statistics.neginf or 0)
            self.nonfinite = (self.nonfinite or 0) + statistics.nan + infinite
        rows = _rows_of_probabilities(record, statistics)
        if rows:
            self.row_squares += (statistics.l2norm or 0.0) * (statistics.l2norm or 0.0)
            self.rows += rows

    def values(self, kind: str, name: str) -> dict[CurvePoint, float]:
        values = {
            "activation_max": self.largest,
            "activation_rms": None if self.squares is None else _root(self.squares, self.measured_elements),
            "zeros": None if self.zeros is None else self.zeros / self.counted_elements,
            "concentration": self.row_squares / self.rows if self.rows else None,
            "nonfinite": self.nonfinite,
        }
        return {
            CurvePoint(kind, name, quantity): float(value) for quantity, value in values.items() if value is not None
        }


class StepPoints:
    """The values of one step of one run, in the order in which modules end and parameters are updated.

    unreadable, first_error  number of records that cannot be read, and the error of the first such record
    """

    def __init__(self) -> None:
        self.unreadable = 0
        self.first_error = ""
        self._outputs: dict[tuple[str, str], _Outputs] = {}
        self._gradients: dict[str, float] = {}
        self._parameters: dict[str, _ParameterStep] = {}

    def add(self, record: Record) -> None:
        """Add a record of the step. Records from which no value is computed are ignored."""
        if record.error is not None:
            self._note_error(record.error)
            return
        role = _role_of(record)
        if role is None:
            return
        try:
            statistics = record.statistics()
        except NotSupported:
            return  # it has neither values nor statistics
        except ReadError as error:
            self._note_error(error)
            return
        if not statistics.count:
            return
        if role == "output":
            kind = "operator" if record.module is None else "module"
            name = record.op_name or record.op_type if record.module is None else record.module
            self._outputs.setdefault((kind, name), _Outputs()).add(record, statistics)
        elif statistics.l2norm is None:
            return
        elif role == "output_gradient":
            name = record.module or ""
            self._gradients[name] = math.hypot(self._gradients.get(name, 0.0), statistics.l2norm)
        else:
            self._add_to_parameter(record, role, statistics.l2norm)

    def values(self) -> dict[CurvePoint, float]:
        """Return the values of the step."""
        values: dict[CurvePoint, float] = {}
        for (kind, name), outputs in self._outputs.items():
            values.update(outputs.values(kind, name))
            if kind == "module" and name in self._gradients:
                values[CurvePoint(kind, name, "output_gradient")] = self._gradients[name]
        for name, parameter in self._parameters.items():
            values.update({CurvePoint("parameter", name, quantity): value for quantity, value in parameter.values()})
        return values

    def _note_error(self, error: ReadError) -> None:
        self.unreadable += 1
        self.first_error = self.first_error or f"{error.message} [{error.code}]"

    def _add_to_parameter(self, record: Record, role: str, norm: float) -> None:
        label = record.parameter or ""
        name = label.removesuffix(".grad") if role == "gradient" else label.removeprefix(_CHANGE_OF)
        parameter = self._parameters.setdefault(name, _ParameterStep())
        if role == "gradient":
            parameter.gradient = norm
        elif role == "change":
            parameter.change = norm
        elif role == "after":
            parameter.after = record
        elif parameter.before is None:
            parameter.before, parameter.weight = record, norm


#: Prefix of `Record.parameter` in a record of a parameter's change, which PyTorch's adapter writes.
_CHANGE_OF = "change of "
#: Part of `Record.parameter` in a record of an optimizer state, such as `exp_avg of fc.weight`.
_STATE_OF = " of "


@dataclass
class _ParameterStep:
    """A parameter in one step. before, after: its records before and after the optimizer step, if there are any."""

    before: Optional[Record] = None
    after: Optional[Record] = None
    weight: Optional[float] = None
    gradient: Optional[float] = None
    change: Optional[float] = None

    def values(self) -> list[tuple[str, float]]:
        change = self.change if self.change is not None else self._difference()
        values = [("weight_norm", self.weight), ("gradient_norm", self.gradient)]
        # A bias begins at 0. Then its change divided by its norm is not defined.
        if change is not None and self.weight:
            values.append(("update_ratio", change / self.weight))
        return [(quantity, value) for quantity, value in values if value is not None]

    def _difference(self) -> Optional[float]:
        """Return the norm of the change, from the values before and after; None if one is not recorded."""
        import numpy as np

        if self.before is None or self.after is None:
            return None
        try:
            before, after = (record.numpy().astype(np.float64) for record in (self.before, self.after))
        except (NotSupported, ReadError):
            return None
        return float(np.linalg.norm((after - before).ravel())) if before.shape == after.shape else None


def _role_of(record: Record) -> Optional[str]:
    """Return the role of a record in its step; None if no value is computed from the record.

    The roles are "output", "output_gradient", "gradient", "before", "after" and "change", the last four for parameters.
    """
    if not (record.dtype or "").startswith(("float", "bfloat", "hifloat")):
        return None
    parameter = record.parameter or ""
    if is_of_module(record):
        call = record.op_name.rpartition("/")[2]
        if call.startswith("forward_"):
            # Checkpointing runs forward passes again while gradients are computed.
            return "output" if record.io == "output" and record.phase == "forward" else None
        if call.startswith("backward_"):
            return "output_gradient" if record.io == "input" else None
        return "gradient" if parameter.endswith(".grad") else "before" if record.io == "input" else "change"
    if parameter and _STATE_OF not in parameter:
        if parameter.endswith(".grad"):
            return "gradient" if record.io == "input" else None
        if record.io == "input":
            return "before"
        return "after" if record.phase == "other" else None
    if record.io != "output" or record.kernel is not None or record.op_type.startswith(SYMPTOM):
        return None
    return "output" if record.phase in ("forward", None) and not is_view(record.op_type) else None


def _rows_of_probabilities(record: Record, statistics: Statistics) -> float:
    """Return the number of rows of an output whose rows are probabilities; 0 for others."""
    columns = record.shape[-1] if record.shape else 0
    low, high, mean, norm = statistics.min, statistics.max, statistics.mean, statistics.l2norm
    if columns < 2 or low is None or high is None or mean is None or norm is None:
        return 0
    is_distribution = low >= 0 and high <= 1 and abs(mean * columns - 1) <= _SUM_TOLERANCE
    return statistics.count / columns if is_distribution else 0


def _root(squares: float, count: int) -> float:
    return math.sqrt(squares / count) if count and squares >= 0 else squares
