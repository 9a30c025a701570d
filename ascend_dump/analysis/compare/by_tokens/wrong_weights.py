"""Name a weight that is wrong, where the products that read it are not compared: two programs may build them otherwise.

The weights of both programs are known by their rows, whatever their names and layouts are. A weight that is scaled,
stale or in another order in a few layers explains a difference in the module that owns it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Optional

from ascend_dump.analysis.explaining.results import Origin, Pair
from ascend_dump.analysis.operators.properties import PRODUCTS, operator_class
from ascend_dump.analysis.weights import WeightFinding, compare_weights
from ascend_dump.analysis.weights.names import parsed
from ascend_dump.errors import AscendDumpError
from ascend_dump.reading import Dump, Record

__all__ = ["with_wrong_weight"]

#: Relations of weights that were not loaded rightly, if the verdict is "different".
_WRONG = frozenset({"stale", "misplaced", "split", "concatenated", "permuted", "transposed", "rearranged", "scaled"})


def with_wrong_weight(origins: Sequence[Origin], pairs: Sequence[Pair], dumps: Sequence[Dump]) -> list[Origin]:
    """Return the origins; the first one is replaced by a weight that is wrong in its module, if there is one.

    pairs: those of all compared tensors; dumps: actual and the reference
    """
    if not origins or origins[0].kind == "parameter" or not origins[0].module:
        return [*origins]
    if any(len(dump.known_values("rank")) > 1 for dump in dumps):
        return [*origins]  # ranks may have parts of weights, under one name
    try:
        findings = compare_weights(dumps[0], dumps[1]).findings
    except AscendDumpError:  # a side has no names of parameters
        return [*origins]
    scaled = Counter(_template(finding) for finding in findings if _is_wholly_scaled(finding))
    layers = Counter(map(_template, findings))
    agreeing = {parameter for pair in pairs for parameter in _agreeing(pair)}
    right = _modules_of_right_products(pairs)
    for finding in findings:
        template = _template(finding)
        # A factor in all layers may be one that the other program applies to activations.
        is_factor = _is_wholly_scaled(finding) and scaled[template] == layers[template]
        if finding.relation not in _WRONG or finding.verdict != "different" or is_factor:
            continue
        if agreeing & {*finding.actual} or not any(_is_inside(name, origins[0].module) for name in finding.actual):
            continue
        if all(name.rpartition(".")[0] in right for name in finding.actual):
            continue
        names = finding.actual[-1:], finding.reference[-1:]  # of joined weights, the first one is mostly in its place
        records = [_first_read(dump, of_side) for dump, of_side in zip(dumps, names)]
        if None not in records:
            return [_origin(origins[0], finding, records[0], records[1]), *origins[1:]]
    return [*origins]


def _template(finding: WeightFinding) -> str:
    """Return the names of the weights of actual without the number of their layer."""
    return " ".join(parsed(name).template for name in finding.actual)


def _is_wholly_scaled(finding: WeightFinding) -> bool:
    return finding.relation == "scaled" and finding.measure.startswith("scaled")


def _agreeing(pair: Pair) -> Iterator[str]:
    """Yield the parameter of a pair that agrees."""
    if pair.actual is not None and pair.reference is not None and pair.verdict in ("equal", "noise"):
        yield pair.actual.parameter or ""


def _modules_of_right_products(pairs: Sequence[Pair]) -> set[str]:
    """Return the modules with one product, all of whose results agree: its weight is right, in whatever order."""
    products: dict[str, set[str]] = {}
    wrong: set[str] = set()
    for pair in pairs:
        record = pair.actual
        if record is not None and record.io == "output" and operator_class(record.op_type) in PRODUCTS:
            module = record.module or ""
            products.setdefault(module, set()).add(record.op_name.partition("[")[0])
            if pair.reference is None or pair.verdict not in ("equal", "noise"):
                wrong.add(module)
    return {module for module, names in products.items() if len(names) == 1} - wrong


def _is_inside(name: str, module: str) -> bool:
    """Return True for the name of a weight that a module owns, or a module inside of it, or the one around it."""
    owner = name.rpartition(".")[0]
    return f"{owner}.".startswith(f"{module}.") or f"{module}.".startswith(f"{owner}.")


def _first_read(dump: Dump, names: Sequence[str]) -> Optional[Record]:
    """Return the record in which one of some parameters is read first."""
    return next((record for record in dump if record.parameter in names), None)


def _origin(origin: Origin, finding: WeightFinding, a: Optional[Record], b: Optional[Record]) -> Origin:
    names = [", ".join(side) for side in (finding.actual, finding.reference)]
    reason = "; ".join(filter(None, (finding.text, finding.measure))) or finding.relation
    pair = Pair(a, b, "content", 1.0, "different", reason)
    found = f"found where {origin.pair.record.label} differs: {origin.pair.reason}"
    evidence = (f"{finding.relation}: {names[0]}, with the rows of {names[1]}: {reason}", found)
    return Origin("parameter", pair, evidence, origin.explains)
