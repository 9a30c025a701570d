"""Pairing of operators: renamed, inserted and deleted ones."""

from __future__ import annotations

import dataclasses
import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ascend_dump.analysis.operators.operator import Operator, module_of

# Private: alignment of sequences by themselves, without dumps of them.
from ascend_dump.analysis.pairing.same_framework import align
from ascend_dump.reading import Record

pytest.importorskip("rapidfuzz")

TYPES = [
    f"aten::{name}" for name in ("addmm", "native_layer_norm", "gelu", "add", "mul", "_softmax", "bmm", "view", "t")
]


def operator(position: int, op_type: str, module: str, shape: tuple[int, ...]) -> Operator:
    record = Record(None, path=Path("f"), op_type=op_type, op_name=f"{module}/{op_type}", io="output", shape=shape)
    return Operator(position, op_type, f"{module}/{op_type}_{position}", "forward", module, "", [], [record])


def network(blocks: int) -> list[tuple[str, str, tuple[int, ...]]]:
    return [
        (op_type, f"layers.{block}.{part}", (4, 16 + part))
        for block in range(blocks)
        for part, op_type in enumerate(TYPES * 2)
    ]


def numbered(rows: list[tuple[str, str, tuple[int, ...]]]) -> list[Operator]:
    return [operator(position, *row) for position, row in enumerate(rows)]


@settings(deadline=None, max_examples=50)
@given(st.data())
def test_what_is_inserted_and_deleted_does_not_disturb_the_others(data: st.DataObject) -> None:
    rows = network(4)
    dropped = data.draw(st.sets(st.integers(0, len(rows) - 1), max_size=5))
    inserted = data.draw(st.sets(st.integers(0, len(rows) - 1), max_size=5))
    changed: list[tuple[str, str, tuple[int, ...]]] = []
    truth: dict[int, int] = {}
    for index, row in enumerate(rows):
        if index in inserted:
            changed.append(("aten::clone", "extra", (4, 99)))
        if index not in dropped:
            truth[len(changed)] = index
            changed.append(row)
    found = {match.actual.position: match.reference.position for match in align(numbered(changed), numbered(rows))}
    assert found == truth


def test_renamed_modules_are_paired_by_type_shape_and_order() -> None:
    rows = network(6)
    renamed = [(op_type, module.replace("layers", "blocks"), shape) for op_type, module, shape in rows]
    found = align(numbered(renamed), numbered(rows))
    assert [match.actual.position for match in found] == [match.reference.position for match in found]
    assert len(found) == len(rows)
    assert {match.how for match in found} == {"order"}


def test_the_users_mapping_goes_before_everything_else() -> None:
    rows = network(1)
    actual, reference = numbered(rows), numbered(rows)
    mapping = {actual[0].op_name: reference[9].op_name}
    found = {match.actual.position: match for match in align(actual, reference, mapping)}
    assert (found[0].reference.position, found[0].how, found[0].confidence) == (9, "mapping", 1.0)


def test_pairs_do_not_cross() -> None:
    rows = network(8)
    shuffled = rows[:]
    random.Random(0).shuffle(shuffled)
    found = align(numbered(shuffled), numbered(rows))
    positions = [match.actual.position for match in found]
    assert positions == sorted(positions)


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("module.layers.0", "layers.0"),
        ("_orig_mod.layers.0._fsdp_wrapped_module.attn", "layers.0.attn"),
        ("model.layers.0", "layers.0"),
        ("", ""),
    ],
)
def test_wrappers_are_no_part_of_the_place(path: str, expected: str) -> None:
    assert module_of(path) == expected


def test_a_long_row_without_names_is_aligned_piece_by_piece() -> None:
    """Some 16000 operators of layers that are all alike, with some inserted and some deleted, in little memory."""
    generator = random.Random(1)
    rows = [(op_type, "", (4, 16 + part % 5)) for _ in range(900) for part, op_type in enumerate(TYPES * 2)]
    changed: list[tuple[str, str, tuple[int, ...]]] = []
    truth: dict[int, int] = {}
    for index, row in enumerate(rows):
        if generator.random() < 0.02:
            changed.append(("aten::clone", "", (4, 99)))
        if generator.random() >= 0.02:
            truth[len(changed)] = index
            changed.append(row)
    found = align(numbered(changed), numbered(rows))
    right = sum(truth.get(match.actual.position) == match.reference.position for match in found)
    assert right / len(truth) > 0.998


def test_branches_may_run_in_another_order() -> None:
    """Operators of a graph have names of their own, and run as soon as their inputs are there."""
    rows = [("mm", "", (4, number)) for number in range(20)]
    reference = numbered(rows)
    actual = [dataclasses.replace(one, position=position) for position, one in enumerate(reversed(reference))]
    found = align(actual, reference)
    assert [match.actual.op_name for match in found] == [match.reference.op_name for match in found]
    assert len(found) == len(rows)
    assert {match.how for match in found} >= {"name"}


@pytest.mark.parametrize(
    ("op_type", "other", "are_paired"),
    [
        ("aten::detach", "aten::zeros_like", False),
        ("aten::clone", "aten::detach", True),
        ("aten::zeros_like", "aten::ones_like", True),
        ("aten::gelu", "aten::silu", True),
    ],
)
def test_only_operators_that_do_the_same_are_paired_by_order(op_type: str, other: str, are_paired: bool) -> None:
    """Views and copies have the values of their input, and constants have their own."""
    rows = [("aten::mm", "a", (4, 4)), (op_type, "b", (4, 4)), ("aten::bmm", "c", (4, 4))]
    found = align(numbered(rows), numbered([rows[0], (other, "b", (4, 4)), rows[2]]))
    assert ((1, 1) in [(match.actual.position, match.reference.position) for match in found]) is are_paired
