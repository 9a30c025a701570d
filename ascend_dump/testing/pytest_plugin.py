"""The pytest plugin, active wherever ascend-dump and pytest are both installed.

Three fixtures:

`ascend_dump_path`     a fresh directory for dumps, below `tmp_path`
`ascend_dump_capture`  `ascend_dump.capture` that writes to this directory, and raises errors
                       instead of warning (`strict=True`); stopped at the end of the test
`ascend_dump_fakes`    a function that installs fakes until the end of the test, and returns the
                       simulated device: `npu = ascend_dump_fakes("acl")`

    def test_no_overflow(ascend_dump_capture):
        with ascend_dump_capture(model, data="stats") as cap:
            train_one_step(model)
        for record in cap.dump().select(io="output"):
            assert record.statistics().nan == 0, record

This module is imported in every pytest run of the environment, so it imports only pytest.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable

import pytest

if TYPE_CHECKING:
    from ascend_dump import Capture
    from ascend_dump.fakes.device.npu import Npu

# Tests import the contract suite to subclass it. pytest has to know it before, to explain its failed asserts.
pytest.register_assert_rewrite("ascend_dump.testing.contract")


@pytest.fixture
def ascend_dump_path(tmp_path: Path) -> Path:
    """A new directory for the dumps of this test."""
    path = tmp_path / "dumps"
    path.mkdir(mode=0o700)
    return path


@pytest.fixture
def ascend_dump_capture(ascend_dump_path: Path) -> Iterator[Callable[..., Capture]]:
    """`ascend_dump.capture` with `path` and `strict=True` set, stopped when the test ends."""
    import ascend_dump

    captures: list[Capture] = []

    def start(target: Any = None, **settings: Any) -> Any:
        captured = ascend_dump.capture(target, **{"path": ascend_dump_path, "strict": True, **settings})
        # For a decorated function, `ascend_dump.capture` returns the function; its attribute is the capture.
        captures.append(captured if isinstance(captured, ascend_dump.Capture) else captured.capture)
        return captured

    yield start
    for capture in reversed(captures):
        capture.stop()


@pytest.fixture
def ascend_dump_fakes() -> Iterator[Callable[..., Npu]]:
    """A function like `ascend_dump.fakes.install` that installs the fakes until the end of the test."""
    from ascend_dump.fakes import install

    with contextlib.ExitStack() as stack:

        def put(*names: str, **settings: Any) -> Npu:
            return stack.enter_context(install(*names, **settings))

        yield put
