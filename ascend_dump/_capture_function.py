"""`capture`: the one call that all three ways begin with. It makes a request of its keywords and a capture of both."""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Optional, TypeVar, Union, overload

from ascend_dump._capture import Capture
from ascend_dump._request import Data, DumpRequest, FrameworkName, Level, Mode, Scene, Until, unknown_name
from ascend_dump._steps import StepsLike

if TYPE_CHECKING:
    from typing_extensions import ParamSpec, Unpack

    from ascend_dump._capture import Decorated
    from ascend_dump._capture_types import CaptureSettings, Function, Untyped

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
    path: Union[str, os.PathLike[str]] = "dumps",
    steps: StepsLike = None,
    mode: Mode = "all",
    layers: Union[str, Iterable[str]] = (),
    models: Union[str, Iterable[str]] = (),
    data: Data = "tensor",
    stats: Union[str, Iterable[str]] = (),
    level: Level = "all",
    scene: Optional[Scene] = None,
    watch: Union[str, Iterable[str]] = (),
    quant: bool = False,
    ranks: StepsLike = None,
    framework: Optional[FrameworkName] = None,
    max_bytes: Union[int, str, None] = None,
    keep: Union[int, str, None] = None,
    until: Optional[Until] = None,
    graft: Optional[Mapping[str, Any]] = None,
    quiet: bool = False,
    strict: bool = False,
    options: Optional[Mapping[str, Any]] = None,
    **unknown: Any,
) -> Any:
    """Dump the operators of `target` while the returned object is active.

    target: a model (each top-level call of it is a step), or None: the whole block is step 0
    until `step()` is called. A function given as target is decorated: each call is a step.
    The settings are those of `DumpRequest`; framework names an adapter, otherwise the target
    decides. strict=True raises where the default is to report once and let the run go on.
    graft replaces outputs or inputs of operators by what another dump recorded of them, in the steps
    that are recorded: {"layers.3/addmm_0.output.0": "reference"}. What differs later and is gone then
    comes from there. An input is replaced for that operator only. For PyTorch's own operators, on any
    device (framework="torch").

    Raises ConfigError for a wrong value, AdapterNotFound when nothing captures the target.

    >>> with ascend_dump.capture(model, steps="0|1", path="dumps") as cap:   # doctest: +SKIP
    ...     train(model)
    >>> cap.dump().select(op="*conv1*")   # doctest: +SKIP
    """
    if unknown:
        raise unknown_name(next(iter(unknown)))
    request = DumpRequest(
        path=path,
        steps=steps,
        mode=mode,
        layers=layers,
        models=models,
        data=data,
        stats=stats,
        level=level,
        scene=scene,
        watch=watch,
        quant=quant,
        ranks=ranks,
        max_bytes=max_bytes,
        keep=keep,
        until=until,
        quiet=quiet,
        options=options if graft is None else {**(options or {}), "graft": _paths_of(graft)},
    )
    if inspect.isclass(target):
        from ascend_dump._decorator import refuse_class

        raise refuse_class(target)
    if inspect.isroutine(target) or isinstance(target, functools.partial):
        return Capture(None, request, framework=framework, strict=strict)(target)
    return Capture(target, request, framework=framework, strict=strict)


def _paths_of(graft: Any) -> Any:
    """The same with the paths of dumps as text, which settings can carry."""
    if not isinstance(graft, Mapping):
        return graft
    found = {}
    for name, dump in graft.items():
        path = dump if isinstance(dump, (str, os.PathLike)) else getattr(dump, "root", dump)
        # What is no dump is refused by the adapter.
        found[name] = os.fspath(path) if isinstance(path, (str, os.PathLike)) else path
    return found
