"""The contract, kept by the adapter `torch_npu` on the simulated device."""

from __future__ import annotations

from device_contracts import TestModel, TestModelOfStatistics

__all__ = ["TestModel", "TestModelOfStatistics"]
