"""The suite runs without a network and on one thread; DeepSpeed compiles nothing and Ray reports nothing."""

from __future__ import annotations

import os

os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_VERBOSITY="error", OMP_NUM_THREADS="1", RAY_USAGE_STATS_ENABLED="0")
for name in ("ASCEND_DUMP", "ASCEND_DUMP_STRICT", "RANK", "WORLD_SIZE"):
    os.environ.pop(name, None)
