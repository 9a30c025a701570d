"""Formats of MindSpore's Dump, as pure functions without the framework.

The dump JSON (`dump_json`, `settings`, `check`, `build`), which operators and iterations it selects (`select`), and the
names and texts it writes (`names`, `graph`, `statistics_csv`). The adapter, the reader and the fake share them.

Sources: MindSpore's documents "Using Dump in the Graph Mode" (2.5 to master), its parser
`mindspore/ccsrc/tools/data_dump/dump_json_parser.cc`, and MindSpore 2.10.0 on a CPU, which wrote the trees and
gave the verdicts that the tests compare with. What only an Ascend device shows is taken from the documents.
"""

from __future__ import annotations

from ascend_dump.native.mindspore.config.check import check_mindspore_config
from ascend_dump.native.mindspore.runtime import Runtime

__all__ = ["Runtime", "check_mindspore_config"]
