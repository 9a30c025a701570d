"""Find the modules that two implementations of one network name differently, by the weights that they read.

A network that was ported has the weights of the reference under other names. Weights are read in one order mostly, so
that those with a common content, such as the zeros of a bias, are found between those with a content of their own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ascend_dump.analysis.operators.layer_names import contents_of_parameters
from ascend_dump.analysis.operators.operator import Operator, common_module
from ascend_dump.analysis.pairing.same_framework import common
from ascend_dump.analysis.pairing.weak_pairs import computes

__all__ = ["modules_of_other_names"]

#: Minimum number of weights with a content of their own that show that two programs run one network.
_FEW = 3


def modules_of_other_names(operators: Sequence[Operator], others: Sequence[Operator]) -> dict[str, str]:
    """Return the paths of modules of one program, and the paths of the modules of the other with the same weights.

    A module around such modules corresponds to the innermost module around their partners. Only modules that run
    operators are returned, and only paths that the other side does not have, so that weights that a program confused
    are not hidden.

    operators, others: the operators of the first step that both programs have
    """
    contents = contents_of_parameters(operators), contents_of_parameters(others)
    if contents[0].keys() <= contents[1].keys():
        return {}
    unique = _unique(*contents)
    if len(unique) < _FEW:
        return {}
    found = dict(_of_modules(unique, *contents, whole=False))
    names, other_names = ([*side] for side in contents)
    in_order = {names[i]: other_names[j] for i, j in common([*contents[0].values()], [*contents[1].values()])}
    taken = {*found.values()}
    for path, other in _of_modules(in_order, *contents, whole=True):
        if path not in found and other not in taken:
            found[path] = other
    found.update(_around(found))
    running = _running(operators), _running(others)
    names_of = tuple({*map(_owner, names), *paths} for names, paths in zip(contents, running))
    counts = Counter(found.values())
    return {
        path: other
        for path, other in found.items()
        if counts[other] == 1 and path in running[0] and other in running[1]
        if path not in names_of[1] and other not in names_of[0]
    }


def _running(operators: Sequence[Operator]) -> set[str]:
    """Return the paths of modules that compute in the forward pass, and of the modules around them.

    A program of a compiler runs its operators outside of the modules that own the weights.
    """
    paths = {one.module_path for one in operators if one.phase == "forward" and computes(one)}
    levels = [path.split(".") for path in paths if path]
    return {".".join(path[:count]) for path in levels for count in range(1, len(path) + 1)}


def _unique(contents: Mapping[str, Any], others: Mapping[str, Any]) -> dict[str, str]:
    """Return the names in the other program, by those in this one, of weights whose content no other weight has."""
    counts = Counter(contents.values()), Counter(others.values())
    names = {content: name for name, content in others.items() if counts[1][content] == 1}
    return {name: names[content] for name, content in contents.items() if counts[0][content] == 1 and content in names}


def _of_modules(
    weights: Mapping[str, str], contents: Mapping[str, Any], others: Mapping[str, Any], *, whole: bool
) -> Iterator[tuple[str, str]]:
    """Yield pairs of modules of which each weight of one has its partner in the other.

    weights: the names in the other program, by those in this one
    whole: all weights of both modules must have a partner; else one of them is enough
    """
    counts = Counter(map(_owner, contents)), Counter(map(_owner, others))
    pairs = Counter((_owner(name), _owner(other)) for name, other in weights.items() if _leaf(name) == _leaf(other))
    here, there = (Counter(pair[side] for pair in pairs) for side in (0, 1))
    for (path, other), count in pairs.items():
        is_whole = count == counts[0][path] == counts[1][other]
        if path and other and here[path] == there[other] == 1 and (is_whole or not whole):
            yield path, other


def _around(found: Mapping[str, str]) -> dict[str, str]:
    """Return the modules around modules that correspond, and the modules around their partners."""
    inside: dict[str, list[str]] = {}
    for path, other in found.items():
        levels = path.split(".")
        for count in range(1, len(levels)):
            inside.setdefault(".".join(levels[:count]), []).append(_owner(other))
    around = {path: common_module(others) for path, others in inside.items() if path not in found}
    return {path: other for path, other in around.items() if other}


def _owner(name: str) -> str:
    return name.rpartition(".")[0]


def _leaf(name: str) -> str:
    return name.rpartition(".")[2]
