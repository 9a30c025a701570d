"""The built-in dialects, one module per format of dumps; each has its dialect as `DIALECT`."""

from __future__ import annotations

__all__ = ["BUILT_IN"]

#: In order of priority: later dialects do not see files that an earlier one has claimed.
BUILT_IN = (
    *("host", "msprobe", "tfdbg", "sglang", "te", "torchair_npy", "aclgraph_pt", "converted", "mindspore", "cann"),
)
