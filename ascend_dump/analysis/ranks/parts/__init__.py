"""Check the parts of data and of tensors on all ranks: each part belongs to one rank."""

from ascend_dump.analysis.ranks.parts.part_positions import PartPositions
from ascend_dump.analysis.ranks.parts.repeated_parts import RepeatedParts

__all__ = ["PartPositions", "RepeatedParts"]
