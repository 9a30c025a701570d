"""Detect features of a program that MindSpore's dump does not support, by inspecting its objects."""

from __future__ import annotations

import functools
import logging
import os
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any, Callable, Optional

from ascend_dump.native.mindspore.config.check import RULES, DumpJson, Known
from ascend_dump.native.mindspore.config.dump_json import read_text
from ascend_dump_mindspore._complex import has_complex_parameters
from ascend_dump_mindspore._runtime import cell_of, context, current_runtime, device_id, is_pynative

__all__ = ["SinkWatch", "known_of"]

log = logging.getLogger("ascend_dump")

_SINK_RULES = ("mindspore-o2-sink-size", "mindspore-gpu-sink")


def known_of(target: Any, mindspore: ModuleType, *, mode_is_chosen: bool) -> Known:
    """Return facts about the program in this process, for the rules of the check.

    mode_is_chosen: True if the program's mode (graph or PyNative) is final
    """
    cell = cell_of(target)
    primitives = list(_primitives(cell))
    # Only on Ascend, because on other devices MindSpore logs a warning even if the setting is only read.
    ascend = context(mindspore, "ascend_config") if current_runtime(mindspore).device == "Ascend" else None
    return Known(
        env=os.environ,
        pynative=is_pynative(mindspore) if mode_is_chosen else None,
        complex=has_complex_parameters(cell),
        device_id=device_id(),
        heterogeneous=any("primitive_target" in (getattr(primitive, "attrs", None) or {}) for primitive in primitives)
        or None,
        prints=any(getattr(primitive, "name", None) == "Print" for primitive in primitives) or None,
        exception_dump=str(ascend["exception_dump"])
        if isinstance(ascend, dict) and "exception_dump" in ascend
        else None,
    )


def _primitives(cell: Any) -> Iterator[Any]:
    """Yield the operators that are attributes of a Cell or of a Cell inside it, without those called as functions."""
    walk = getattr(cell, "cells_and_names", None)
    for _, inner in walk() if callable(walk) else ():
        primitives = getattr(inner, "_primitives", None)
        yield from primitives.values() if isinstance(primitives, dict) else ()


class SinkWatch:
    """Warns once if `Model.train` is called with a data sink mode that cannot be dumped, until `remove()`.

    It is only a warning, because the sink mode is known only when training begins, too late to refuse the capture.
    """

    def __init__(self, mindspore: ModuleType, config: bytes) -> None:
        self._runtime = current_runtime(mindspore)
        self._config = config
        self._is_reported = False
        self._replaced: Optional[tuple[Any, Any, Any]] = None
        owner = getattr(sys.modules.get("mindspore.train"), "Model", None)
        original = owner.__dict__.get("train") if isinstance(owner, type) else None
        if callable(original) and (self._runtime.device == "GPU" or self._runtime.ge):
            watching = self._watching(original)
            setattr(owner, "train", watching)  # noqa: B010  (mypy would refuse a plain assignment)
            self._replaced = (owner, original, watching)

    def remove(self) -> None:
        if self._replaced is not None:
            owner, original, watching = self._replaced
            self._replaced = None
            # Not if something else has wrapped our wrapper in the meantime; then ours does nothing.
            if owner.__dict__.get("train") is watching:
                owner.train = original

    def _watching(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def train(
            model: Any,
            epoch: Any,
            train_dataset: Any,
            callbacks: Any = None,
            dataset_sink_mode: Any = False,
            sink_size: Any = -1,
            *arguments: Any,
            **settings: Any,
        ) -> Any:
            if self._replaced is not None and dataset_sink_mode and not self._is_reported:
                self._warn(sink_size)
            return original(
                model, epoch, train_dataset, callbacks, dataset_sink_mode, sink_size, *arguments, **settings
            )

        return train

    def _warn(self, sink_size: Any) -> None:
        facts = Known(sink=True, sink_size=sink_size if isinstance(sink_size, int) else None)
        subject = DumpJson(read_text(self._config, runtime=self._runtime), self._runtime, facts)
        for name in _SINK_RULES:
            for problem in RULES[name].problems(subject):
                log.warning("%s", problem)
                self._is_reported = True
