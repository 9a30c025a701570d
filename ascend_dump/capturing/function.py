"""`capture`: creates a Capture from its target and from a DumpRequest made of its keyword arguments."""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Optional, TypeVar, overload

from ascend_dump.capturing.capture import Capture
from ascend_dump.request import SPELLINGS, DumpRequest, FrameworkName, unknown_name

if TYPE_CHECKING:
    from typing_extensions import ParamSpec, Unpack

    from ascend_dump.capturing._types import CaptureSettings, Function, Untyped
    from ascend_dump.capturing.capture import Decorated

    _P = ParamSpec("_P")
    _R = TypeVar("_R", covariant=True)

__all__ = ["capture"]


@overload
def capture(target: Optional[Untyped] = None, **settings: Unpack[CaptureSettings]) -> Capture: ...
@overload
def capture(target: Function[_P, _R], **settings: Unpack[CaptureSettings]) -> Decorated[_P, _R]: ...
@overload
def capture(target: Any, **settings: Unpack[CaptureSettings]) -> Capture: ...
def capture(
    target: Any = None,
    *,
    framework: Optional[FrameworkName] = None,
    graft: Optional[Mapping[str, Any]] = None,
    **settings: Any,
) -> Any:
    """Dump the operators of `target` while the returned object is active.

    target     a model: each top-level call of it is a step; a function: it is decorated, and each call is a step; None:
               everything in the block is recorded as step 0, until `step()` begins the next step
    framework  name of the adapter to use; by default it is chosen by the type of the target
    graft      replace tensors in recorded steps by tensors of another dump. A mapping from the name of a tensor to the
               path of a dump: {"layers.3/addmm_0.output.0": "reference"}. Differences that disappear then were caused
               by that tensor. An input is replaced for that operator only. Only for framework="torch", on any device

    All other settings are the fields of `DumpRequest`.

    Raises ConfigError for a wrong value, AdapterNotFound when no adapter can capture the target.

    >>> with ascend_dump.capture(model, steps="0|1", path="dumps") as cap:   # doctest: +SKIP
    ...     train(model)
    >>> cap.dump().select(op="*conv1*")   # doctest: +SKIP
    """
    for name in settings:
        if name not in SPELLINGS:
            raise unknown_name(name)
    if graft is not None:
        settings["options"] = {**(settings.get("options") or {}), "graft": _paths_of(graft)}
    request = DumpRequest(**settings)
    if inspect.isclass(target):
        from ascend_dump.capturing._decorator import refuse_class

        raise refuse_class(target)
    if inspect.isroutine(target) or isinstance(target, functools.partial):
        return Capture(None, request, framework=framework)(target)
    return Capture(target, request, framework=framework)


def _signature() -> inspect.Signature:
    """Return the signature of `capture` with `**settings` replaced by the parameters of `DumpRequest`."""
    target, *others, _ = inspect.signature(capture).parameters.values()
    return inspect.Signature([target, *inspect.signature(DumpRequest).parameters.values(), *others])


# Shown by `help` and by completion in a shell; type checkers read `CaptureSettings`.
vars(capture)["__signature__"] = _signature()


def _paths_of(graft: Any) -> Any:
    """Return the mapping with each dump replaced by its path as text, since settings contain only plain values."""
    if not isinstance(graft, Mapping):
        return graft
    paths = {}
    for name, dump in graft.items():
        path = dump if isinstance(dump, (str, os.PathLike)) else getattr(dump, "root", dump)
        # The adapter refuses values that are not dumps.
        paths[name] = os.fspath(path) if isinstance(path, (str, os.PathLike)) else path
    return paths
