"""Format numbers and names for messages."""

from __future__ import annotations

__all__ = ["counted", "duration", "named", "size"]


def counted(count: int, noun: str) -> str:
    """Return a number with its noun: `1 record`, `2 records`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def named(op_name: str, op_type: str) -> str:
    """Return an operator's name and type: `fc/addmm_0 (aten::addmm)`. The name or the type may be empty."""
    return f"{op_name or op_type} ({op_type})" if op_type else op_name


def size(count: int) -> str:
    """Return a number of bytes with a unit: `1.2 MB`."""
    value = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1000:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.1f} TB"


def duration(seconds: float) -> str:
    """Return a duration with a unit: `35 ms`, `2.4 s`, `1 h 12 min`."""
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 120:
        return f"{seconds:.1f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60} min"
