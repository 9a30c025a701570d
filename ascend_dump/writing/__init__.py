"""Write host dumps: asynchronously, each distinct tensor once, readable after the process is killed.

A record is queued as an `Item`: its `Line` of the index, and a `Payload` with the bytes of its tensor. Each step has an
index, and shards, which are safetensors files with the tensors. `keep=` removes the shards of old steps.
"""

from __future__ import annotations

from ascend_dump.dump_format import Line
from ascend_dump.writing.budget import SizeLimit, size_limit
from ascend_dump.writing.payload import CHANGED, Item, Payload, copy_memory, sample_of
from ascend_dump.writing.run import HostRun
from ascend_dump.writing.shard import Limits
from ascend_dump.writing.spread_steps import SpreadSteps
from ascend_dump.writing.writer import HostWriter

__all__ = [
    "CHANGED",
    "HostRun",
    "HostWriter",
    "Item",
    "Limits",
    "Line",
    "Payload",
    "SizeLimit",
    "SpreadSteps",
    "copy_memory",
    "sample_of",
    "size_limit",
]
