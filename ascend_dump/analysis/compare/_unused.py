"""Settings of a comparison without effect on the dumps, such as mistyped names.

Names outside the selection are no mistake: one mapping and one file of rules serve for whole dumps and their parts.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase

from ascend_dump.analysis.judging.verdict import Rules
from ascend_dump.reading import Dump

__all__ = ["unused_names", "unused_rules"]


def unused_names(mapping: Mapping[str, str], paired: Collection[str], dumps: Sequence[Dump]) -> Iterator[str]:
    """Yield the reason for each mapped name that is not paired. paired: the names of actual that are."""
    unpaired = {name: partner for name, partner in mapping.items() if name not in paired}
    if not unpaired:
        return
    unknown = _unknown(unpaired, dumps[0]), _unknown(unpaired.values(), dumps[1])
    selected = [{record.op_name for record in dump} for dump in dumps]
    taken = {mapping[name]: name for name in mapping if name in paired}
    for name, partner in unpaired.items():
        if name in unknown[0]:
            yield f'mapping: "{name}" is no operator of actual'
        elif partner in unknown[1]:
            yield f'mapping: "{partner}", for "{name}" of actual, is no operator of the reference'
        elif partner in taken:
            yield f'mapping: "{name}" is not paired with "{partner}", which "{taken[partner]}" is mapped to as well'
        elif name in selected[0] and partner in selected[1]:
            yield f'mapping: "{name}" is not paired with "{partner}": no step has outputs of both'


def _unknown(names: Iterable[str], dump: Dump) -> set[str]:
    unknown = set(names)
    for record in dump.unselected():
        unknown.discard(record.op_name)
        if not unknown:
            break
    return unknown


def unused_rules(rules: Rules, dumps: Sequence[Dump]) -> Iterator[str]:
    """Yield each glob of the rules that matches no operator."""
    unused = dict.fromkeys(glob for glob, _ in rules.special)
    checked: set[str] = set()
    for dump in dumps if unused else ():
        for record in dump.unselected():
            for name in {record.op_name, record.op_type} - checked:
                checked.add(name)
                for glob in [glob for glob in unused if fnmatchcase(name, glob)]:
                    del unused[glob]
            if not unused:
                return
    for glob in unused:
        yield f'rules: no operator has a name or type that matches "{glob}"'
