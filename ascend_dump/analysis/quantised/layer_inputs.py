"""Find the activations that a layer reads on both sides, as they are before quantisation."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Optional

import numpy as np

from ascend_dump.analysis.operators.operator import Operator
from ascend_dump.analysis.quantised.segments import Segment, is_quantiser, tensor_key
from ascend_dump.analysis.replay import NotRun
from ascend_dump.errors import AscendDumpError, NotSupported
from ascend_dump.reading import Record

__all__ = ["ProgramSide", "match_inputs", "values_of"]

#: Maximum number of successive quantising operators through which a tensor is traced back.
_LONGEST = 8


def values_of(record: Record) -> np.ndarray:
    """Return the values as float64; those of a quantised tensor are dequantised. Raises NotRun without values."""
    try:
        array = record.numpy()
    except (NotSupported, MemoryError) as error:
        raise NotRun("inputs", f"{record.label}: {str(error)[:160]}") from None
    except AscendDumpError as error:
        raise NotRun("unreadable", str(error)[:200]) from None
    try:
        values = array.astype(np.float64)
    except (TypeError, ValueError):
        raise NotRun("type", f"{record.label}: {record.dtype}") from None
    quantization: Any = record.attrs.get("quantization")
    return values if not isinstance(quantization, dict) else _dequantised(values, quantization, record)


def _dequantised(values: np.ndarray, quantization: dict[str, Any], record: Record) -> np.ndarray:
    try:
        scale = np.asarray(quantization["scale"], np.float64)
        zero = np.asarray(quantization["zero_point"], np.float64)
        if scale.ndim:
            shape = [1] * values.ndim
            shape[int(quantization["axis"])] = -1
            scale, zero = scale.reshape(shape), zero.reshape(shape)
        return np.asarray((values - zero) * scale)
    except (KeyError, IndexError, TypeError, ValueError):
        raise NotRun("type", f"{record.label}: its quantization cannot be read") from None


class ProgramSide:
    """The operators of one step of a program, with the producers of its tensors."""

    def __init__(self, operators: Sequence[Operator]) -> None:
        self.operators = operators
        self._producers: dict[Any, Operator] = {}
        self._parameters: set[Any] = set()
        for operator in operators:
            for record in operator.inputs:
                key = tensor_key(record)
                # A parameter is named only where it is first read in a step.
                is_parameter = record.parameter or record.attrs.get("requires_grad")
                if key is not None and is_parameter and key not in self._producers:
                    self._parameters.add(key)
            for record in operator.outputs:
                self._producers.setdefault(tensor_key(record), operator)

    def activations(self, segment: Segment) -> list[Record]:
        """Return the floating-point tensors that a segment reads and does not make, in order, without parameters."""
        written: set[Any] = set()
        read: dict[Any, Record] = {}
        for operator in segment.operators:
            for record in operator.inputs:
                key = tensor_key(record)
                is_float = (record.dtype or "").startswith(("float", "bfloat")) or record.attrs.get("quantization")
                if key is None or key in written or key in self._parameters or not is_float:
                    continue
                read.setdefault(key, record)
            written.update(map(tensor_key, operator.outputs))
        return list(read.values())

    def before_quantisers(self, record: Record) -> Record:
        """Return the tensor from which a tensor was quantised; the tensor itself if it was not quantised."""
        for _ in range(_LONGEST):
            producer = self._producers.get(tensor_key(record))
            if producer is None or not is_quantiser(producer):
                break
            sources = [source for source in producer.inputs if source.shape == record.shape]
            if not sources:
                break
            record = sources[0]
        return record

    def quantisers(self, segment: Segment) -> list[str]:
        """Return the names of the operators that quantise or dequantise for a segment."""
        inside = [operator for operator in segment.operators if is_quantiser(operator)]
        before = (self._producers.get(tensor_key(record)) for record in self.activations(segment))
        outside = [operator for operator in before if operator is not None and is_quantiser(operator)]
        return list(dict.fromkeys(operator.label for operator in (*outside, *inside)))


def match_inputs(
    actual: ProgramSide, actual_segment: Segment, reference: ProgramSide, reference_segment: Segment
) -> Iterator[tuple[Record, np.ndarray, np.ndarray]]:
    """Yield each activation that the layer of the reference reads, its values, and its values on the quantised side.

    Raises NotRun if the quantised layer reads no tensor of the same size.
    """
    read = [actual.before_quantisers(record) for record in actual.activations(actual_segment)]
    unused = list({tensor_key(record): record for record in read}.values())
    for record in reference.activations(reference_segment):
        expected = values_of(record)
        chosen = _nearest(record, expected, unused)
        if chosen is None:
            raise NotRun("inputs", f"the quantised layer reads no tensor of the size of {record.label}")
        partner, values = chosen
        unused = [candidate for candidate in unused if candidate is not partner]
        yield record, expected, values


def _nearest(record: Record, expected: np.ndarray, candidates: Iterable[Record]) -> Optional[tuple[Record, np.ndarray]]:
    """Return the candidate of the same number of elements whose values are nearest, with its values."""
    best: Optional[tuple[float, Record, np.ndarray]] = None
    for candidate in candidates:
        if candidate.shape is None or int(np.prod(candidate.shape)) != expected.size:
            continue
        if tensor_key(candidate) == tensor_key(record):
            return candidate, expected
        values = values_of(candidate).reshape(expected.shape)
        with np.errstate(all="ignore"):
            distance = float(np.linalg.norm((values - expected).ravel()))
        distance = distance if np.isfinite(distance) else np.inf
        if best is None or distance < best[0]:
            best = (distance, candidate, values)
    return None if best is None else best[1:]
