"""For authors of adapters: the contract, the registry, and what adapters have in common."""

from ascend_dump._paths import RunDirectory
from ascend_dump.adapter._contract import Adapter, AdapterInfo, Begin, adapters, choose, load, registered
from ascend_dump.adapter._exit import at_exit
from ascend_dump.adapter._session import Session

__all__ = [
    "Adapter",
    "AdapterInfo",
    "Begin",
    "RunDirectory",
    "Session",
    "adapters",
    "at_exit",
    "choose",
    "load",
    "registered",
]
