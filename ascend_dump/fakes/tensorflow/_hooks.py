"""Hooks: objects whose methods the loops of the fake Estimator call (`tf.train.SessionRunHook`)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

__all__ = ["SessionRunArgs", "SessionRunHook", "run_with_hooks"]


class SessionRunArgs(NamedTuple):
    fetches: Any
    feed_dict: Any = None
    options: Any = None


class SessionRunValues(NamedTuple):
    results: Any
    options: Any = None
    run_metadata: Any = None


class SessionRunContext:
    def __init__(self, original_args: SessionRunArgs, session: Any) -> None:
        self.original_args = original_args
        self.session = session
        self.stop_requested = False

    def request_stop(self) -> None:
        """Let the loop end after this run."""
        self.stop_requested = True


class SessionRunHook:
    """`tf.train.SessionRunHook`: the base of hooks, whose methods subclasses override."""

    def begin(self) -> None:
        """Do nothing: called before the graph is finalised."""

    def after_create_session(self, session: Any, coord: Any) -> None:
        """Do nothing: called once, before the first run."""

    def before_run(self, run_context: Any) -> Any:
        """Do nothing: called before each run. A subclass may return SessionRunArgs with more fetches and feeds."""

    def after_run(self, run_context: Any, run_values: Any) -> None:
        """Do nothing: called after each run, with the values of the hook's fetches."""

    def end(self, session: Any) -> None:
        """Do nothing: called at the end of the loop."""


def run_with_hooks(session: Any, fetches: Any, hooks: Iterable[Any]) -> tuple[Any, bool]:
    """Run a session once with hooks; return the values of `fetches`, and True if a hook requested a stop.

    Raises RuntimeError if two hooks feed the same tensor.
    """
    context = SessionRunContext(SessionRunArgs(fetches), session)
    requests = [(hook, hook.before_run(context)) for hook in hooks]
    hook_fetches = {str(number): args.fetches for number, (_, args) in enumerate(requests) if args is not None}
    feed: dict[Any, Any] = {}
    for _, args in requests:
        hook_feed = {} if args is None else dict(args.feed_dict or {})
        if any(key is fed for key in hook_feed for fed in feed):
            raise RuntimeError("Same tensor is fed by two hooks.")
        feed.update(hook_feed)
    results = session.run({"loop": fetches, "hooks": hook_fetches}, feed)
    for number, (hook, _) in enumerate(requests):
        hook.after_run(context, SessionRunValues(results["hooks"].get(str(number))))
    return results["loop"], context.stop_requested
