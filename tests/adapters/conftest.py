"""What several tests of the adapters have in common."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from device_contracts import Backend

from ascend_dump import fakes


@pytest.fixture
def dumps(tmp_path: Path) -> Path:
    return tmp_path / "dumps"


@pytest.fixture
def backend() -> Backend:
    """What the contracts of `device_contracts` run on: the simulated device."""
    return lambda *names: fakes.install(*names, environ={})


@pytest.fixture
def modes_as_before() -> Iterator[None]:
    """Whatever the test does, PyTorch's modes and its own record of them are as before."""
    import torch
    from torch_helpers import flags, modes

    before = flags()
    yield
    assert modes() == []
    assert flags() == before
    # Keys and modes fit together: an operator without tensors fails otherwise.
    assert torch.ones(2).sum().item() == 2


@pytest.fixture(params=["host", "device"])
def host_and_device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The test runs twice, the second time with tensors that say they lie on a device."""
    from torch_helpers import pretend_device

    if request.param == "device":
        pretend_device(monkeypatch)
