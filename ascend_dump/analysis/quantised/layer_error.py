"""The own error of a layer, as a value."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Optional

from ascend_dump.analysis.quantised.measures import ErrorNumbers, Outlier
from ascend_dump.reading import Record

__all__ = ["LayerError"]


@dataclass(frozen=True)
class LayerError:
    """The own error of a layer of the quantised program.

    layer     the module; with "(part 2)" for a further part, if operators of other modules run in between
    op_type   the type of the operator of the reference that computes most
    verdict   "ok"; "stands out" if its error is larger than that of other layers; "wrong" if rounding to fewer bits
              cannot cause the error
    reason    the verdict in words
    numbers   the numbers of its own error
    arrived   largest relative error of the activations that the layer reads, compared with the activations of the
              reference; None if the layer reads none
    share     share of the squared final error that this layer alone causes, above 1 if other layers cancel it; None if
              it was not measured
    outliers  channels of its activations with much larger values than others
    quantisers  names of the operators that quantise and dequantise for it
    is_quantised  True if the layer has quantisers, or tensors of quantised types
    record    the output of the layer
    """

    layer: str
    op_type: str
    verdict: str
    reason: str
    numbers: ErrorNumbers
    arrived: Optional[float]
    share: Optional[float]
    outliers: tuple[Outlier, ...]
    quantisers: tuple[str, ...]
    is_quantised: bool
    record: Record

    def to_dict(self) -> dict[str, Any]:
        """Return the error as plain values, for JSON."""
        fields = {name: getattr(self, name) for name in ("layer", "op_type", "verdict", "reason", "arrived", "share")}
        record = self.record
        return {
            **fields,
            **self.numbers._asdict(),
            "channels": list(self.numbers.channels),
            "outliers": [outlier._asdict() for outlier in self.outliers],
            "quantisers": list(self.quantisers),
            "is_quantised": self.is_quantised,
            **{name: getattr(record, name) for name in ("op_name", "step", "rank", "module", "source")},
        }
