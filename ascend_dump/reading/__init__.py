"""Read dumps: `open_dump` finds the records in a directory tree, with one dialect (reader) per format of files on disk.

For authors of dialects: `Dialect` is the protocol. Its `scan` gets each `Directory` of the tree and returns an `Entry`
for each file that the dialect can read. `Entry.records` creates a `Record` for each tensor, and the record's `Loader`
reads the values. `rank_of` finds the rank in a path; `open_regular` and `read_regular` open untrusted files safely;
`read_npy` and `read_pt` read a file with one tensor. Raise the errors of `ascend_dump`. Register a dialect under the
entry point group `ascend_dump.dialects`. If a registered dialect raises an error, the error is reported with the name
of the dialect, and the other files are still read.
"""

from __future__ import annotations

from ascend_dump.reading._array_files import read_npy, read_pt
from ascend_dump.reading._dialect import Batch, Dialect, Directory, Entry, rank_of, world_size_of
from ascend_dump.reading._dump import Dump
from ascend_dump.reading._open import open_dump
from ascend_dump.reading._provenance import MadeOf
from ascend_dump.reading._record import FIELDS, Loader, Record
from ascend_dump.reading._registry import DialectInfo, registered_dialects
from ascend_dump.reading._runs import LostRecords, Run, RunState
from ascend_dump.storage.files import open_regular, read_regular

__all__ = [
    "FIELDS",
    "Batch",
    "Dialect",
    "DialectInfo",
    "Directory",
    "Dump",
    "Entry",
    "Loader",
    "LostRecords",
    "MadeOf",
    "Record",
    "Run",
    "RunState",
    "open_dump",
    "open_regular",
    "rank_of",
    "read_npy",
    "read_pt",
    "read_regular",
    "registered_dialects",
    "world_size_of",
]
