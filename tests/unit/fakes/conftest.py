"""What several tests of the fakes of MindSpore and TensorFlow have in common."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from mindspore_programs import OUT, VARIABLE, environment, settings, write_settings

from ascend_dump import fakes
from ascend_dump.fakes.device.npu import Npu


@pytest.fixture
def npu(monkeypatch: pytest.MonkeyPatch) -> Iterator[Npu]:
    monkeypatch.delenv(VARIABLE, raising=False)
    with fakes.install("mindspore") as device:
        yield device


@pytest.fixture
def config(tmp_path: Path) -> Any:
    """Writes a dump JSON and points the environment at it; the dump goes to `tmp_path/out`."""

    def make(**common: Any) -> None:
        os.environ[VARIABLE] = write_settings(tmp_path / "dump.json", settings(tmp_path / OUT, **common))

    with environment(**{VARIABLE: ""}):
        yield make


@pytest.fixture
def tf() -> Iterator[Any]:
    with fakes.install("tensorflow"):
        import tensorflow

        yield tensorflow
