"""The contract, kept by the adapter `mindspore` on the fake MindSpore."""

from __future__ import annotations

from types import MappingProxyType

from device_contracts import MindSporeContract, TestMindSporeOnAscend

__all__ = ["TestMindSpore", "TestMindSporeOnAscend"]


class TestMindSpore(MindSporeContract):
    device = "CPU"
    # Statistics are refused on a CPU.
    bad_request = MappingProxyType({"data": "stats"})
