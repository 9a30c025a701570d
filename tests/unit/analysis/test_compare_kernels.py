"""The compiled kernels give what numpy gives, over blocks of every kind."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

# Private: no argument of a user's says whether compiled kernels or numpy do the work, and on how large parts.
from ascend_dump.analysis.compare import Measure, _engine, measure

numba = pytest.importorskip("numba")

COUNT = 20_011


def tensors(name: str, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Blocks that are equal, differ in a few elements, in all of them, and hold NaN, Inf, zeros and the smallest."""
    dtype = np.dtype(getattr(ml_dtypes, name, None) or name)
    rng = np.random.default_rng(seed)
    b = (rng.standard_normal(COUNT) * 10.0 ** rng.integers(-3, 4, COUNT)).astype(dtype)
    a = b.copy()
    a[5000:5100] = 0
    a[9000:] = (b[9000:].astype("float64") * (1 + 0.01 * rng.standard_normal(COUNT - 9000))).astype(dtype)
    if dtype.kind not in "iu":
        special = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-40, 6e-8], dtype="float64").astype(dtype)
        for side in (a, b):
            side[rng.integers(12000, 14000, 60)] = rng.choice(special, 60)
    return a, b


def close(x: Measure, y: Measure) -> None:
    for name, one, other in zip(x._fields, x, y):
        if isinstance(one, float) and isinstance(other, float):
            assert one == pytest.approx(other, rel=1e-10, nan_ok=True), name
        else:
            assert one == other, name


# Each name is another kernel, which takes seconds to compile.
@pytest.mark.parametrize("name", ["float32", "float16", "int32"])
def test_kernels_give_what_numpy_gives(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # Several parts, on several threads.
    monkeypatch.setattr(_engine, "_PART", 4096)
    for seed in range(5):
        a, b = tensors(name, seed)
        shaped = a.reshape(-1, COUNT), b.reshape(-1, COUNT)
        compiled = [measure(*shaped), measure(*(np.tile(one, (3, 1)).T for one in shaped))]
        assert not _engine._failed
        with monkeypatch.context() as numpy_only:
            numpy_only.setattr(_engine, "_WORTH_CALLING", 1 << 60)
            expected = [measure(*shaped), measure(*(np.tile(one, (3, 1)).T for one in shaped))]
        for one, other in zip(compiled, expected):
            close(one, other)
