"""Another user who may write to `path=` renames the directory of a rank during a run and puts a link in its place."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any, Callable

import pytest
from planted_links import plant, state_of

import ascend_dump

torch = pytest.importorskip("torch")


def of_a_block(model: Any, path: Path, **settings: Any) -> tuple[Any, Callable[[], object]]:
    cap = ascend_dump.capture(model, path=path, **settings).start()
    return cap, lambda: model(torch.ones(1, 4))


def of_calls(model: Any, path: Path, **settings: Any) -> tuple[Any, Callable[[], object]]:
    run = ascend_dump.capture(model, path=path, **settings)(lambda: model(torch.ones(1, 4)))
    return run.capture, run


@pytest.mark.parametrize("start", [of_a_block, of_calls])
@pytest.mark.parametrize("settings", [{}, {"keep": 1}, {"keep": 1, "data": "full"}], ids=str)
def test_nothing_behind_the_link_is_changed(
    start: Any, settings: dict[str, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "dumps"
    path.mkdir()
    path.chmod(0o777)
    if os.geteuid() == 0:
        os.chown(path, 4242, -1)
    model = torch.nn.Linear(4, 4)
    cap, step = start(model, path, **settings)
    expected = step()
    step()
    if cap.active:
        cap.dump()  # so that it is in the files
    victim = plant(path)
    before = state_of(victim)
    for _ in range(4):
        assert torch.equal(step(), expected)
    cap.stop()
    assert state_of(victim) == before
    warnings = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(warnings) == 1
    assert "was moved" in warnings[0]
    assert "[AD510]" in warnings[0]


def test_a_directory_that_others_may_write_to_is_used(tmp_path: Path) -> None:
    model = torch.nn.Linear(4, 4)
    for name, mode in (("shared", 0o777), ("sticky", 0o1777), ("group", 0o2775)):
        (tmp_path / name).mkdir()
        (tmp_path / name).chmod(mode)
        (tmp_path / "link").unlink(missing_ok=True)
        (tmp_path / "link").symlink_to(tmp_path / name)
        with ascend_dump.capture(model, path=tmp_path / "link", keep=1, strict=True) as cap:
            for _ in range(3):
                model(torch.ones(1, 4))
        assert {record.step for record in cap.dump()} == {2}
