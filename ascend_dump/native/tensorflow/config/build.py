"""Convert a DumpRequest to keys of NpuOptimizer."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Optional

from ascend_dump.native.cann.config.build import ge_options
from ascend_dump.native.tensorflow.config.keys import KEYS, Value

if TYPE_CHECKING:
    from ascend_dump.request import DumpRequest

__all__ = ["parameters"]


def parameters(
    request: DumpRequest, *, names: Optional[Iterable[str]] = None, known_options: Iterable[str] = ()
) -> dict[str, Value]:
    """Return the keys for a request, with values of the types that the bridge expects. Arguments: as `ge_options`.

    `dump_data` is left out if it has its default value, because bridges before 2026 do not know the key. Raises
    ConfigError and NotSupported.
    """
    options = ge_options(request, names=names, known_options=known_options)
    values: dict[str, Value] = {}
    for name, key in KEYS.items():
        if key.ge in options:
            text = options[key.ge]
            values[name] = text == "1" if key.field == "b" else int(text) if key.field == "i" else text
    if values.get("dump_data") == "tensor":
        del values["dump_data"]
    return values
