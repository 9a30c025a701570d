"""The values that the rules check (subjects): a dump JSON with the verdicts on it, and GE's session options."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ascend_dump.native.cann.config import adump, ge
from ascend_dump.native.cann.config._access import text_of
from ascend_dump.native.cann.config.keys import ENABLE_DEBUG, ENABLE_DUMP, EXCEPTION_SCENES
from ascend_dump.native.cann.config.parse import Parsed, read_source
from ascend_dump.native.cann.config.situation import Situation
from ascend_dump.native.cann.graph import Node
from ascend_dump.native.rules import Example

__all__ = ["GRAPH", "AclSubject", "GeSubject", "situation_of_example"]

#: The operators of a graph, for the examples of rules.
GRAPH = (
    {"name": "x", "type": "Data"},
    {"name": "conv", "type": "Conv2D", "original_names": ["conv1", "relu1"]},
    {"name": "add", "type": "Add"},
    {"name": "if0", "type": "If"},
    {"name": "nt", "type": "Mul", "no_task": True},
    {"name": "reduce", "type": "HcomAllReduce"},
    {"name": "out", "type": "Relu"},
)


class AclSubject(NamedTuple):
    """A dump JSON with the verdicts of adump and GE on it.

    dump   its object `dump`, or an empty object
    nodes  the operators of the graph by each of their names, before and after fusion; empty if they are unknown
    """

    parsed: Parsed
    dump: Mapping[str, Any]
    verdict: adump.Verdict
    ge: ge.GeVerdict
    situation: Situation
    nodes: Mapping[str, Sequence[Node]]

    @classmethod
    def of(cls, parsed: Parsed, situation: Situation) -> AclSubject:
        """Judge a configuration by the rules of adump and GE."""
        env = situation.env
        if parsed.refusal is not None:
            verdict = adump.refused(parsed.refusal)
        else:
            verdict = adump.judge(parsed.value, env=env, cwd=situation.cwd, planned=situation.planned)
        value = parsed.value.get("dump") if isinstance(parsed.value, dict) else None
        dump = value if isinstance(value, dict) else {}
        return cls(parsed, dump, verdict, ge.judge(parsed.value, verdict, env=env), situation, situation.names())

    @classmethod
    def of_example(cls, example: Example) -> AclSubject:
        source = example.config.encode() if isinstance(example.config, str) else example.config
        return cls.of(read_source(source), situation_of_example(example))

    @property
    def overflow(self) -> bool:
        return text_of(self.dump, "dump_debug") == "on" and not self.scene

    @property
    def scene(self) -> str:
        return text_of(self.dump, "dump_scene")

    @property
    def watcher(self) -> bool:
        return self.scene == "watcher"

    @property
    def exception(self) -> bool:
        return self.scene in EXCEPTION_SCENES

    @property
    def asks(self) -> bool:
        """True if the configuration requests a dump, even if it is refused for another reason."""
        return adump.needs_dump(self.dump)

    @property
    def selects(self) -> bool:
        """True if `dump_list` selects what is dumped, which is not so for overflow and exception dumps."""
        return not self.overflow and not self.exception


class GeSubject(NamedTuple):
    """GE session options. given: all options that the user wrote; options: only those whose value is a text."""

    given: Mapping[str, Any]
    options: Mapping[str, str]
    situation: Situation

    @classmethod
    def of(cls, values: Mapping[str, Any], situation: Situation) -> GeSubject:
        texts = {name: value for name, value in values.items() if isinstance(name, str) and isinstance(value, str)}
        return cls(values, texts, situation)

    @classmethod
    def of_example(cls, example: Example) -> GeSubject:
        return cls.of(example.config, situation_of_example(example))

    @property
    def dump(self) -> bool:
        return self.options.get(ENABLE_DUMP) == "1"

    @property
    def debug(self) -> bool:
        return self.options.get(ENABLE_DEBUG) == "1"


def situation_of_example(example: Example) -> Situation:
    """Return the situation of an example. In its facts, each operator is a dictionary with fields of `Node`."""
    facts = dict(example.facts)
    operators = facts.pop("operators", None)
    if operators is not None:
        facts["operators"] = [_node(**operator) for operator in operators]
    return Situation(**facts)


def _node(name: str, type: str = "Add", original_names: Sequence[str] = (), **fields: Any) -> Node:
    return Node(name, type, (), "graph", original_names=tuple(original_names), **fields)
