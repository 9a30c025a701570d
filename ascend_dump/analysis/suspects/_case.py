"""Small programs as data, to try rules on."""

from __future__ import annotations

from typing import NamedTuple, Optional

from ascend_dump.dump_format import Placement
from ascend_dump.statistics import Statistics

__all__ = ["Row", "values"]


class Row(NamedTuple):
    """One record of such a program, and the statistics that it is to have; the fields are those of `Record`."""

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


def values(
    rms: float, *, count: int = 1000, zero: int = 0, same: bool = False, peak: Optional[float] = None
) -> Statistics:
    """Statistics of `count` elements of this root mean square, spread around 0.

    same: all of them have the value `rms`. peak: the largest one.
    """
    most = rms if same else 3 * rms if peak is None else peak
    least, mean = (rms, rms) if same else (-3 * rms, 0.0)
    return Statistics(count, most, least, mean, rms * count**0.5, 0, 0, 0, zero, zero, 0)
