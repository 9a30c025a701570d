"""Rules of a comparison by tokens, by themselves: most on operators made by hand."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any, Optional

import pytest

np: Any = pytest.importorskip("numpy")
pytest.importorskip("torch")
pytest.importorskip("rapidfuzz")

from test_compare_engines import compared  # noqa: E402

from ascend_dump.analysis.alignment.attention_parts import TokenAttention, attentions_of  # noqa: E402
from ascend_dump.analysis.alignment.built_otherwise.traced_differences import Beginning, TracedDifferences  # noqa: E402
from ascend_dump.analysis.alignment.token_parts import CommonTokens, TokenPart  # noqa: E402
from ascend_dump.analysis.alignment.token_ways import Way  # noqa: E402

# Private: rules by themselves, without programs in which they decide.
from ascend_dump.analysis.compare import _walk_rank  # noqa: E402
from ascend_dump.analysis.compare.by_tokens import attention as _attention  # noqa: E402
from ascend_dump.analysis.compare.by_tokens import movers as _movers  # noqa: E402
from ascend_dump.analysis.compare.by_tokens import traced_difference as _traced_difference  # noqa: E402
from ascend_dump.analysis.compare.by_tokens.origins import _in_execution_order, without_consequences  # noqa: E402
from ascend_dump.analysis.compare.by_tokens.results import TokenResults, settled_by_results  # noqa: E402
from ascend_dump.analysis.explaining.results import Origin, Pair  # noqa: E402
from ascend_dump.analysis.explaining.wiring import CHANGED, FROM_OUTSIDE  # noqa: E402
from ascend_dump.analysis.operators.operator import Operator  # noqa: E402
from ascend_dump.analysis.pairing.data_flow import DataFlow, InputSource, Made  # noqa: E402
from ascend_dump.reading import Record  # noqa: E402

WEIGHTS, VALUES = (2, 3, 3), (2, 3, 4)


def record(name: str, io: str, index: int = 0, shape: tuple[int, ...] = (3, 4), storage: int = -1) -> Record:
    made = Record(None, path=Path("f"), op_name=name, io=io, index=index, shape=shape, dtype="float32")
    made.attrs.update(storage=storage)
    return made


def of_tokens(made: Record) -> Record:
    made.loader = object.__new__(TokenPart)
    return made


def operator(
    position: int, op_type: str, *inputs: tuple[tuple[int, ...], int], output: tuple[tuple[int, ...], int]
) -> Operator:
    """Return an operator. inputs, output: shapes and storages"""
    name = f"{op_type}_{position}"
    read = [record(name, "input", index, *tensor) for index, tensor in enumerate(inputs)]
    return Operator(position, f"aten::{op_type}", name, "forward", "", "", read, [record(name, "output", 0, *output)])


def attention(*, of_values: int) -> list[Operator]:
    """Return an attention that reads keys in storage 5, and values in storage 5 or 6. of_values: the storage"""
    return [
        operator(0, "index", (VALUES, 1), ((3,), 2), output=(VALUES, 5)),
        operator(1, "index", (VALUES, 3), ((3,), 2), output=(VALUES, 6)),
        operator(2, "bmm", (VALUES, 4), ((2, 4, 3), 5), output=(WEIGHTS, 7)),
        operator(3, "_softmax", (WEIGHTS, 7), output=(WEIGHTS, 8)),
        operator(4, "bmm", (WEIGHTS, 8), (VALUES, of_values), output=(VALUES, 9)),
        operator(5, "mm", ((3, 8), 9), ((8, 8), 10), output=((3, 8), 11)),
    ]


class Loaded:
    """Values of a record that are in no file."""

    def __init__(self, values: list[float]) -> None:
        self._values = values

    def tensor(self, made: Record, format: Optional[str]) -> Any:
        return np.array(self._values)

    def content(self, made: Record) -> None:
        return None

    def statistics(self, made: Record) -> None:
        return None


class Call:
    def __init__(self, operators: list[Operator]) -> None:
        self.operators = operators


class Alignment:
    """The operators of both sides, and the operators in which a difference begins."""

    unit = 2.0**-24

    def __init__(self, operators: list[Operator], begins: Optional[Operator] = None) -> None:
        self.calls, self.tokens, self._begins = ([Call(operators)], [Call(operators)]), self, begins

    def base_operators(self, side: int) -> list[Operator]:
        return self.calls[side][0].operators

    def begins_at(self, *_: object) -> list[Optional[Beginning]]:
        return [None if self._begins is None else Beginning(self._begins), None]

    def at_token(self, side: int, operator: Operator, number: int) -> Operator:
        return operator

    def text(self, number: int) -> str:
        return f"token {number}"


def aligned(operators: list[Operator], begins: Optional[Operator] = None) -> Any:
    return Alignment(operators, begins)


def pair(made: Record, verdict: str = "different") -> Pair:
    return Pair(made, made, "order", 0.5, verdict)


@pytest.mark.parametrize(
    ("kind", "io", "has_tokens", "is_traced"),
    [
        ("input", "input", True, True),
        ("unknown", "output", True, True),
        ("input", "input", False, False),  # data or weights from outside of the program
        ("input", "output", True, False),  # an operator that reads other elements
        ("compute", "output", True, False),
    ],
)
def test_origins_from_which_a_difference_is_traced_back(
    kind: str, io: str, has_tokens: bool, is_traced: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_traced_difference, "differing_tokens", lambda _: [0])
    monkeypatch.setattr(_traced_difference, "distance", lambda *_: 1.0)
    first, end = record("mm_5", io), of_tokens(record("add_0", "output"))
    origin = Origin(kind, pair(of_tokens(first) if has_tokens else first), ("text",))
    alignment = aligned([], operator(7, "mul", (WEIGHTS, 1), output=(WEIGHTS, 2)))
    [named] = _traced_difference.with_traced_difference([origin], [pair(end)], alignment)
    assert named.op_name == ("mul_7" if is_traced else "mm_5")


@pytest.mark.parametrize(
    ("kind", "io", "index", "layer"),
    [
        ("input", "input", 0, 0),  # the weights
        ("input", "input", 1, None),  # the values
        ("parameter", "input", 0, None),
        ("input", "output", 0, None),
    ],
)
def test_weights_that_the_product_with_values_reads_are_made_by_the_attention(
    kind: str, io: str, index: int, layer: Optional[int]
) -> None:
    operators = attention(of_values=6)
    origin = Origin(kind, pair(record("bmm_4", io, index, WEIGHTS)), ())
    assert _attention._layer_of(origin, aligned(operators)) == layer


@pytest.mark.parametrize(("storage", "name"), [(6, "index_1"), (5, "bmm_4")])
def test_a_reader_of_values_is_right_if_the_keys_that_it_reads_are(storage: int, name: str) -> None:
    """Where keys and values are one tensor, scores that agree prove that it is read rightly."""
    operators = attention(of_values=storage)
    [part] = attentions_of(operators)[0].parts
    same, rows = np.ones(3), np.ones((3, 4))
    sides = [
        TokenAttention(0, part, 3, same, same, same, same, rows, rows, rows, results, ())
        for results in (same, 2.0 * same)
    ]
    cause = _attention._cause({0: (sides[0], sides[1])}, 1e-4, aligned(operators))
    assert cause is not None
    assert cause.operators[0].op_name == name


@pytest.mark.parametrize(
    ("late", "fact", "early", "first"),
    [
        ("input", "", "unknown", "early"),  # values of tokens follow from ids: what differs before them comes first
        ("wiring", f"reads mm_0 here, {FROM_OUTSIDE} in the reference", "unknown", "early"),
        ("wiring", "reads mm_0 here, mm_1 in the reference", "unknown", "late"),
        ("structure", "", "compute", "early"),
        ("structure", "", "unknown", "late"),  # what is known comes before what is not
        ("structure", "", "amplification", "late"),
        ("compute", "", "structure", "late"),
    ],
)
def test_the_first_origin_comes_behind_an_earlier_operator_from_which_it_may_follow(
    late: str, fact: str, early: str, first: str
) -> None:
    operators = [Operator(n, "mm", name, "forward", "", "", [], []) for n, name in enumerate(("early", "late"))]
    sides = [of_tokens(record(name, "input")) for name in ("late", "early")]
    of_late = Pair(sides[0], None, "", 0.0, "unmatched") if late == "structure" else pair(sides[0])
    origins = [Origin(late, of_late, (fact,)), Origin(early, pair(sides[1]), ())]
    assert _in_execution_order(origins, aligned(operators))[0].op_name == first


@pytest.mark.parametrize(
    ("types", "actual", "is_named"),
    [
        (("permute", ""), [2.0, 1.0, 3.0], True),
        (("permute", ""), [2.0, 1.0, 4.0], False),  # other elements arrive, so they are not only moved
        (("index", ""), [2.0, 1.0, 4.0], True),  # a part of the elements
        (("view", "clone"), [2.0, 1.0, 3.0], False),  # both keep the order
    ],
)
def test_operators_that_move_elements_on_one_side_only(
    types: tuple[str, str], actual: list[float], is_named: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    sides = [record("mm_5", "input") for _ in types]
    for made, values in zip(sides, (actual, [1.0, 2.0, 3.0])):
        made.loader = Loaded(values)
    movers = [[operator(3, name, ((3,), 1), output=((3,), 2))] if name else [] for name in types]
    monkeypatch.setattr(_movers, "_movers_of", lambda side, *_: (movers[side], None))
    origin = Origin("unknown", Pair(sides[0], sides[1], "order", 0.5, "different"), (f"made by mm_4, and {CHANGED}",))
    named = _movers.with_movers(origin, aligned([]))
    assert (named.kind == "wiring") is is_named


@pytest.mark.parametrize(("is_right", "names"), [(True, ["mul_2", "mul_2"]), (False, [None, None])])
def test_a_difference_is_not_traced_over_a_product_that_the_other_side_lacks(
    is_right: bool, names: list[Optional[str]]
) -> None:
    """The weight of the product may be the cause, and then the result behind it is none."""
    operators = [
        operator(0, "add", ((2, 8), 1), ((2, 8), 2), output=((2, 8), 3)),
        operator(1, "mm", ((2, 8), 3), ((8, 8), 4), output=((2, 8), 5)),
        operator(2, "mul", ((2, 8), 5), ((2, 8), 3), output=((2, 8), 6)),
    ]
    values = np.random.default_rng(0).normal(size=(2, 3, 2, 8))
    values[1, 0] = values[0, 0]
    if is_right:
        values[1, 1] = values[0, 1]

    class Tensor:
        def __init__(self, side: int, of: Operator, _: Record) -> None:
            self._values = values[side, of.position]

        def ways(self) -> list[Way]:
            return [Way("tokens", None, 0)]

        def values(self, *_: object) -> tuple[Any, Any]:
            return self._values, np.ones(2, bool)

    flows, tokens = [DataFlow(operators) for _ in names], CommonTokens(np.array([[0, 0], [0, 1]]))
    read: Any = Tensor
    traced = TracedDifferences(flows, [{0}, {0}], read, tokens, [0, 1], 1e-7)
    ends = [[InputSource(operators[2].outputs[0], Made(2, 0), None, None)] for _ in names]
    assert [None if first is None else first.operator.op_name for first in traced.begins_at(ends)] == names


@pytest.mark.parametrize("factor", [2.0, math.nan])
@pytest.mark.parametrize("has_unused_entry", [False, True])
def test_results_that_differ_although_no_tensor_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, factor: float, has_unused_entry: bool
) -> None:
    """Log-probabilities that differ by more than rounding are never noise, even if no origin is found.

    An entry of the vocabulary that is never used may have a logit of -3e38, which is no scale for the others.
    """
    # No dump is known in which the walk finds nothing, so that the walk is replaced.
    walk = _walk_rank._walk_tokens

    def blind(*arguments: Any) -> Any:
        divergence, progress = yield from walk(*arguments)
        progress.parts[0] = [replace(pair, verdict="noise") for pair in progress.parts[0]]
        divergence.origins = lambda **_settings: []
        return divergence, progress

    monkeypatch.setattr(_walk_rank, "_walk_tokens", blind)

    def masks(engine: Any, trainer: Any) -> None:
        if has_unused_entry:
            for head in (engine.lm_head, trainer.head):
                head.bias.data[0] = -3e38

    assert compared(tmp_path / "right", both=masks).verdict == "noise"

    def scales(engine: Any) -> None:
        engine.blocks[1].attention.scale *= factor

    comparison = compared(tmp_path / "faulty", scales, both=masks)
    assert comparison.verdict == "different"
    assert any("times the rounding; all " in fact for fact in comparison.aligned)


@pytest.mark.parametrize(
    ("reason", "before", "is_kept"),
    [
        ("aten::cat, aten::mul run in actual only", ["mul_5"], False),
        ("aten::cat, aten::mul run in actual only", ["sin_3"], True),  # it reads nothing of the first origin
        ("these operators are built differently: 1 operator here, 1 in the reference", ["mul_5"], False),
        ("aten::cat runs in actual only", ["mul_5"], True),  # a single operator is a change of its own
    ],
)
def test_parts_that_read_results_of_the_first_origin_are_none(reason: str, before: list[str], is_kept: bool) -> None:
    class Before:
        def operators_before(self, side: int, _: Record) -> list[Operator]:
            parts = (name.partition("_") for name in before if side == 0)
            return [operator(int(number), op_type, output=(VALUES, 1)) for op_type, _, number in parts]

    first = Origin("compute", pair(record("mul_5", "output")), ("text",))
    later = Origin("structure", Pair(record("cat_9", "output"), None, "", 0.0, "unmatched", reason), ("text",))
    alignment: Any = Before()
    assert (later in without_consequences([first, later], first, alignment)) == is_kept


def test_results_that_agree_settle_origins_at_operators_that_are_not_compared() -> None:
    """Such an operator has no tensors of tokens, and is no parameter. Parameters that differ are kept."""
    operators = [operator(0, "mean", output=(VALUES, 1)), operator(1, "mm", output=(VALUES, 2))]
    results = TokenResults((operators[1].outputs[0], operators[1].outputs[0]), "", 0.0, 1.0, are_clear=True)
    alone = Pair(None, operators[0].outputs[0], "order", 1.0, "different")
    weight = pair(record("mean_0", "input"))
    origins = [Origin("structure", alone, ("text",)), Origin("parameter", weight, ("text",))]
    kept, [settled, left] = settled_by_results(results, [operators, operators], origins, [alone, weight])
    assert [origin.kind for origin in kept] == ["parameter"]
    assert (settled.verdict, left.verdict) == ("noise", "different")
