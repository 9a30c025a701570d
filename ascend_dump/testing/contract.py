"""The promises of every adapter, as tests that an adapter's author subclasses.

    from ascend_dump.testing.contract import AdapterContract

    class TestMyAdapter(AdapterContract):
        name = "paddle"
        bad_request = {"scene": "watch"}

        @pytest.fixture
        def make_target(self):
            def make():
                paddle.seed(0)
                return paddle.nn.Linear(4, 4)
            return make

        def run_step(self, target):
            return target(paddle.ones([2, 4])).numpy()

The adapter must be registered under the entry point group `ascend_dump.adapters`, as in a user's
environment. Override a method if the framework needs different steps. Do not skip a test of a
promise that the framework cannot keep: let the adapter's `check` report the request as a problem.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Callable

import pytest

import ascend_dump
from ascend_dump.adapter import Adapter, adapters, load
from ascend_dump.common.paths import RunDirectory
from ascend_dump.common.rank import current_rank

__all__ = ["AdapterContract"]

_MakeTarget = Callable[[], Any]


class AdapterContract:
    """The contract suite. A subclass sets `name` and `bad_request`, and defines `make_target` and `run_step`."""

    #: The adapter's registered name.
    name: str = ""
    #: Settings that this framework would refuse or silently ignore.
    bad_request: Mapping[str, Any] = {}
    #: Settings that every capture in these tests needs.
    settings: Mapping[str, Any] = {}

    @pytest.fixture
    def make_target(self) -> _MakeTarget:
        """A function that returns a new target in each call. All these targets compute the same results."""
        raise NotImplementedError("define the fixture make_target: it returns a function that returns a new target")

    def run_step(self, target: Any) -> Any:
        """Run exactly one step of `target` and return its result."""
        raise NotImplementedError("define run_step(target): it runs one step and returns the step's result")

    def same(self, first: Any, second: Any) -> bool:
        """Return True if two results are bit-identical."""
        import numpy as np

        return np.asarray(first).tobytes() == np.asarray(second).tobytes()

    def parts(self, target: Any) -> dict[str, Any]:
        """Return the parts of the target that must be the identical objects after a capture, by names of your choice.

        By default these are the target's class, its attributes, and the items of attributes that are dictionaries,
        lists or tuples.
        """
        parts: dict[str, Any] = {"__class__": type(target)}
        for name, value in getattr(target, "__dict__", {}).items():
            parts[name] = value
            items: Iterable[tuple[Any, Any]] = ()
            if isinstance(value, dict):
                items = value.items()
            elif isinstance(value, (list, tuple)):
                items = enumerate(value)
            parts.update({f"{name}[{key!r}]": item for key, item in items})
        return parts

    @pytest.fixture
    def adapter(self) -> Adapter:
        return load(self.name)

    @pytest.fixture
    def capture(self, tmp_path: Path) -> Callable[..., ascend_dump.Capture]:
        """`ascend_dump.capture` with this adapter and `strict=True`, writing below `tmp_path`."""

        def make(target: Any, **settings: Any) -> ascend_dump.Capture:
            common = {"path": tmp_path / "dumps", "strict": True, "framework": self.name, **self.settings}
            capture: ascend_dump.Capture = ascend_dump.capture(target, **{**common, **settings})
            return capture

        return make

    # Each of the following tests is one promise.

    def test_it_is_registered_and_usable(self) -> None:
        infos = {info.name: info for info in adapters()}
        assert self.name in infos, f"registered are {sorted(infos)}"
        assert infos[self.name].usable, infos[self.name].reason

    def test_it_accepts_its_target_and_nothing_foreign(self, adapter: Adapter, make_target: _MakeTarget) -> None:
        assert adapter.accepts(make_target())
        assert not adapter.accepts(object())

    def test_a_good_request_is_no_error(self, adapter: Adapter, make_target: _MakeTarget) -> None:
        request = ascend_dump.DumpRequest(**{**self.settings, "steps": "0|2-5"})
        problems = adapter.check(request, make_target(), _planned(request.path))
        assert [problem for problem in problems if problem.severity == "error"] == []

    def test_a_bad_request_is_a_problem_that_helps(self, adapter: Adapter, make_target: _MakeTarget) -> None:
        assert self.bad_request, "set bad_request to settings that this framework refuses or ignores"
        request = ascend_dump.DumpRequest(**{**self.settings, **self.bad_request})
        problems = adapter.check(request, make_target(), _planned(request.path))
        assert problems, f"check() reports no problem of {dict(self.bad_request)}"
        for problem in problems:
            assert problem.severity in ("error", "silent", "warning")
            assert problem.code, problem
            assert problem.message, problem
            assert problem.hint, f"{problem} has no hint: what to do next"

    def test_check_leaves_the_target_alone(self, adapter: Adapter, make_target: _MakeTarget, tmp_path: Path) -> None:
        target = make_target()
        before = self.parts(target)
        request = ascend_dump.DumpRequest(**{**self.settings, "path": tmp_path / "checked"})
        adapter.check(request, target, _planned(request.path))
        _assert_identical(before, self.parts(target))
        assert list(tmp_path.iterdir()) == []

    def test_records_name_the_operators_that_ran(self, capture: Any, make_target: _MakeTarget) -> None:
        target = make_target()
        with capture(target) as cap:
            self.run_step(target)
        records = list(cap.dump())
        assert records
        for record in records:
            assert record.error is None, record.error
            assert record.op_type, record
            assert record.op_name, record
            assert record.io in ("input", "output"), record
            assert record.step == 0, record
            assert record.rank is not None, record
        assert cap.path in [path for record in records for path in record.path.parents]

    def test_results_are_unchanged(self, capture: Any, make_target: _MakeTarget) -> None:
        target, captured = make_target(), make_target()
        expected = [self.run_step(target) for _ in range(3)]
        with capture(captured):
            results = [self.run_step(captured) for _ in range(3)]
        for step, (plain, result) in enumerate(zip(expected, results)):
            assert self.same(plain, result), f"the result of step {step} differs under capture"

    def test_the_target_is_the_same_object_as_before(self, capture: Any, make_target: _MakeTarget) -> None:
        target = make_target()
        self.run_step(target)  # some frameworks build attributes on first use
        before = self.parts(target)
        with capture(target):
            self.run_step(target)
        _assert_identical(before, self.parts(target))

    def test_nothing_is_written_after_stop(self, capture: Any, make_target: _MakeTarget, tmp_path: Path) -> None:
        target = make_target()
        with capture(target):
            self.run_step(target)
        before = _files(tmp_path)
        self.run_step(target)
        assert _files(tmp_path) == before

    def test_a_second_stop_does_nothing(self, capture: Any, make_target: _MakeTarget, tmp_path: Path) -> None:
        target = make_target()
        cap = capture(target).start()
        self.run_step(target)
        cap.stop()
        before = _files(tmp_path)
        cap.stop()
        assert _files(tmp_path) == before

    def test_the_adapter_itself_may_be_stopped_twice(
        self, adapter: Adapter, make_target: _MakeTarget, tmp_path: Path
    ) -> None:
        target = make_target()
        before = self.parts(target)
        request = ascend_dump.DumpRequest(**{**self.settings, "path": tmp_path / "dumps"})
        run = _planned(request.path).make()
        session = adapter.start(request, target, run)
        session.stop()
        session.stop()
        _assert_identical(before, self.parts(target))
        assert run.path in (session.root, *session.root.parents)

    def test_two_captures_in_a_row_do_not_mix(self, capture: Any, make_target: _MakeTarget) -> None:
        target = make_target()
        with capture(target) as first:
            self.run_step(target)
        files, count = _files(first.path), len(first.dump())
        with capture(target) as second:
            self.run_step(target)
        assert first.path != second.path
        assert _files(first.path) == files
        assert len(first.dump()) == len(second.dump()) == count

    def test_an_exception_in_the_block_closes_the_dump(
        self, capture: Any, make_target: _MakeTarget, tmp_path: Path
    ) -> None:
        target = make_target()
        before = self.parts(target)
        cap = capture(target)
        with pytest.raises(_Planned), cap:  # noqa: PT012  (the exception leaves a block that has run)
            self.run_step(target)
            raise _Planned
        assert not cap.active
        assert len(cap.dump()) > 0
        assert cap.dump().errors() == []
        _assert_identical(before, self.parts(target))
        files = _files(tmp_path)
        self.run_step(target)
        assert _files(tmp_path) == files

    def test_unselected_steps_write_nothing(self, capture: Any, make_target: _MakeTarget) -> None:
        target = make_target()
        with capture(target, steps="1") as cap:
            self.run_step(target)
            assert len(cap.dump()) == 0
            self.run_step(target)
            self.run_step(target)
        assert {record.step for record in cap.dump()} == {1}

    def test_a_dump_that_stays_empty_is_reported(self, capture: Any, make_target: _MakeTarget) -> None:
        target = make_target()
        cap = capture(target, steps="1000").start()
        self.run_step(target)
        with pytest.raises(ascend_dump.CaptureError, match="wrote nothing"):
            cap.stop()
        assert len(cap.dump()) == 0


def _planned(path: Path) -> RunDirectory:
    return RunDirectory.planned(path, current_rank())


class _Planned(Exception):
    """Raised by a test inside a capture."""


def _files(root: Path) -> dict[str, tuple[int, int]]:
    """Return size in bytes and modification time in ns of every file below `root`, by relative path."""
    files = {}
    for path in root.rglob("*"):
        if path.is_file():
            state = path.stat()
            files[str(path.relative_to(root))] = (state.st_size, state.st_mtime_ns)
    return files


def _assert_identical(before: Mapping[str, Any], after: Mapping[str, Any]) -> None:
    """Assert that all parts are the identical objects, and that none was added or removed."""
    changed = [name for name in before if name in after and before[name] is not after[name]]
    gone, new = [name for name in before if name not in after], [name for name in after if name not in before]
    assert not changed + gone + new, f"the target differs: changed {changed}, gone {gone}, new {new}"
