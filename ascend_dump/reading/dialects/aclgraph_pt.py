"""Dialect `aclgraph_pt`: dumps of torchair's modes `reduce-overhead` and `npugraph_ex`. They have outputs only.

    worldsize{N}_global_rank{R}/{node}[_device_{index}]_{n}.pt

Sources: torchair 2.13, `_acl_concrete_graph/utils.py`; torch_npu 2.13, `npu/graphs.py`. For readers:

- Every file is the output of one FX node, or an input of the graph (`arg0_1`, `primals_1`).
- `op_type` is the name of the node without its number, because no file contains the operator's type.
- `step` is n, which counts the files written for this node name since the start of the process. If two graphs have a
  node of the same name, they share the counter. So n is the step only if a single graph writes to the directory.
- The pickle in a file is not executed, and torch is not needed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Optional

from ascend_dump.errors import NotSupported, ReadError
from ascend_dump.reading._dialect import Directory, Entry, rank_of
from ascend_dump.reading._record import Record
from ascend_dump.reading.dialects._pt_items import PT_TENSOR, tensor_fields

if TYPE_CHECKING:
    import numpy as np

    from ascend_dump.statistics import Statistics

__all__ = ["DIALECT"]

_ON_DEVICE = re.compile(r"(\w+)_device_(\d{1,6})_(\d{1,18})\.pt", re.ASCII)
_ON_HOST = re.compile(r"(\w+)_(\d{1,18})\.pt", re.ASCII)
_PLACEHOLDER = re.compile(r"(?:arg\d+|primals|tangents)_\d+", re.ASCII)
_NUMBERED = re.compile(r"(.+)_\d+", re.ASCII)


class _AclgraphPtDialect:
    name = "aclgraph_pt"

    def scan(self, directory: Directory) -> tuple[list[Entry], set[str]]:
        # Any checkpoint may have a name without a device, such as model_3.pt. Such a name is accepted only in a
        # directory worldsize{N}_global_rank{R}.
        in_rank_directory = bool(directory.parts) and rank_of(directory.parts[-1:]) is not None
        entries: list[Entry] = []
        for name in directory.names:
            match = _ON_DEVICE.fullmatch(name)
            if match is not None:
                entries.append(_PtFile(directory, name, match[1], int(match[2]), int(match[3])))
                continue
            match = _ON_HOST.fullmatch(name) if in_rank_directory else None
            if match is not None:
                entries.append(_PtFile(directory, name, match[1], None, int(match[2])))
        return entries, {entry.path.name for entry in entries}


DIALECT = _AclgraphPtDialect()


def _type_of(node: str) -> str:
    if _PLACEHOLDER.fullmatch(node):
        return "placeholder"
    numbered = _NUMBERED.fullmatch(node)
    return numbered[1] if numbered else node


class _PtFile(Entry):
    """A file with one output of one FX node."""

    __slots__ = ()

    def __init__(self, directory: Directory, file: str, node: str, device: Optional[int], count: int) -> None:
        super().__init__(
            directory.path / file,
            op_type=_type_of(node),
            op_name=node,
            step=count,
            rank=rank_of(directory.parts),
            device=device,
        )

    def records(self) -> Iterator[Record]:
        from ascend_dump.reading._pt_file import describe_pt

        fields: dict[str, Any] = {
            "path": self.path,
            "op_type": self.op_type,
            "op_name": self.op_name,
            "io": "output",
            "step": self.step,
            "rank": self.rank,
            "device": self.device,
        }
        try:
            tensor = describe_pt(self.path)
        except ReadError as error:
            yield Record(None, error=error, **fields)
            return
        except NotSupported as error:
            yield Record(_NotATensor(error), attrs={"no_tensor": True}, **fields)
            return
        yield Record(PT_TENSOR, **tensor_fields(tensor), **fields)


class _NotATensor:
    """The loader of a file that contains something other than one plain tensor: reading it raises the given error."""

    def __init__(self, error: NotSupported) -> None:
        self._error = error

    def tensor(self, record: Record, format: Optional[str]) -> np.ndarray:
        raise self._error

    def statistics(self, record: Record) -> Optional[Statistics]:
        raise self._error
