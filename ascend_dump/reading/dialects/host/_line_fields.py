"""Derive from a line of an index the attributes of its record, and a value that identifies it in another dump."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, Optional

import msgspec

from ascend_dump.dump_format import NO_VALUES, Line, content_of

__all__ = ["attrs_of", "identity_of", "is_readable"]


def is_readable(line: Line) -> bool:
    """Return True if the dump has values or statistics for a line, or a reason why it has no statistics."""
    evidence = line.shard or line.stats is not None or line.unmeasured
    return bool(evidence) or (line.nbytes == 0 and not line.skipped)


def identity_of(line: Line) -> Optional[Hashable]:
    content = content_of(line) if is_readable(line) else None
    if content is None:
        if line.skipped not in NO_VALUES:
            return None
        content = (line.skipped, line.dtype, line.shape)
    return (line.seq, line.op_type, line.op_name, line.io, line.index, line.phase, line.module, content)


def attrs_of(line: Line) -> dict[str, Any]:
    attrs: dict[str, Any] = {
        "seq": line.seq,
        "hash": line.hash,
        "stride": line.stride,
        "storage_offset": line.storage_offset,
        "storage": line.storage,
        "address": line.address,
        "storage_nbytes": line.storage_nbytes,
        "version": line.version,
        "device": line.device,
    }
    if line.skipped:
        attrs["skipped"] = line.skipped
    if line.unmeasured:
        attrs["unmeasured"] = line.unmeasured
    if line.origin:
        attrs["origin"] = line.origin
    if line.argument:
        attrs["argument"] = line.argument
    if line.parameter:
        attrs["parameter"] = line.parameter
    if line.requires_grad:
        attrs["requires_grad"] = True
    if line.quantization:
        attrs["quantization"] = line.quantization
    for name, value in (("collective", line.collective), ("placement", line.placement)):
        if value is not None:
            attrs[name] = msgspec.to_builtins(value)
    return attrs
