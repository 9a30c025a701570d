"""Tools for tests of adapters.

`contract` is a test suite for any adapter, and `pytest_plugin` has fixtures. `launch` starts a capture as
`ascend-dump run` does, and `fresh_adapters` forgets the loaded adapters for the duration of a block.
"""

from __future__ import annotations

from ascend_dump.adapter import fresh_adapters
from ascend_dump.startup.activation import launch

__all__ = ["fresh_adapters", "launch"]
