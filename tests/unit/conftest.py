"""What several files of this directory test with."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from ascend_dump import fakes


@pytest.fixture
def tf() -> Iterator[Any]:
    with fakes.install("tensorflow"):
        import tensorflow

        yield tensorflow
