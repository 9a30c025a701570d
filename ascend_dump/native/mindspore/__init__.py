"""The formats of MindSpore's Dump function, as pure functions that do not import MindSpore.

`config` is about the dump JSON: parse, check and build it, and find the operators and iterations that it selects.
`names`, `graph` and `statistics_csv` are about the files that MindSpore writes. The adapter, the reader and the fake
share these modules.

Sources: MindSpore's documents "Using Dump in the Graph Mode" (2.5 to master), its parser
`mindspore/ccsrc/tools/data_dump/dump_json_parser.cc`, and MindSpore 2.10.0 on a CPU, whose dumps and error messages
the tests compare with. Facts that only an Ascend device shows are taken from the documents.
"""

from __future__ import annotations

from ascend_dump.native.mindspore.config.check import check_mindspore_config
from ascend_dump.native.mindspore.runtime import Runtime

__all__ = ["Runtime", "check_mindspore_config"]
