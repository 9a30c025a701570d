"""The built-in dialects: one module per format of dumps, with the dialect as its attribute `DIALECT`."""

from __future__ import annotations

__all__ = ["BUILT_IN"]

#: In order of priority: later dialects do not see files that an earlier one has claimed.
BUILT_IN = (
    *("host", "msprobe", "tfdbg", "sglang", "te", "torchair_npy", "aclgraph_pt", "converted", "mindspore", "cann"),
)
