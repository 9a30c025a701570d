"""The suite runs without a network and on two threads, whatever the machine has."""

from __future__ import annotations

import os

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TRANSFORMERS_VERBOSITY"] = "error"
os.environ["OMP_NUM_THREADS"] = "2"
os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"  # CUDA is deterministic only with it
for name in ("ASCEND_DUMP", "ASCEND_DUMP_STRICT", "RANK", "WORLD_SIZE"):
    os.environ.pop(name, None)
