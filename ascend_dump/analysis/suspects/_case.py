"""Small recorded programs as data, on which the rules for suspects are tried."""

from __future__ import annotations

from typing import NamedTuple, Optional

from ascend_dump.dump_format import CollectiveCall, Placement
from ascend_dump.statistics import Statistics

__all__ = ["Row", "values"]


class Row(NamedTuple):
    """One record of such a program. found: the statistics of its tensor; the other fields are those of `Record`."""

    op_type: str
    op_name: str
    io: str
    found: Optional[Statistics]
    step: int = 0
    index: int = 0  # type: ignore[assignment]  # it hides tuple.index on purpose
    dtype: str = "float32"
    phase: str = "forward"
    module: str = ""
    storage: int = -1
    hash: str = ""
    skipped: str = ""
    rank: int = 0
    requires_grad: bool = False
    parameter: str = ""
    source: str = ""
    call: str = ""  # the arguments of the operator as JSON, see `ascend_dump.dump_format.read_call`
    placement: Optional[Placement] = None
    collective: Optional[CollectiveCall] = None


def values(
    rms: float, *, count: int = 1000, zero: int = 0, same: bool = False, peak: Optional[float] = None
) -> Statistics:
    """Return statistics of `count` elements with this root mean square, spread around 0.

    zero: number of elements that are zero. same: all elements have the value `rms`. peak: the largest element.
    """
    most = rms if same else 3 * rms if peak is None else peak
    least, mean = (rms, rms) if same else (-3 * rms, 0.0)
    return Statistics(count, most, least, mean, rms * count**0.5, 0, 0, 0, zero, zero, 0)
