"""Compare the numbers and settings that ranks pass to operators, and what becomes of parameters between updates."""

from ascend_dump.analysis.ranks.settings.changed_parameters import ChangedParameters
from ascend_dump.analysis.ranks.settings.other_arguments import OtherArguments
from ascend_dump.analysis.ranks.settings.other_operators import OtherOperators
from ascend_dump.analysis.ranks.settings.shard_updates import ShardUpdates
from ascend_dump.analysis.ranks.settings.tensor_updates import TensorUpdates

__all__ = ["ChangedParameters", "OtherArguments", "OtherOperators", "ShardUpdates", "TensorUpdates"]
