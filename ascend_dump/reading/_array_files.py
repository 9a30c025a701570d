"""Read a file that contains a single tensor, with the same checks as for a file inside a dump."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Union

if TYPE_CHECKING:
    import numpy as np

__all__ = ["read_npy", "read_pt"]


def read_npy(path: Union[str, os.PathLike[str]]) -> np.ndarray:
    """Read a file of `numpy.save` as a read-only array, memory-mapped if it is large.

    The header is checked before numpy reads anything: objects are never loaded, and a size that exceeds the file is an
    error. Raises CorruptDump.
    """
    from ascend_dump.native.npy import read_npy_header
    from ascend_dump.reading._npy import read_array

    file = Path(path)
    return read_array(file, read_npy_header(file))


def read_pt(path: Union[str, os.PathLike[str]]) -> np.ndarray:
    """Read a tensor of `torch.save` as a read-only array, without torch and without executing the pickle.

    Raises CorruptDump; NotSupported if the file contains anything but one plain tensor.
    """
    from ascend_dump.reading._pt_file import describe_pt, read_pt_array

    file = Path(path)
    return read_pt_array(file, describe_pt(file))
