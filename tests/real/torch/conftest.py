"""The suite runs without a network and on two threads, whatever the machine has."""

from __future__ import annotations

import os

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TRANSFORMERS_VERBOSITY"] = "error"
os.environ["OMP_NUM_THREADS"] = "2"
for name in ("ASCEND_DUMP", "ASCEND_DUMP_STRICT", "RANK", "WORLD_SIZE"):
    os.environ.pop(name, None)
