"""Compare the numbers and settings that ranks pass to operators: they have to be the same on all ranks."""

from ascend_dump.analysis.ranks.settings.other_arguments import OtherArguments
from ascend_dump.analysis.ranks.settings.other_operators import OtherOperators
from ascend_dump.analysis.ranks.settings.shard_updates import ShardUpdates
from ascend_dump.analysis.ranks.settings.tensor_updates import TensorUpdates

__all__ = ["OtherArguments", "OtherOperators", "ShardUpdates", "TensorUpdates"]
