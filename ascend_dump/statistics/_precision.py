"""Bounds of the error of recorded statistics."""

from __future__ import annotations

from typing import NamedTuple, Optional

__all__ = ["COMPUTED", "PRINTED", "Precision"]


class Precision(NamedTuple):
    """The roundings between a tensor and its recorded statistics.

    digits    significant digits of printed numbers, at least; None if no number is rounded for printing
    elements  the type to which elements are converted first; "" if to none
    sums      the type of mean and l2norm
    """

    digits: Optional[int] = None
    elements: str = ""
    sums: str = "float64"


#: Of `ascend_dump.statistics.statistics`.
COMPUTED = Precision()
#: Of the files of CANN and MindSpore: C++ streams print six digits by default, and devices sum in float32.
PRINTED = Precision(digits=6, sums="float32")
