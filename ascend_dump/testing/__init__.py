"""For tests of adapters: the contract suite, the pytest plugin, `launch` and `fresh_adapters`."""

from __future__ import annotations

from ascend_dump.adapter import fresh_adapters
from ascend_dump.startup.activation import launch

__all__ = ["fresh_adapters", "launch"]
