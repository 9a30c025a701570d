"""Intercept runs of graphs: `BaseSession.run`, and callables that programs and Keras create from a session."""

from __future__ import annotations

import functools
from typing import Any, Callable, Protocol

from ascend_dump_tensorflow._hook import session_class

__all__ = ["RunRecorder", "can_replace_runs", "replace_runs"]

_Run = Callable[..., Any]
_NAMES = ("run", "make_callable", "_make_callable_from_options")


class RunRecorder(Protocol):
    """An object through which the runs of captured sessions go."""

    def claims(self, session: Any) -> bool:
        """Return True if the next run of the session has to go through `run`. Called before every run."""

    def run(self, session: Any, plain: _Run, fetches: Any, feeds: Any, options: Any, metadata: Any) -> Any:
        """Do what `BaseSession.run` does, with or without recording. plain: the original method of the session."""


def can_replace_runs() -> bool:
    """Return True if sessions of this TensorFlow have all methods that have to be replaced."""
    where = session_class()
    return all(hasattr(where, name) for name in _NAMES)


def replace_runs(recorder: RunRecorder) -> Callable[[], None]:
    """Make the runs of claimed sessions go through the recorder. Returns a function that ends this."""
    where = session_class()
    before = {name: getattr(where, name) for name in _NAMES}
    run_before, callable_before = before["run"], before["_make_callable_from_options"]

    @functools.wraps(run_before)
    def run(self: Any, fetches: Any, feed_dict: Any = None, options: Any = None, run_metadata: Any = None) -> Any:
        if not recorder.claims(self):
            return run_before(self, fetches, feed_dict, options, run_metadata)
        return recorder.run(self, functools.partial(run_before, self), fetches, feed_dict, options, run_metadata)

    @functools.wraps(before["make_callable"])
    def make_callable(self: Any, fetches: Any, feed_list: Any = None, accept_options: bool = False) -> Any:
        plain = before["make_callable"](self, fetches, feed_list, accept_options)
        # With a list of feeds the callable calls `run`, which is replaced already.
        if feed_list is not None:
            return plain

        def call(**options: Any) -> Any:
            return self.run(fetches, **options) if recorder.claims(self) else plain(**options)

        return call

    @functools.wraps(callable_before)
    def make_callable_from_options(self: Any, callable_options: Any) -> Any:
        plain = callable_before(self, callable_options)
        # Not replaced: `run` cannot feed a tensor with a fetch of the same run, as tensor_connection does.
        if callable_options.tensor_connection:
            return plain
        return _Callable(recorder, self, plain, functools.partial(run_before, self), callable_options)

    after = dict(zip(_NAMES, (run, make_callable, make_callable_from_options)))
    for name, function in after.items():
        setattr(where, name, function)

    def restore() -> None:
        # Not if another library has wrapped the method in the meantime.
        for name, function in after.items():
            if where.__dict__.get(name) is function:
                setattr(where, name, before[name])

    return restore


class _Callable:
    """A callable of a session. A recorded call uses `run`, because the callable's C++ code supports no debugger."""

    def __init__(self, recorder: RunRecorder, session: Any, plain: Any, run: _Run, options: Any) -> None:
        self._recorder = recorder
        self._session = session
        self._plain = plain
        self._run = run
        self._fetches = list(options.fetch)
        self._targets = list(options.target)
        self._feeds = list(options.feed)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not self._recorder.claims(self._session):
            return self._plain(*args, **kwargs)

        def plain(fetches: Any, feeds: Any, options: Any, metadata: Any) -> Any:
            if options is None:
                return [self._plain(*args, **kwargs)]
            return self._run(fetches, feeds, options, metadata)

        results = self._recorder.run(
            self._session,
            plain,
            [self._fetches, self._targets],
            dict(zip(self._feeds, args)),
            None,
            kwargs.get("run_metadata"),
        )
        return results[0]
