"""The contract, kept by the adapter `acl` on the simulated device."""

from __future__ import annotations

from device_contracts import TestOfflineModel

__all__ = ["TestOfflineModel"]
