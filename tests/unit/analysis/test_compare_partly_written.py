"""Memory of which an operator overwrites a part: no record has its new content, and the rest differs as before."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ascend_dump

torch = pytest.importorskip("torch")
pytest.importorskip("rapidfuzz")


def recorded(path: Path, run: Any) -> Path:
    with ascend_dump.capture(path=path, steps="0"):
        run(torch.arange(1.0, 257.0).reshape(32, 8))
    return path


def test_the_rest_of_a_tensor_follows_from_the_origin_of_the_whole(tmp_path: Path) -> None:
    def program(factor: float) -> Any:
        def run(x: Any) -> Any:
            scaled = x.pow(factor)
            scaled[:, 4:].zero_()
            return scaled @ scaled.T

        return run

    found = ascend_dump.compare(recorded(tmp_path / "actual", program(2.5)), recorded(tmp_path / "ref", program(2.0)))
    assert [origin.op_name for origin in found.origins] == ["pow_0"]


@pytest.mark.parametrize("factor", [1.0, 3.0])
def test_memory_without_a_value_is_no_parameter_until_it_is_written_as_a_whole(tmp_path: Path, factor: float) -> None:
    def program(factor: float, before: float) -> Any:
        def run(x: Any) -> Any:
            freed = np.full((32, 12), before, dtype=np.float32)
            del freed  # its memory, with this value, is allocated again
            joined = x.new_empty(32, 12)
            joined[:, :8].copy_(x)
            joined[:, 8:].copy_(x[:, :4] * factor)
            return joined @ joined.T

        return run

    actual = recorded(tmp_path / "actual", program(factor, 7.0))
    found = ascend_dump.compare(actual, recorded(tmp_path / "reference", program(1.0, 8.0)))
    assert [origin.op_name for origin in found.origins] == ([] if factor == 1.0 else ["mul_0"])
    assert found.verdict == ("different" if factor != 1.0 else found.verdict)
    assert factor != 1.0 or "different" not in found.counts


@pytest.mark.parametrize("is_missing", [True, False])
def test_a_part_of_memory_that_only_the_reference_updates_follows_from_that_update(
    tmp_path: Path, is_missing: bool
) -> None:
    def program(*, updates: bool) -> Any:
        def run(x: Any) -> Any:
            buffer = x.sin()
            first, second = buffer[:4], buffer[4:]
            if updates:
                buffer.div_(4)
            return first.exp(), second.exp()

        return run

    reference = recorded(tmp_path / "reference", program(updates=True))
    found = ascend_dump.compare(recorded(tmp_path / "actual", program(updates=not is_missing)), reference)
    named = [(origin.op_type, origin.kind, origin.evidence[0]) for origin in found.origins]
    text = "aten::div_ runs in the reference only"
    assert named == ([("aten::div_", "structure", text)] if is_missing else [])


@pytest.mark.parametrize("is_wrong", [True, False])
def test_a_bucket_that_is_written_by_parts_follows_from_what_is_written(tmp_path: Path, is_wrong: bool) -> None:
    """DDP multiplies each gradient into its part of a bucket, which is memory of an earlier step."""

    def program(factor: float) -> Any:
        bucket = torch.ones(32 * 8)

        def run(x: Any) -> Any:
            scaled = x.sin() * factor
            torch.mul(scaled[:5].reshape(-1), 0.5, out=bucket[:40])
            torch.mul(scaled[5:].reshape(-1), 0.5, out=bucket[40:])
            return bucket.exp()

        return run

    actual = recorded(tmp_path / "actual", program(1.5 if is_wrong else 1.0))
    found = ascend_dump.compare(actual, recorded(tmp_path / "reference", program(1.0)))
    assert [origin.op_name for origin in found.origins] == (["mul_0"] if is_wrong else [])
