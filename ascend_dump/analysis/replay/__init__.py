"""Run recorded ATen operators again, to check whether each output is correct for the recorded inputs."""

from ascend_dump.analysis.replay.reasons import REASONS, NotRun
from ascend_dump.analysis.replay.runner import Runner
from ascend_dump.analysis.replay.verify import Refused, Replay, Replayed, replay, replay_operator

__all__ = ["REASONS", "NotRun", "Refused", "Replay", "Replayed", "Runner", "replay", "replay_operator"]
