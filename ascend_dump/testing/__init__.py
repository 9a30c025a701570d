"""For tests of adapters: the contract suite, the pytest plugin, `launch` and `fresh_adapters`."""

from __future__ import annotations

from ascend_dump._activation import launch
from ascend_dump.adapter._contract import fresh_adapters

__all__ = ["fresh_adapters", "launch"]
