"""One module for each way of laying a dump out on disk; each has its dialect as `DIALECT`."""

from __future__ import annotations

__all__ = ["BUILT_IN"]

#: In the order in which they are asked: what an earlier one claims, later ones do not see.
BUILT_IN = ("host", "msprobe", "tfdbg", "sglang", "te", "torchair_npy", "aclgraph_pt", "mindspore", "cann")
