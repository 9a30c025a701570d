"""Check reductions over ranks: the tensors that ranks contribute, and the operation that combines them."""

from ascend_dump.analysis.ranks.reductions.wrong_reductions import WrongReductions

__all__ = ["WrongReductions"]
