"""The hooks into the loops of the Estimator in the stand-in for TensorFlow."""

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
        """The loop ends after this run."""
        self.stop_requested = True


class SessionRunHook:
    """What a program may hang into the loop."""

    def begin(self) -> None:
        """Before the graph is finalised."""

    def after_create_session(self, session: Any, coord: Any) -> None:
        """Once, before the first run."""

    def before_run(self, run_context: Any) -> Any:
        """Before each run; may ask for more with SessionRunArgs."""

    def after_run(self, run_context: Any, run_values: Any) -> None:
        """After each run."""

    def end(self, session: Any) -> None:
        """At the end of the loop."""


def run_with_hooks(session: Any, fetches: Any, hooks: Iterable[Any]) -> tuple[Any, bool]:
    """The values, and whether a hook asks to stop. Raises RuntimeError where two hooks feed one tensor."""
    context = SessionRunContext(SessionRunArgs(fetches), session)
    asked = [(hook, hook.before_run(context)) for hook in hooks]
    more = {str(at): args.fetches for at, (_, args) in enumerate(asked) if args is not None}
    feed: dict[Any, Any] = {}
    for _, args in asked:
        own = {} if args is None else dict(args.feed_dict or {})
        if any(key is other for key in own for other in feed):
            raise RuntimeError("Same tensor is fed by two hooks.")
        feed.update(own)
    found = session.run({"own": fetches, "hooks": more}, feed)
    for at, (hook, _) in enumerate(asked):
        hook.after_run(context, SessionRunValues(found["hooks"].get(str(at))))
    return found["own"], context.stop_requested
