"""The suite reads what other processes dump, so MindSpore itself is not imported here."""

from __future__ import annotations

import os

for name in [name for name in os.environ if name.startswith(("ASCEND_DUMP", "MINDSPORE_DUMP", "MS_", "RANK"))]:
    del os.environ[name]
