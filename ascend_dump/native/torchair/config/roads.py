"""Rules for settings of a request that are ignored, depending on the way in which torchair dumps (`road`).

There are four ways. With "options" (of dump_config) and with "json" (a dump JSON), GE writes the dump. With "aclgraph"
(the modes of this name) and "eager" (the eager dumper), torchair itself saves all tensors at every execution. Sources:
torchair 2.13, configs/dump_config.py, _acl_concrete_graph/utils.py and fx_dumper.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import NamedTuple

from ascend_dump.native.rules import Example, Hit, RuleTable
from ascend_dump.request import DumpRequest

__all__ = ["READ_BY", "ROADS", "RoadSubject"]

#: Options of a request that are read only in some ways of dumping, with these ways.
READ_BY: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "json": ("json",),
        "filter": ("eager",),
        "data_dump_stage": ("aclgraph",),
        "graph": ("options", "json"),
    }
)
#: Options passed to torch.compile, if the capture compiles the module.
_OF_COMPILE = ("dynamic", "fullgraph")
_WAYS = {
    "options": "by the options of dump_config",
    "json": "by a dump JSON",
    "aclgraph": "by an aclgraph mode",
    "eager": "by the eager dumper",
}


class RoadSubject(NamedTuple):
    """A request and the way of dumping.

    road      "options", "json", "aclgraph", "eager", or "" if no dump is possible
    compiles  True if the capture compiles the model, False if the program does
    """

    request: DumpRequest
    road: str
    compiles: bool = True

    @classmethod
    def of_example(cls, example: Example) -> RoadSubject:
        return cls(DumpRequest.from_mapping(example.config), **example.facts)

    @property
    def options(self) -> list[str]:
        """The names of the request's options that are set."""
        return sorted(name for name, value in self.request.options.items() if value not in (None, False))


ROADS = RuleTable(RoadSubject.of_example)

_SILENTLY = "leave it out and select when reading, or use the mode max-autotune without eager"


def _on(road: str, **request: object) -> Example:
    return Example(request).given(road=road)


@ROADS.rule(
    "torchair-aclgraph-selects",
    "AD249",
    "the aclgraph modes save the outputs of all nodes at every execution",
    "torchair configs/dump_config.py, _acl_concrete_graph/utils.py",
    where="steps",
    trips=_on("aclgraph", steps="0", mode="output"),
    passes=_on("aclgraph", mode="output"),
)
def _aclgraph_selects(subject: RoadSubject) -> Iterator[Hit]:
    request = subject.request
    if subject.road == "aclgraph":
        selections = {**_selections(request), "layers": " ".join(request.layers)}
        selections["mode"] = "input" if request.mode == "input" else ""
        yield from _ignored(selections, "the aclgraph modes ignore it: every execution saves all tensors")


@ROADS.rule(
    "torchair-aclgraph-inputs",
    "AD249",
    "the aclgraph modes save the inputs of the graph, not the inputs of operators",
    "torchair _acl_concrete_graph/utils.py",
    severity="warning",
    where="mode",
    trips=_on("aclgraph"),
    passes=_on("aclgraph", mode="output"),
)
def _aclgraph_inputs(subject: RoadSubject) -> Iterator[Hit]:
    if subject.road == "aclgraph" and subject.request.mode == "all":
        message = "the aclgraph modes save outputs and the inputs of the graph, not the inputs of each operator"
        yield Hit("mode", message, "use mode='output' to confirm it")


@ROADS.rule(
    "torchair-aclgraph-numbers",
    "AD249",
    "the files of the aclgraph modes are numbered by name, in all graphs of the process together",
    "torch_npu npu/graphs.py save_npugraph_tensor",
    severity="warning",
    where="steps",
    trips=_on("aclgraph", mode="output"),
    passes=_on("eager"),
)
def _aclgraph_numbers(subject: RoadSubject) -> Iterator[Hit]:
    if subject.road == "aclgraph":
        message = (
            "files are numbered by name, in all graphs together: if several graphs run (training, graph breaks, "
            "other shapes), the numbers are not steps"
        )
        yield Hit("steps", message, "run one graph in the block, such as inference of one shape")


@ROADS.rule(
    "torchair-eager-selects",
    "AD251",
    "the eager dumper saves inputs and outputs of all calls at every execution",
    "torchair fx_dumper.py",
    where="steps",
    trips=_on("eager", steps="0"),
    passes=_on("eager", layers=["relu"]),
)
def _eager_selects(subject: RoadSubject) -> Iterator[Hit]:
    request = subject.request
    if subject.road == "eager":
        selections = {**_selections(request), "mode": "" if request.mode == "all" else request.mode}
        yield from _ignored(selections, "the eager dumper ignores it: every execution saves all tensors")


def _selections(request: DumpRequest) -> dict[str, str]:
    """Return the selections of a request as texts by name. The text of a default value is empty."""
    return {
        "steps": "" if request.steps.all else str(request.steps),
        "data": "" if request.data == "tensor" else request.data,
        "stats": " ".join(request.stats),
        "models": " ".join(request.models),
        "level": "" if request.level == "all" else request.level,
        "quant": "True" if request.quant else "",
    }


def _ignored(selections: Mapping[str, str], why: str) -> Iterator[Hit]:
    for name, value in selections.items():
        if value:
            yield Hit(name, f"{name}={value!r}: {why}", _SILENTLY)


@ROADS.rule(
    "torchair-option-unread",
    "AD255",
    "some options of a request are read in one way of dumping only",
    "native/torchair/config/build.py OPTIONS",
    where="options",
    trips=_on("options", options={"data_dump_stage": "original"}),
    passes=_on("aclgraph", mode="output", options={"data_dump_stage": "original"}),
)
def _unread(subject: RoadSubject) -> Iterator[Hit]:
    for name in subject.options:
        if subject.road and subject.road not in READ_BY.get(name, (subject.road,)):
            yield _changes_nothing(name, f"the dump is set {_WAYS[subject.road]}, and this ignores it")


@ROADS.rule(
    "torchair-option-of-compile",
    "AD255",
    "if the program compiles by itself, it also sets the options of torch.compile",
    "native/torchair/config/build.py OPTIONS",
    where="options",
    trips=_on("options", options={"dynamic": True}).given(compiles=False),
    passes=_on("options", options={"dynamic": True}),
)
def _of_compile(subject: RoadSubject) -> Iterator[Hit]:
    for name in () if subject.compiles else subject.options:
        if name in _OF_COMPILE:
            yield _changes_nothing(name, "the program compiles by itself")


def _changes_nothing(name: str, why: str) -> Hit:
    return Hit("options", f"options[{name!r}] changes nothing: {why}", "leave it out")


@ROADS.rule(
    "torchair-every-step",
    "AD115",
    "GE counts executions from 0 and writes each of them",
    "GE dump_properties",
    severity="warning",
    where="steps",
    trips=_on("options"),
    passes=_on("options", steps="0"),
)
def _every_step(subject: RoadSubject) -> Iterator[Hit]:
    if subject.request.scene in (None, "watch") and subject.request.steps.all:
        message = "each execution of a graph adds data to the dump"
        yield Hit("steps", message, "run few steps inside the block, or set steps=")
