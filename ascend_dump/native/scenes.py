"""Rules for settings of a request that have no effect in its scene, so that they are not written to configurations."""

from __future__ import annotations

from collections.abc import Iterator

from ascend_dump.native.rules import Example, Hit, RuleTable
from ascend_dump.request import DumpRequest

__all__ = ["SCENES"]


def _of_example(example: Example) -> DumpRequest:
    return DumpRequest.from_mapping(example.config)


SCENES = RuleTable(_of_example)

_SELECTIONS = ("layers", "models", "mode", "data", "stats", "level")
_DEFAULT = DumpRequest()


@SCENES.rule(
    "scene-overflow-selects",
    "AD350",
    "overflow detection checks every operator of every model and writes its inputs and outputs as tensors",
    "adump dump_config_converter, dump_setting DumpOverflowInit; GE dump_properties SetDumpDebugOptions",
    where="layers",
    trips=Example({"scene": "overflow", "layers": ["conv1"]}),
    passes=Example({"scene": "overflow", "mode": "all", "data": "tensor"}),
)
def _overflow_selects(request: DumpRequest) -> Iterator[Hit]:
    if request.scene == "overflow":
        yield from _left_out(request, _SELECTIONS, "overflow is detected in every operator, and dumped as tensors")


@SCENES.rule(
    "scene-exception-selects",
    "AD350",
    "an exception dump writes the failed operator, whatever else is requested",
    "adump dump_config_converter; GE dump_manager",
    where="steps",
    trips=Example({"scene": "exception", "steps": "0"}),
    passes=Example({"scene": "exception"}),
)
def _exception_selects(request: DumpRequest) -> Iterator[Hit]:
    if request.scene == "exception":
        yield from _left_out(request, (*_SELECTIONS, "steps"), "an exception dump writes the failed operator only")


@SCENES.rule(
    "scene-watch-mode",
    "AD350",
    "the watcher writes outputs only",
    "adump dump_config_converter CheckDumpConstraints",
    where="mode",
    trips=Example({"scene": "watch", "watch": ["a"], "mode": "input"}),
    passes=Example({"scene": "watch", "watch": ["a"], "mode": "output"}),
)
def _watch_mode(request: DumpRequest) -> Iterator[Hit]:
    if request.scene == "watch" and request.mode == "input":
        message = "mode='input' becomes 'output': the watcher writes the watched outputs"
        yield Hit("mode", message, "leave mode= out, or use mode='output'")


def _left_out(request: DumpRequest, names: tuple[str, ...], why: str) -> Iterator[Hit]:
    for name in names:
        value = getattr(request, name)
        if value != getattr(_DEFAULT, name):
            shown = list(value) if isinstance(value, tuple) else value if isinstance(value, str) else str(value)
            yield Hit(name, f"{name}={shown!r} does nothing with scene={request.scene!r}: {why}", "leave it out")
