"""keep=, until= and trigger() in reference dumps of sessions on the host, each signature of a run for itself."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import ascend_dump


@pytest.fixture
def session() -> Any:
    with tf.Graph().as_default() as graph:
        given = tf.placeholder(tf.float32, [2, 4], name="given")
        tf.sqrt(given, name="root")
        tf.add(given, 1.0, name="more")
        with tf.Session(graph=graph) as made:
            yield made


def run(session: Any, value: float, name: str = "root:0") -> None:
    session.run(name, {"given:0": np.full((2, 4), value, np.float32)})


def capture(path: Path, session: Any, **settings: Any) -> ascend_dump.Capture:
    return ascend_dump.capture(session, path=path, framework="tensorflow", strict=True, **settings)


def steps_of(cap: Any) -> dict[str, list[int]]:
    """By the model."""
    found: dict[str, set[int]] = {}
    for record in cap.dump():
        assert record.error is None
        found.setdefault(record.model, set()).add(record.step)
    return {name: sorted(steps) for name, steps in found.items()}


def manifest(cap: Any) -> Any:
    return json.loads((cap.path / "manifest.json").read_text())


def test_each_signature_keeps_its_last_steps(tmp_path: Path, session: Any) -> None:
    with capture(tmp_path, session, keep=2) as cap:
        for step in range(6):
            run(session, step)
            if step < 3:
                run(session, step, "more:0")
    assert steps_of(cap) == {"run0_root": [4, 5], "run1_more": [1, 2]}
    assert manifest(cap)["removed"]["steps"] == 5


@pytest.mark.parametrize("data", ["tensor", "stats"])
def test_the_run_that_produced_nan_is_the_last(tmp_path: Path, session: Any, data: Any) -> None:
    with capture(tmp_path, session, keep=1, until="nonfinite", data=data) as cap:
        for step in range(8):
            run(session, -1.0 if step == 4 else 1.0)
            cap.dump()  # waits for the writer
    assert steps_of(cap) == {"run0_root": [3, 4]}
    assert manifest(cap)["ended"] == {"reason": "NaN in root.output.0", "step": 4, "operator": "root.output.0"}


def test_a_trigger(tmp_path: Path, session: Any) -> None:
    with capture(tmp_path, session, keep=2) as cap:
        for step in range(8):
            run(session, 1.0)
            if step == 4:
                cap.trigger("loss spike")
    assert steps_of(cap) == {"run0_root": [2, 3, 4]}
    assert manifest(cap)["ended"]["reason"] == "loss spike"


def test_max_bytes_counts_what_is_on_disk(tmp_path: Path, session: Any) -> None:
    # Each step has a shard, whose header takes 256 KiB.
    with capture(tmp_path, session, keep=2, max_bytes="1MB") as cap:
        for step in range(40):
            run(session, step)
    assert steps_of(cap) == {"run0_root": [38, 39]}
    assert sum(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file()) < 2_000_000
