"""Simulated graph engines that violate an assumption: for each probe, what they do instead."""

from __future__ import annotations

import os
from typing import Any, Callable

import pytest

# Private: a probe that has to refute needs an engine that is otherwise, which no user has.
from ascend_dump.fakes.device import _arming, _model, _service
from ascend_dump.fakes.device.npu import Npu
from ascend_dump.fakes.torchair._engine import TorchairEngine
from ascend_dump.native.cann.config import keys

__all__ = ["OTHER_ENGINES", "PatchEngine", "counted_by_graph", "steps_read_strictly", "unchecked_steps"]

_Change = Callable[[dict[str, str]], dict[str, str]]
PatchEngine = Callable[[pytest.MonkeyPatch], None]


def with_check(change: _Change) -> PatchEngine:
    """GE checks these options instead of the given options."""
    real = _arming.check_ge_options

    def otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(
            _arming, "check_ge_options", lambda options, situation: real(change(dict(options)), situation=situation)
        )

    return otherwise


def with_options(change: _Change) -> PatchEngine:
    """GE uses these options instead of the given options."""
    real = _arming.read_options

    def otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(
            "ascend_dump.fakes.device.npu.read_options",
            lambda options, **others: real(change(dict(options)), **others),
        )

    return otherwise


def options_first(monkeypatch: pytest.MonkeyPatch) -> None:
    real = Npu.load_model

    def load_model(self: Npu, name: str, **others: Any) -> int:
        if self._ge:
            self._acl = None
        return real(self, name, **others)

    monkeypatch.setattr(Npu, "load_model", load_model)


def watches_all_shapes(monkeypatch: pytest.MonkeyPatch) -> None:
    real = _model.LoadedModel.__init__

    def init(self: Any, *arguments: Any, static_shape: bool, **others: Any) -> None:
        real(self, *arguments, static_shape=True, **others)

    monkeypatch.setattr(_model.LoadedModel, "__init__", init)


def watches_collectives(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_model, "_COLLECTIVE", "none")


def several_modes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_arming, "_ONE_DEBUG_MODE", ("Ascend950",))


def followed(options: dict[str, str]) -> dict[str, str]:
    return {**options, keys.DUMP_PATH: os.path.realpath(options[keys.DUMP_PATH])} if keys.DUMP_PATH in options else {}


def guessed(options: dict[str, str]) -> dict[str, str]:
    if options.get(keys.ENABLE_DEBUG) == "1":
        options.setdefault(keys.DEBUG_MODE, "all")
    return options


def nearest_kind(options: dict[str, str]) -> dict[str, str]:
    return {**options, keys.DUMP_DATA: "stats"}


def checked_kind(options: dict[str, str]) -> dict[str, str]:
    return {**options, keys.DUMP_MODE: "none"} if options.get(keys.DUMP_DATA) == "statistics" else options


def single_steps(options: dict[str, str]) -> dict[str, str]:
    return {**options, keys.DUMP_STEP: "5"} if options.get(keys.DUMP_STEP) == "5-5" else options


def without_steps(options: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in options.items() if name != keys.DUMP_STEP}


def counted_by_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    """Saved tensors are counted anew for each graph."""
    real = TorchairEngine.next_graph

    def next_graph(self: Any) -> str:
        self._saved.clear()
        return real(self)

    monkeypatch.setattr(TorchairEngine, "next_graph", next_graph)


def steps_read_strictly(monkeypatch: pytest.MonkeyPatch) -> None:
    real = _model.parse_steps
    monkeypatch.setattr(_model, "parse_steps", lambda text: [each for each in real(text) or () if text != "3-1"])


#: GE does not look at steps.
unchecked_steps = with_check(without_steps)


def as_any_other_operator(monkeypatch: pytest.MonkeyPatch) -> None:
    """A conversion that overflows has no status bit of its own."""
    monkeypatch.setattr(_service, "_converts_to_half", lambda call: False)


OTHER_ENGINES: list[tuple[str, PatchEngine]] = [
    ("acl_outranks_options", options_first),
    ("data_unchecked", with_options(nearest_kind)),
    ("data_unchecked", with_check(checked_kind)),
    ("debug_without_mode", with_options(guessed)),
    ("overflow_modes", several_modes),
    ("overflow_of_conversion", as_any_other_operator),
    ("step_range", with_check(single_steps)),
    ("symlink", with_check(followed)),
    ("watch_collective", watches_collectives),
    ("watch_static", watches_all_shapes),
]
