"""Find the modules and weights that two implementations of one network name differently, by the weights they read.

A network that was ported has the weights of the reference under other names. Weights are read in one order mostly, so
that those with a common content, such as the zeros of a bias, are paired between those with a content of their own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from ascend_dump.analysis.operators.layer_names import contents_of_parameters
from ascend_dump.analysis.operators.operator import Operator, common_module
from ascend_dump.analysis.pairing.sequences import common
from ascend_dump.analysis.pairing.weak_pairs import computes

__all__ = ["other_names"]

#: Minimum number of weights with a content of their own that show that two programs run one network.
_FEW = 3
#: The contents of parameters by their names.
_Weights = Mapping[str, Any]


def other_names(reference: Sequence[Operator], actual: Sequence[Operator]) -> dict[str, str]:
    """Return the paths in actual of modules and weights, by the paths of the reference.

    Only paths that the other side does not have are returned, so that weights that a program confused are not hidden.

    reference, actual: the operators of the first step that both programs have
    """
    weights = contents_of_parameters(reference), contents_of_parameters(actual)
    if weights[0].keys() <= weights[1].keys():
        return {}
    unique = _unique_weights(*weights)
    if len(unique) < _FEW:
        return {}
    names = {**unique, **_common_weights(unique, *weights)}
    of_weights = {
        name: partner for name, partner in names.items() if name not in weights[1] and partner not in weights[0]
    }
    return {**of_weights, **_modules(unique, weights, (reference, actual))}


def _modules(
    unique: Mapping[str, str], weights: tuple[_Weights, _Weights], sides: tuple[Sequence[Operator], Sequence[Operator]]
) -> dict[str, str]:
    """Return the paths in actual of modules that run operators, by the paths of modules of the reference.

    A module around such modules corresponds to the innermost module around their partners.
    """
    partners = dict(_module_pairs(unique, *weights, all_weights=False))
    names, names_in_actual = ([*contents] for contents in weights)
    order = common([*weights[0].values()], [*weights[1].values()])
    in_order = {names[i]: names_in_actual[j] for i, j in order}
    for path, partner in [*_module_pairs(in_order, *weights, all_weights=True)]:
        if path not in partners and partner not in partners.values():
            partners[path] = partner
    partners.update(_outer_modules(partners))
    running = tuple(map(_running_modules, sides))
    paths = tuple({*map(_module_of_parameter, contents), *modules} for contents, modules in zip(weights, running))
    counts = Counter(partners.values())
    return {
        path: partner
        for path, partner in partners.items()
        if counts[partner] == 1 and path in running[0] - paths[1] and partner in running[1] - paths[0]
    }


def _common_weights(unique: Mapping[str, str], reference: _Weights, actual: _Weights) -> dict[str, str]:
    """Return the names in actual, by those in the reference, of weights whose content other weights have, too.

    Both programs read equally many weights of this content after the same weight with a content of its own.
    """
    ends = {partner: name for name, partner in unique.items()}
    groups = _read_after(unique, reference), _read_after(ends, actual)
    names: dict[str, str] = {}
    for (before, content), group in groups[0].items():
        partners = groups[1].get((unique.get(before, ""), content), [])
        if len(partners) == len(group):
            names.update(zip(group, partners))
    return names


def _read_after(unique: Collection[str], weights: _Weights) -> dict[tuple[str, Any], list[str]]:
    """Return the other weights in the order in which they are read, by (unique weight read before, their content)."""
    groups: dict[tuple[str, Any], list[str]] = {}
    before = ""
    for name, content in weights.items():
        if name in unique:
            before = name
        else:
            groups.setdefault((before, content), []).append(name)
    return groups


def _running_modules(operators: Sequence[Operator]) -> set[str]:
    """Return the paths of modules that compute in the forward pass, and of the modules around them.

    A program of a compiler runs its operators outside of the modules that own the weights.
    """
    paths = {operator.module_path for operator in operators if operator.phase == "forward" and computes(operator)}
    levels = [path.split(".") for path in paths if path]
    return {".".join(path[:count]) for path in levels for count in range(1, len(path) + 1)}


def _unique_weights(reference: _Weights, actual: _Weights) -> dict[str, str]:
    """Return the names in actual, by those in the reference, of weights whose content no other weight has."""
    counts = Counter(reference.values()), Counter(actual.values())
    names = {content: name for name, content in actual.items() if counts[1][content] == 1}
    return {name: names[content] for name, content in reference.items() if counts[0][content] == 1 and content in names}


def _module_pairs(
    names: Mapping[str, str], reference: _Weights, actual: _Weights, *, all_weights: bool
) -> Iterator[tuple[str, str]]:
    """Yield pairs of modules, of which weights of one have their partners in the other, and in no further module.

    names        the names of weights in actual, by those in the reference
    all_weights  all weights of both modules must have a partner; else one of them is enough
    """
    totals = Counter(map(_module_of_parameter, reference)), Counter(map(_module_of_parameter, actual))
    pairs = Counter(
        (_module_of_parameter(name), _module_of_parameter(partner))
        for name, partner in names.items()
        if name.rpartition(".")[2] == partner.rpartition(".")[2]
    )
    of_reference, of_actual = (Counter(pair[side] for pair in pairs) for side in (0, 1))
    for (path, partner), count in pairs.items():
        is_complete = count == totals[0][path] == totals[1][partner]
        if path and partner and of_reference[path] == of_actual[partner] == 1 and (is_complete or not all_weights):
            yield path, partner


def _outer_modules(partners: Mapping[str, str]) -> dict[str, str]:
    """Return the modules around modules with a partner, and the modules around these partners."""
    inner: dict[str, list[str]] = {}
    for path, partner in partners.items():
        levels = path.split(".")
        for count in range(1, len(levels)):
            inner.setdefault(".".join(levels[:count]), []).append(_module_of_parameter(partner))
    outer = {path: common_module(around) for path, around in inner.items() if path not in partners}
    return {path: partner for path, partner in outer.items() if partner}


def _module_of_parameter(name: str) -> str:
    """Return the path of the module of a parameter, or of the module around a module."""
    return name.rpartition(".")[0]
