"""Statistics on the threads of PyTorch's operators: the dump says the same as one made in another way."""

from __future__ import annotations

import ctypes
import os
import signal
import threading
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Callable

import numpy as np
import pytest
import xxhash

torch = pytest.importorskip("torch")

from ascend_dump_torch import _openmp, _session  # noqa: E402
from torch import nn  # noqa: E402

import ascend_dump  # noqa: E402
from ascend_dump.statistics.team import Measured, Team  # noqa: E402

needs_team = pytest.mark.skipif(
    find_spec("numba") is None or _openmp.openmp_parallel() is None, reason="needs numba, and PyTorch with OpenMP"
)


@pytest.fixture
def teams(monkeypatch: pytest.MonkeyPatch) -> list[Team]:
    """Those of the captures that follow, which use them from their first operator on."""
    made = []

    class ReadyTeam(Team):
        def __init__(self, parallel: Callable[[int, int], None]) -> None:
            super().__init__(parallel)
            self.prepare()
            self.tensors = 0
            made.append(self)

        def measure(self, memory: Any, dtypes: Any, **how: Any) -> Measured:
            self.tensors += len(memory)
            return super().measure(memory, dtypes, **how)

    monkeypatch.setattr(_session, "Team", ReadyTeam)
    monkeypatch.setattr(_session, "cpu_count", lambda: 1)
    return made


class Residual(nn.Module):
    """Views, operators in place, freed memory, several types, and a tensor larger than what waits."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(64, 64)
        self.norm = nn.BatchNorm1d(64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu_(self.norm(self.inner(x))).clone()
        y.mul_(2).add_(x)
        half = y[:, ::2].to(torch.bfloat16) + y.t()[:32].t().to(torch.bfloat16)
        half[3] = float("nan")
        large = y.repeat(40, 40)
        large.sub_(1)
        scratch = y.clone()
        scratch.untyped_storage().resize_(0)
        return large.sum() + half.float().nan_to_num().sum() + (y > 0).sum() + y.argmax()


def records_of(path: Path, teams: list[Team], data: str) -> tuple[list[tuple[Any, ...]], int]:
    torch.manual_seed(0)
    model = Residual()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    before = len(teams)
    with ascend_dump.capture(model, path=path, data=data, strict=True) as cap:
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.randn(50, 64)).backward()
            optimizer.step()
    dump = ascend_dump.open(cap.path)
    found = [
        (one.step, one.op_name, one.io, one.index, one.attrs["hash"], one.statistics() if one.attrs["hash"] else None)
        for one in dump
    ]
    return found, len(teams) - before


@needs_team
def test_hashes_and_statistics_are_those_of_another_way(tmp_path: Path, teams: list[Any]) -> None:
    expected, without = records_of(tmp_path / "full", teams, "full")
    found, with_team = records_of(tmp_path / "stats", teams, "stats")
    assert (without, with_team) == (0, 1)
    assert teams[0].tensors > 100
    assert [one[:5] for one in found] == [one[:5] for one in expected]
    assert sum(one[5] is not None for one in found) > 300
    for mine, other in zip(found, expected):
        if mine[5] is None or other[5] is None:
            assert mine[5] is other[5]
            continue
        assert repr(mine[5][:3]) == repr(other[5][:3])
        assert mine[5][5:] == other[5][5:]
        assert mine[5].mean == pytest.approx(other[5].mean, rel=1e-12, abs=1e-12, nan_ok=True)
        assert mine[5].l2norm == pytest.approx(other[5].l2norm, rel=1e-12, nan_ok=True)


@needs_team
def test_a_function_runs_on_each_thread_of_pytorch() -> None:
    parallel = _openmp.openmp_parallel()
    assert parallel is not None
    before = torch.get_num_threads()
    seen: list[tuple[int, int]] = []
    meet = threading.Barrier(3)

    def note(argument: int) -> None:
        meet.wait(20)  # one thread alone would wait in vain
        seen.append((threading.get_native_id(), argument))

    callback = ctypes.CFUNCTYPE(None, ctypes.c_int64)(note)
    address = ctypes.cast(callback, ctypes.c_void_p).value
    assert address is not None
    try:
        torch.set_num_threads(3)
        torch.ones(1 << 20).add_(1)
        for argument in (7, 8):
            parallel(address, argument)
    finally:
        torch.set_num_threads(before)
    assert [argument for _, argument in seen] == [7, 7, 7, 8, 8, 8]
    assert {thread for thread, _ in seen[:3]} == {thread for thread, _ in seen[3:]}, "they are kept, not made anew"
    assert len({thread for thread, _ in seen}) == 3


@needs_team
def test_python_runs_beside_the_hashes(teams: list[Any]) -> None:
    """Here, also operators: what runs meanwhile may set off anything."""
    parallel = _openmp.openmp_parallel()
    assert parallel is not None
    team = Team(parallel)
    team.prepare()
    before = torch.get_num_threads()
    ones, zeros = torch.ones(1 << 20), torch.zeros(3)
    memory = [(one.data_ptr(), one.nbytes, one.numpy().tobytes) for one in (ones, zeros)]
    seen: list[tuple[int, float]] = []
    try:
        torch.set_num_threads(3)
        for _ in range(20):
            found = team.measure(
                memory,
                [np.dtype(np.float32)] * 2,
                meanwhile=lambda: seen.append((threading.get_ident(), torch.ones(1 << 20).add(1).sum().item())),
            )
            assert found.digests() == [xxhash.xxh3_128_digest(one.numpy().tobytes()) for one in (ones, zeros)]
            assert (found.statistics(0).mean, found.statistics(1).zero) == (1.0, 3)
    finally:
        torch.set_num_threads(before)
    assert seen == [(threading.get_ident(), 2.0 * (1 << 20))] * 20


@needs_team
@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
def test_a_forked_process_does_without(tmp_path: Path, teams: list[Any]) -> None:
    """Its parent's threads are not there, and to wait for them would take for ever."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        torch.ones(1 << 20).add_(1)
        child = os.fork()
        if child == 0:
            signal.alarm(60)
            code = 1
            try:
                with ascend_dump.capture(path=tmp_path, data="stats", strict=True) as cap:
                    torch.ones(100).add_(1)
                code = 0 if len(cap.dump()) == 3 else 2
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    finally:
        torch.set_num_threads(before)


def test_no_team_where_the_runtime_cannot_be_told(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(torch.__config__, "parallel_info", lambda: "ATen parallel backend: native thread pool\n")
        # What it found once it keeps for the process.
        assert _openmp._find_parallel.__wrapped__() is None
    lib = os.path.join(os.path.dirname(torch.__file__), "lib")
    row = "7f00-7f01 r-xp 00000000 fe:00 123   {}\n"
    cases = [
        ([], None),
        (["/somewhere/mylibgomp.so.1", "[heap]"], None),
        ([f"{lib}/libgomp.so.1"], f"{lib}/libgomp.so.1"),
        (["/a b/libgomp.so.1", "/a b/libgomp.so.1"], "/a b/libgomp.so.1"),
        (["/usr/libgomp.so.1", "/opt/libiomp5.so"], None),
        (["/opt/libomp.so", f"{lib}/libgomp-a34.so.1", ""], f"{lib}/libgomp-a34.so.1"),
    ]
    monkeypatch.setattr(_openmp.sys, "platform", "linux")
    for paths, expected in cases:
        maps = "".join(map(row.format, paths))
        with monkeypatch.context() as patched:
            patched.setattr(Path, "read_text", lambda self, maps=maps, **settings: maps)
            assert _openmp._runtime() == expected
