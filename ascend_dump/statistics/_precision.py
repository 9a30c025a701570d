"""The precision of recorded statistics: the roundings that they went through."""

from __future__ import annotations

from typing import NamedTuple, Optional

__all__ = ["COMPUTED", "PRINTED", "Precision"]


class Precision(NamedTuple):
    """The roundings between a tensor and its recorded statistics.

    digits    minimum number of significant digits of printed numbers; None if numbers are not rounded for printing
    elements  the type to which the elements are converted before statistics are computed; "" if they are not converted
    sums      the type in which mean and l2norm are computed
    """

    digits: Optional[int] = None
    elements: str = ""
    sums: str = "float64"


#: The precision of `ascend_dump.statistics.statistics`.
COMPUTED = Precision()
#: The precision of files of CANN and MindSpore: C++ streams print six digits by default, and devices sum in float32.
PRINTED = Precision(digits=6, sums="float32")
