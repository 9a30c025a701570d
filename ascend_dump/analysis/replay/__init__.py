"""Run recorded ATen operators again: is an output right for the inputs that are recorded with it?"""

from ascend_dump.analysis.replay._reasons import REASONS, NotRun
from ascend_dump.analysis.replay._replay import Refused, Replay, Replayed, replay, replay_operator
from ascend_dump.analysis.replay._run import Runner

__all__ = ["REASONS", "NotRun", "Refused", "Replay", "Replayed", "Runner", "replay", "replay_operator"]
