"""The types of `capture`'s target and keywords, for type checkers only: no program loads this module."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from types import CodeType
from typing import Any, Optional, Protocol, TypeVar, Union

from typing_extensions import ParamSpec, TypedDict

from ascend_dump.request import Data, FrameworkName, Level, Mode, Scene, Until
from ascend_dump.steps import StepsLike

__all__ = ["CaptureSettings", "Function", "Untyped"]

_P = ParamSpec("_P")
_R = TypeVar("_R", covariant=True)


class Function(Protocol[_P, _R]):
    """A plain function or method. A model does not match, because it can be called but has no `__code__`."""

    @property
    def __code__(self) -> CodeType: ...

    def __call__(self, *args: _P.args, **kwargs: _P.kwargs) -> _R: ...


class Untyped:
    """The type of the target in the first overload of `capture`. No object of this class is ever created.

    To a type checker, an object whose class has an untyped base class matches the target of every overload. It
    takes the first overload, so the result is a Capture. Other objects do not match this class.
    """


class CaptureSettings(TypedDict, total=False):
    """The keywords of `capture`: the parameters of `DumpRequest`, and `framework` and `graft`.

    Type checkers cannot derive them from `DumpRequest`; a test compares both.
    """

    path: Union[str, os.PathLike[str]]
    steps: StepsLike
    mode: Mode
    layers: Union[str, Iterable[str]]
    models: Union[str, Iterable[str]]
    data: Data
    stats: Union[str, Iterable[str]]
    level: Level
    scene: Optional[Scene]
    watch: Union[str, Iterable[str]]
    quant: bool
    ranks: StepsLike
    framework: Optional[FrameworkName]
    max_bytes: Union[int, str, None]
    keep: Union[int, str, None]
    until: Optional[Until]
    graft: Optional[Mapping[str, Any]]
    ignore: Union[str, Iterable[str]]
    label: Optional[str]
    quiet: bool
    strict: bool
    options: Optional[Mapping[str, Any]]
