"""For tests of adapters: the contract suite, the pytest plugin, and `launch`."""

from __future__ import annotations

from ascend_dump._activation import launch

__all__ = ["launch"]
