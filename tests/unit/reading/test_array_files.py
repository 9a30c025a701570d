"""`read_npy` and `read_pt`: one file with one tensor, of which nothing is executed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ascend_dump import CorruptDump, NotSupported
from ascend_dump.reading import read_npy, read_pt

X = np.arange(6, dtype="f4").reshape(2, 3)


@pytest.mark.parametrize("order", ["C", "F"])
def test_a_file_of_numpy_is_read(tmp_path: Path, order: str) -> None:
    np.save(tmp_path / "x.npy", np.asarray(X, order=order))  # type: ignore[call-overload]  # its two letters
    np.testing.assert_array_equal(read_npy(str(tmp_path / "x.npy")), X)


def test_objects_in_a_file_of_numpy_are_not_loaded(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.array([object], dtype=object), allow_pickle=True)
    with pytest.raises(CorruptDump):
        read_npy(tmp_path / "x.npy")


def test_a_file_of_torch_is_read(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    torch.save(torch.from_numpy(X).T.bfloat16(), tmp_path / "x.pt")
    values = read_pt(str(tmp_path / "x.pt"))
    assert values.dtype.name == "bfloat16"
    np.testing.assert_array_equal(values.astype("f4"), X.T)


def test_a_file_of_torch_with_more_than_a_tensor_is_refused(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    torch.save({"x": torch.ones(2)}, tmp_path / "x.pt")
    with pytest.raises(NotSupported, match="one plain tensor"):
        read_pt(tmp_path / "x.pt")


def test_another_file_is_corrupt(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"something else")
    for read in (read_npy, read_pt):
        with pytest.raises(CorruptDump):
            read(tmp_path / "x")
