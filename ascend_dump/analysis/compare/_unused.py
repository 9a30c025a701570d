"""Settings of a comparison that nothing in the dumps fits, such as mistyped names.

What was not selected is no mistake: one mapping and one file of rules serve for whole dumps and for parts of them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase

from ascend_dump.analysis.judging.verdict import Rules
from ascend_dump.reading import Dump

__all__ = ["unused_names", "unused_rules"]


def unused_names(mapping: Mapping[str, str], paired: Collection[str], dumps: Sequence[Dump]) -> Iterator[str]:
    """Of each name that is mapped, and paired in no step, why. paired: the names of actual that were."""
    left = {name: other for name, other in mapping.items() if name not in paired}
    if not left:
        return
    unknown = _unknown(left, dumps[0]), _unknown(left.values(), dumps[1])
    selected = [{record.op_name for record in dump} for dump in dumps]
    taken = {mapping[name]: name for name in mapping if name in paired}
    for name, other in left.items():
        if name in unknown[0]:
            yield f'mapping: "{name}" is no operator of actual'
        elif other in unknown[1]:
            yield f'mapping: "{other}", for "{name}" of actual, is no operator of the reference'
        elif other in taken:
            yield f'mapping: "{name}" is not paired with "{other}", which "{taken[other]}" is mapped to as well'
        elif name in selected[0] and other in selected[1]:
            yield f'mapping: "{name}" is not paired with "{other}": no step has outputs of both'


def _unknown(names: Iterable[str], dump: Dump) -> set[str]:
    left = set(names)
    for record in dump.unselected():
        left.discard(record.op_name)
        if not left:
            break
    return left


def unused_rules(rules: Rules, dumps: Sequence[Dump]) -> Iterator[str]:
    """Of each glob with rules of its own, if no operator matches it."""
    left = dict.fromkeys(glob for glob, _ in rules.special)
    seen: set[str] = set()
    for dump in dumps if left else ():
        for record in dump.unselected():
            for name in {record.op_name, record.op_type} - seen:
                seen.add(name)
                for glob in [glob for glob in left if fnmatchcase(name, glob)]:
                    del left[glob]
            if not left:
                return
    for glob in left:
        yield f'rules: no operator has a name or type that matches "{glob}"'
