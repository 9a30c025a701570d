"""Tensors of several ranks that are related to those of one rank in less usual ways; each relation also has a fault."""

from __future__ import annotations

from pathlib import Path
from typing import Callable, NamedTuple, Optional

import ml_dtypes
import msgspec
import numpy as np
import pytest
from host_dumps import item, rank_writer

import ascend_dump
from ascend_dump.analysis.compare import Comparison
from ascend_dump.dump_format import CollectiveCall
from ascend_dump.writing import Item

pytest.importorskip("rapidfuzz")

_RANKS = 2


class Call(NamedTuple):
    """An operator. arguments: its call as JSON. source: the line of the program that runs it"""

    op_type: str
    inputs: list[np.ndarray]
    outputs: list[np.ndarray]
    phase: str = "forward"
    arguments: str = ""
    parameter: str = ""
    module: str = ""
    source: str = ""


def write(root: Path, ranks: list[list[Call]]) -> Path:
    for rank, calls in enumerate(ranks):
        writer = rank_writer(root, rank, len(ranks))
        storages: dict[int, int] = {}
        for number, call in enumerate(calls):
            items: list[Item] = []
            for io, arrays in (("input", call.inputs), ("output", call.outputs)):
                for index, array in enumerate(arrays):
                    name = f"{call.module and call.module + '/'}{call.op_type}_{number}"
                    one = item(name, array, io=io, index=index, op_type=call.op_type, seq=number, module=call.module)
                    one.line.phase = call.phase
                    one.line.source = call.source
                    memory = array if array.base is None else array.base
                    one.line.storage = storages.setdefault(id(memory), len(storages))
                    if index == 0 and io == "input":
                        one.line.parameter = call.parameter
                    if call.op_type.startswith("c10d::"):
                        kind = "all_to_all" if "alltoall" in call.op_type else "all_reduce"
                        kind = "recv" if "recv" in call.op_type else kind
                        one.line.collective = CollectiveCall(kind, "0", f"0-{len(ranks) - 1}", reduce="sum")
                    if call.arguments and not items:
                        one.line.call = msgspec.Raw(call.arguments.encode())
                    items.append(one)
            writer.put(items, sum(one.payload.nbytes for one in items if one.payload is not None))
        writer.end_step()
        writer.close()
    return root


def rng() -> np.random.Generator:
    return np.random.default_rng(3)


def part(array: np.ndarray, rank: int, ranks: int, axis: int = 0) -> np.ndarray:
    return np.ascontiguousarray(np.split(array, ranks, axis)[rank])


def heads(rank: int, ranks: int, is_wrong: bool) -> list[Call]:
    """Heads that are divided over ranks are merged with the batch: a batch of 4 with 2 heads each."""
    whole = rng().standard_normal((4, 2, 8, 3)).astype("f4")
    mine = part(whole, rank, ranks, 1)
    merged = mine.reshape(-1, 8, 3)
    scores = merged @ merged.swapaxes(1, 2)
    if is_wrong and rank == ranks - 1:
        scores = scores + np.float32(0.5)
    return [
        Call("aten::relu", [mine], [mine]),
        Call("aten::view", [mine], [merged]),
        Call("aten::bmm", [merged, merged.swapaxes(1, 2).copy()], [scores]),
    ]


def gradients(rank: int, ranks: int, is_wrong: bool) -> list[Call]:
    """The gradient of a sum over ranks is added up too: it is larger by the number of ranks, as others are."""
    whole = rng().standard_normal((8, 3)).astype("f4")
    mine = part(whole, rank, ranks)
    local = mine * np.float32(ranks)
    total = whole.sum(0) * np.float32(ranks)
    calls = [
        Call("aten::relu", [mine], [mine]),
        Call("aten::mul", [local], [local], "backward"),
        Call("aten::sum", [local], [local.sum(0)], "backward"),
    ]
    if ranks > 1:
        calls.append(Call("c10d::allreduce_", [local.sum(0)], [total], "backward"))
    result = total * np.float32(1.5 if is_wrong else 1)
    return [*calls, Call("aten::neg", [total], [-result], "backward")]


def vocabulary(rank: int, ranks: int, is_wrong: bool) -> list[Call]:
    """Each rank has a part of the vocabulary, and masks the tokens of other parts."""
    tokens = rng().integers(0, 12, 64)
    start, end = 12 // ranks * rank, 12 // ranks * (rank + 1)
    first, last = tokens >= start, tokens < end
    table = rng().standard_normal((12, 3)).astype("f4")
    weight = part(table, rank, ranks)
    rows = np.where((first & last)[:, None], table[tokens], 0).astype("f4")
    total = table[tokens]
    call = '{{"op":"aten.{}.Scalar","args":{{"self":{{"input":0}},"other":{}}}}}'
    calls = [
        Call("aten::ge", [tokens], [first], arguments=call.format("ge", start)),
        Call("aten::lt", [tokens], [last], arguments=call.format("lt", end)),
        Call("aten::exp", [weight], [np.exp(weight)]),
        Call("aten::mul", [rows], [rows]),
    ]
    if ranks > 1:
        calls.append(Call("c10d::allreduce_", [rows], [total]))
    return [*calls, Call("aten::relu", [total], [np.maximum(total * np.float32(1.1 if is_wrong else 1), 0)])]


def two_orders(rank: int, ranks: int, is_wrong: bool) -> list[Call]:
    """A sum of two gradients in the opposite order."""
    a, b = (part(array, rank, ranks) for array in rng().standard_normal((2, 8, 3)).astype("f4"))
    inputs = [a, b] if ranks == 1 else [b, a]
    result = a + b + np.float32(0.5 if is_wrong else 0)
    return [Call("aten::relu", [a], [a]), Call("aten::relu", [b], [b]), Call("aten::add", inputs, [result])]


def classes(rank: int, ranks: int, is_wrong: bool) -> list[Call]:
    """The classes of a loss are numbers that each rank makes for itself: those of its own rows."""
    scores = part(rng().standard_normal((8, 8)).astype("f4"), rank, ranks)
    size = 8 // ranks
    own = np.arange(size) + (0 if is_wrong else rank * size)
    loss = np.asarray(-scores[np.arange(size), own].mean(), "f4")
    return [
        Call("aten::relu", [scores], [scores]),
        Call("aten::arange", [], [np.arange(size)]),
        Call("aten::add", [np.arange(size)], [own]),
        Call("aten::nll_loss_forward", [scores, own], [loss]),
    ]


def batches(rank: int, ranks: int, is_wrong: bool) -> list[Call]:
    """The program itself cuts the batch into the parts of the ranks; the last rank takes the first part if wrong."""
    whole = rng().standard_normal((8, 3)).astype("f4")
    parts = np.split(whole, ranks)
    mine = parts[0 if is_wrong and rank == ranks - 1 else rank]
    call = f'{{"op":"aten.split.Tensor","args":{{"self":{{"input":0}},"split_size":{8 // ranks}}}}}'
    return [
        Call("aten::mul", [whole], [whole]),
        Call("aten::split", [whole], parts, arguments=call),
        Call("aten::relu", [mine], [np.maximum(mine, 0)]),
    ]


def limits(rank: int, ranks: int, is_wrong: bool) -> list[Call]:
    """Indices are limited to the size of the part of a rank."""
    indices = np.arange(8)
    last = 8 // ranks - 1
    call = f'{{"op":"aten.clamp.default","args":{{"self":{{"input":0}},"max":{last - (is_wrong and rank > 0)}}}}}'
    weight = part(rng().standard_normal((8, 3)).astype("f4"), rank, ranks)
    return [
        Call("aten::exp", [weight], [np.exp(weight)]),
        Call("aten::clamp", [indices], [indices.clip(max=last - (is_wrong and rank > 0))], arguments=call),
    ]


def sorted_rows(rank: int, ranks: int, is_wrong: bool) -> list[Call]:
    """Each rank sorts the columns of its own rows."""
    numbers = part(np.array([3, 1, 2, 0, 1, 3, 0, 2] * 2).reshape(8, 2), rank, ranks)
    order = numbers.argsort(0, kind="stable")
    rows = part(rng().standard_normal((8, 3)).astype("f4"), rank, ranks)
    result = np.exp(rows) + np.float32(0.5 if is_wrong else 0)
    call = '{"op":"aten.sort.stable","args":{"self":{"input":0},"dim":0}}'
    return [
        Call("aten::mul", [rows], [rows]),
        Call("aten::relu", [numbers], [numbers]),
        Call("aten::sort", [numbers], [np.take_along_axis(numbers, order, 0), order], arguments=call),
        Call("aten::exp", [rows], [result]),
    ]


def softmax_of_heads(rank: int, ranks: int, is_wrong: bool) -> list[Call]:
    """Heads are divided over ranks, and the softmax works along another axis."""
    scores = part(rng().standard_normal((2, 4, 3, 3)).astype("f4"), rank, ranks, 1)
    weights = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True) + np.float32(0.1 if is_wrong and rank else 0)
    call = '{"op":"aten._softmax.default","args":{"self":{"input":0},"dim":-1,"half_to_float":false}}'
    return [Call("aten::mul", [scores], [scores]), Call("aten::_softmax", [scores], [weights], arguments=call)]


def exchanged_rows(rank: int, ranks: int, is_wrong: bool) -> list[Call]:
    """Ranks send rows to each other, and send the results back; one rank sorts the rows instead."""
    whole = rng().standard_normal((8, 3)).astype("f4")
    mine = part(whole, rank, ranks)
    if ranks == 1:
        rows = whole[[0, 4, 1, 5, 2, 6, 3, 7]]
        exchanges = []
    else:
        rows = np.ascontiguousarray(whole[rank::ranks])
        exchanges = [Call("c10d::alltoall_base_", [mine], [rows])]
    result = np.exp(mine) + np.float32(0.5 if is_wrong else 0)
    return [
        Call("aten::relu", [mine], [mine]),
        *exchanges,
        Call("aten::mul", [rows], [rows * 2]),
        Call("aten::exp", [mine], [result]),
    ]


def transposed_rows(rank: int, ranks: int, is_wrong: bool) -> list[Call]:
    """Rows of several times are merged with the batch, and the matrix is transposed: for the gradient of a weight."""
    whole = rng().standard_normal((5, 8, 3)).astype("f4")
    mine = part(whole, rank, ranks, 1)
    matrix = np.ascontiguousarray(mine.reshape(-1, 3).T)
    result = np.exp(matrix) + np.float32(0.5 if is_wrong and rank else 0)
    return [Call("aten::relu", [mine], [mine]), Call("aten::exp", [matrix], [result], "backward")]


def rounded_gradients(rank: int, ranks: int, is_wrong: bool) -> list[Call]:
    """A rank has the larger gradient of a mean over fewer rows; earlier layers computed in a narrow type."""
    whole = rng().standard_normal((8, 6)).astype("f4")
    rounding = 2**-8 * (rng().random((8, 6)) - 0.5) if ranks > 1 else np.zeros((8, 6))
    out = part((whole * (1 + rounding)).astype(ml_dtypes.bfloat16), rank, ranks)
    wide = out.astype("f4")
    gradient = wide * np.float32(ranks * (1.5 if is_wrong else 1))
    return [
        Call("aten::mm", [part(whole, rank, ranks)], [out]),
        Call("aten::_to_copy", [out], [wide]),
        Call("aten::mse_loss_backward", [wide], [gradient], "backward"),
    ]


def exchanged_blocks(rank: int, ranks: int, is_wrong: bool) -> list[Call]:
    """Ranks send blocks of rows to the experts of other ranks; a view sorts them by sender and expert."""
    whole = rng().standard_normal((4, 8, 3)).astype("f4")
    mine = part(whole, rank, ranks, 1)
    sent = [np.split(part(whole, sender, ranks, 1), ranks)[rank] for sender in range(ranks)]
    received = np.concatenate(sent)
    exchanges = [Call("c10d::alltoall_base_", [mine], [received], module="moe")] if ranks > 1 else []
    result = np.exp(mine) + np.float32(0.5 if is_wrong else 0)
    by_sender = received.reshape(ranks, 4 // ranks, 8 // ranks, 3)
    return [
        Call("aten::relu", [mine], [mine], module="moe"),
        *exchanges,
        Call("aten::view", [received], [by_sender], module="moe"),
        Call("aten::exp", [mine], [result], module="moe"),
    ]


def received_keys(rank: int, ranks: int, is_wrong: bool) -> list[Call]:
    """Each rank has a part of the rows, and computes with the columns of one rank after the other."""
    rows, columns = rng().standard_normal((2, 8, 3)).astype("f4")
    mine = part(rows, rank, ranks)
    total = np.zeros((len(mine), 3), "f4")
    calls = [Call("aten::relu", [mine], [mine], module="attention")]
    for hop in range(ranks):
        own = part(columns, (rank - hop) % ranks, ranks)
        if hop:
            calls.append(Call("c10d::recv_", [np.zeros_like(own)], [own], module="attention"))
        scores = mine @ own.T
        calls.append(Call("aten::mm", [mine, own.T], [scores], module="attention"))
        total = total + scores @ own
        calls.append(Call("aten::addmm", [scores, own], [total], module="attention"))
    result = np.exp(mine) + np.float32(0.5 if is_wrong else 0)
    return [*calls, Call("aten::exp", [mine], [result], module="attention")]


def repeated_layers(rank: int, ranks: int, is_wrong: bool) -> list[Call]:
    """A rank runs its layer for each half of the batch before the backward pass; one rank runs half after half."""
    halves = np.split(rng().standard_normal((4, 3)).astype("f4"), 2)
    weights = [np.float32(2), np.float32(3)]
    mine = range(rank, rank + 1) if ranks > 1 else range(2)

    def layers(half: np.ndarray, phase: str) -> list[Call]:
        made = []
        for layer in mine:
            half = half * np.prod(weights[:layer], dtype="f4")
            factor = weights[layer] * np.float32(1.5 if is_wrong and layer and phase == "forward" else 1)
            made.append(Call("aten::mul", [half, weights[layer]], [half * factor], phase, module=f"layer{layer}"))
        return made

    phases = [[layers(half, phase) for half in halves] for phase in ("forward", "backward")]
    in_order = [*phases[0], *phases[1]] if ranks > 1 else [calls for pair in zip(*phases) for calls in pair]
    return [call for calls in in_order for call in calls]


def sums_of_gradients(rank: int, ranks: int, is_wrong: bool) -> list[Call]:
    """The last operators add other gradients on a rank that has only some layers."""
    rows = part(rng().standard_normal((8, 3)).astype("f4"), rank, ranks)
    gradients = [np.full((4, 4), number, "f4") for number in (1, 2)]
    added = gradients[0 if ranks > 1 else 1]
    result = np.exp(rows) + np.float32(0.5 if is_wrong else 0)
    return [
        Call("aten::exp", [rows], [result]),
        Call("aten::neg", [gradients[0]], [-gradients[0]], "other", parameter="first.grad"),
        Call("aten::neg", [gradients[1]], [-gradients[1]], "other", parameter="second.grad"),
        Call("aten::add", [added], [added * 3], "backward", parameter="first.grad" if ranks > 1 else "second.grad"),
    ]


def heads_of_mesh(rank: int, ranks: int, is_wrong: bool) -> list[Call]:
    """As `heads`, but pairs of ranks have other rows: a batch of 4 with 4 heads each."""
    whole = rng().standard_normal((4, 4, 8, 3)).astype("f4")
    row, column = divmod(rank, 2) if ranks > 1 else (0, 0)
    mine = part(part(whole, row, 2), column, 2, 1) if ranks > 1 else whole
    merged = mine.reshape(-1, 8, 3)
    scores = merged @ merged.swapaxes(1, 2)
    return [
        Call("aten::relu", [mine], [mine]),
        Call("aten::bmm", [merged, merged.swapaxes(1, 2).copy()], [scores + np.float32(is_wrong)]),
    ]


def columns_of_mesh(rank: int, ranks: int, is_wrong: bool) -> list[Call]:
    """Pairs of ranks have other rows; the ranks of a pair have other columns of queries, keys and values."""
    rows, weights = rng().standard_normal((8, 6)).astype("f4"), rng().standard_normal((3, 6, 4)).astype("f4")
    row, column = divmod(rank, 2) if ranks > 1 else (0, 0)
    if ranks > 1:
        rows, weights = part(rows, row, 2), part(weights, column, 2, 2)
    columns = np.concatenate([*weights], axis=1)
    hidden = rows @ columns
    turned = hidden.T.copy()
    return [
        Call("aten::mm", [rows, columns], [hidden]),
        Call("aten::exp", [turned], [np.exp(turned) + np.float32(is_wrong)]),
    ]


def labels_of_sequences(rank: int, ranks: int, is_wrong: bool) -> list[Call]:
    """Sequences are divided over ranks, and the labels of all rows are in one axis."""
    labels = part(rng().integers(0, 12, (4, 8)), rank, ranks, 1).reshape(-1)
    losses = part(rng().standard_normal((4, 8)).astype("f4"), rank, ranks, 1).reshape(-1)
    return [
        Call("aten::exp", [losses], [np.exp(losses)]),
        Call("aten::gather", [losses, labels], [losses + labels + np.float32(0.5 if is_wrong else 0)]),
    ]


def rows_of_senders(rank: int, ranks: int, is_wrong: bool) -> list[Call]:
    """An expert divides its results by the ranks from which the rows came; they differ from one rank by rounding."""
    mine = part(rng().standard_normal((8, 3)).astype("f4"), rank, ranks)
    rows = rng().standard_normal((2, 3)).astype("f4")
    results = np.nextafter(rows * 2, np.float32(9 if ranks > 1 else 0))
    sizes = "[1,1]" if ranks > 1 else "[2]"
    call = f'{{"op":"aten.split_with_sizes.default","args":{{"self":{{"input":0}},"split_sizes":{sizes}}}}}'
    outputs = [results[:1].copy(), results[1:].copy()] if ranks > 1 else [results]
    return [
        Call("aten::mul", [rows], [results]),
        Call("aten::split_with_sizes", [results], outputs, arguments=call),
        Call("aten::exp", [mine], [np.exp(mine) + np.float32(0.5 if is_wrong else 0)]),
    ]


def divided_vocabulary(rank: int, ranks: int, is_wrong: bool) -> list[Call]:
    """As in megatron-core: only a program of several ranks masks tokens of other parts, so one rank has no masks."""
    tokens = rng().integers(0, 12, 32)
    table = rng().standard_normal((12, 3)).astype("f4")
    gradients = rng().standard_normal((32, 3)).astype("f4")
    rows = 12 // ranks
    weight = part(table, rank, ranks)
    mine = tokens // rows == rank
    indices = np.where(mine, tokens - rank * rows, 0)
    received = np.where(mine[:, None], gradients, 0).astype("f4")
    changed = np.zeros_like(weight)
    np.add.at(changed, indices, received)
    found = weight[indices]
    calls = [Call("aten::embedding", [weight, indices], [found], module="words")]
    if ranks > 1:
        masked = np.where(mine[:, None], found, 0).astype("f4")
        calls.append(Call("c10d::allreduce_", [masked], [table[tokens]], module="words"))
    out = np.exp(table[tokens]) + np.float32(is_wrong)
    calls.append(Call("aten::exp", [table[tokens]], [out], module="next"))
    calls.append(Call("aten::embedding_dense_backward", [received, indices], [changed], "backward", module="words"))
    return calls


def masked_vocabulary(rank: int, ranks: int, is_wrong: bool) -> list[Call]:
    """The program masks tokens of other parts, and runs on one rank too, where it masks none."""
    tokens = rng().integers(0, 12, 32)
    table = rng().standard_normal((12, 3)).astype("f4")
    rows = 12 // ranks
    before, behind = tokens < rank * rows, tokens >= (rank + 1) * rows
    outside = before | behind
    weight, indices = part(table, rank, ranks), np.where(outside, 0, tokens - rank * rows)
    found = weight[indices]
    masked = np.where(outside[:, None], 0, found).astype("f4")
    call = '{{"op":"aten.{}.Scalar","args":{{"self":{{"input":0}},"other":{}}}}}'
    calls = [
        Call("aten::lt", [tokens], [before], arguments=call.format("lt", rank * rows)),
        Call("aten::ge", [tokens], [behind], arguments=call.format("ge", (rank + 1) * rows)),
        Call("aten::bitwise_or", [before, behind], [outside]),
        Call("aten::embedding", [weight, indices], [found]),
        Call("aten::masked_fill", [found, outside], [masked]),
    ]
    if ranks > 1:
        calls.append(Call("c10d::allreduce_", [masked], [table[tokens]]))
    return [*calls, Call("aten::exp", [table[tokens]], [np.exp(table[tokens]) + np.float32(is_wrong)])]


def calls_of_several_ranks(rank: int, ranks: int, is_wrong: bool) -> list[Call]:
    """Ranks add up what only they count, and read it by the same operator as one rank reads a norm."""
    rows = part(rng().standard_normal((8, 3)).astype("f4"), rank, ranks)
    norm, counts = np.full((), 0.7, "f4"), np.full(ranks, 5e6, "f4")
    total = counts.sum(keepdims=False)
    result = np.exp(rows) + np.float32(0.5 if is_wrong else 0)
    calls = [
        Call("aten::exp", [rows], [result]),
        Call("aten::_local_scalar_dense", [norm], [], "other", source="a.py:1"),
    ]
    if ranks > 1:
        calls.append(Call("aten::sum", [counts], [total], "other", source="a.py:2"))
        calls.append(Call("aten::_local_scalar_dense", [total], [], "other", source="a.py:2"))
    return calls


def norms_of_sequences(rank: int, ranks: int, is_wrong: bool) -> list[Call]:
    """Sequences are divided over ranks, and a norm works along the last axis."""
    rows = part(rng().standard_normal((2, 8, 6)).astype("f4"), rank, ranks, 1)
    normed = rows / np.sqrt((rows * rows).mean(-1, keepdims=True)) * np.float32(1.1 if is_wrong and rank else 1)
    call = '{"op":"aten.native_layer_norm.default","args":{"input":{"input":0},"normalized_shape":[6],"eps":1e-05}}'
    return [
        Call("aten::mul", [rows], [rows]),
        Call("aten::native_layer_norm", [rows], [normed.astype("f4")], arguments=call),
    ]


def norms_of_parts(rank: int, ranks: int, is_wrong: bool) -> list[Call]:
    """Each rank has a norm over its own part of each row."""
    rows = part(rng().standard_normal((2, 8, 6)).astype("f4"), rank, ranks, 1)
    normed = rows / np.sqrt((rows * rows).mean((1, 2), keepdims=True))
    shape = f"[{8 // ranks},6]"
    call = f'{{"op":"aten.native_layer_norm.default","args":{{"input":{{"input":0}},"normalized_shape":{shape}}}}}'
    return [
        Call("aten::mul", [rows], [rows]),
        Call("aten::native_layer_norm", [rows], [normed.astype("f4")], arguments=call),
        Call("aten::exp", [rows], [np.exp(rows) + np.float32(0.5 if is_wrong else 0)]),
    ]


def scaled_rows(rank: int, ranks: int, is_wrong: bool) -> list[Call]:
    """Rows are multiplied; one rank multiplies them by the number of ranks too."""
    rows = part(rng().standard_normal((8, 3)).astype("f4"), rank, ranks)
    factor = np.float32(ranks if is_wrong and rank == ranks - 1 else 1)
    return [Call("aten::relu", [rows], [rows]), Call("aten::mul", [rows], [rows * 3 * factor])]


PROGRAMS: dict[Callable[[int, int, bool], list[Call]], Optional[str]] = {
    heads: "aten::bmm",
    gradients: "aten::neg",
    vocabulary: "aten::relu",
    two_orders: "aten::add",
    classes: "aten::nll_loss_forward",
    batches: "aten::relu",
    limits: "aten::clamp",
    sorted_rows: "aten::exp",
    softmax_of_heads: "aten::_softmax",
    exchanged_rows: "aten::exp",
    transposed_rows: "aten::exp",
    rounded_gradients: "aten::mse_loss_backward",
    exchanged_blocks: "aten::exp",
    received_keys: "aten::exp",
    repeated_layers: "aten::mul",
    sums_of_gradients: "aten::exp",
    heads_of_mesh: "aten::bmm",
    columns_of_mesh: "aten::exp",
    calls_of_several_ranks: "aten::exp",
    divided_vocabulary: "aten::exp",
    masked_vocabulary: "aten::exp",
    rows_of_senders: "aten::exp",
    labels_of_sequences: "aten::gather",
    norms_of_sequences: "aten::native_layer_norm",
    norms_of_parts: "aten::exp",
    scaled_rows: "aten::mul",
}
#: Programs on a mesh of 2 by 2 ranks.
MESHES = (heads_of_mesh, columns_of_mesh)


def compared(root: Path, program: Callable[[int, int, bool], list[Call]], *, is_wrong: bool) -> Comparison:
    ranks = 4 if program in MESHES else _RANKS
    actual = write(root / "actual", [program(rank, ranks, is_wrong) for rank in range(ranks)])
    return ascend_dump.compare(actual, write(root / "reference", [program(0, 1, False)]))


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: str(program.__name__))
def test_a_healthy_program_agrees_with_one_rank(
    program: Callable[[int, int, bool], list[Call]], tmp_path: Path
) -> None:
    comparison = compared(tmp_path, program, is_wrong=False)
    assert [(one.op_type, one.evidence) for one in comparison.origins] == []
    assert comparison.verdict in ("equal", "noise")


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: str(program.__name__))
def test_a_wrong_operator_of_such_a_program_is_named(
    program: Callable[[int, int, bool], list[Call]], tmp_path: Path
) -> None:
    comparison = compared(tmp_path, program, is_wrong=True)
    assert comparison.origins[0].op_type == PROGRAMS[program]


def tokens_and_vocabulary(rank: int, ranks: int, is_wrong: bool) -> list[Call]:
    """Each rank has a part of the tokens, and looks up those of its part of the vocabulary."""
    tokens = part(rng().integers(0, 12, 32), rank, ranks)
    table = rng().standard_normal((12, 3)).astype("f4")
    rows = 12 // ranks
    weight = part(table, rank, ranks)
    indices = np.where(tokens // rows == rank, tokens - rank * rows, 0)
    return [
        Call("aten::embedding", [weight, indices], [weight[indices]], module="words"),
        Call("aten::exp", [table[tokens]], [np.exp(table[tokens])], module="next"),
    ]


def test_tokens_and_a_vocabulary_that_are_both_divided_are_read(tmp_path: Path) -> None:
    actual = write(tmp_path / "actual", [tokens_and_vocabulary(rank, _RANKS, False) for rank in range(_RANKS)])
    comparison = ascend_dump.compare(actual, write(tmp_path / "reference", [tokens_and_vocabulary(0, 1, False)]))
    assert comparison.verdict != "unreadable"


def test_a_wrong_lookup_in_a_whole_vocabulary_is_named(tmp_path: Path) -> None:
    def looked_up(rank: int, ranks: int, is_wrong: bool) -> list[Call]:
        return [
            Call(
                "aten::embedding", divided_vocabulary(0, 1, False)[0].inputs, divided_vocabulary(0, 1, False)[0].outputs
            ),
            *exchanged_rows(rank, ranks, False),
        ]

    ranks = [looked_up(rank, _RANKS, False) for rank in range(_RANKS)]
    ranks[1][0].inputs[1] = (ranks[1][0].inputs[1] + 1) % 12
    reference = write(tmp_path / "reference", [looked_up(0, 1, False)])
    [origin] = ascend_dump.compare(write(tmp_path / "actual", ranks), reference).origins
    assert (origin.kind, origin.op_type, origin.rank) == ("input", "aten::embedding", 1)


@pytest.mark.parametrize("tensor", ["aten::embedding", "aten::embedding_dense_backward"])
def test_a_wrong_lookup_in_a_part_of_a_vocabulary_is_named(tensor: str, tmp_path: Path) -> None:
    ranks = [divided_vocabulary(rank, _RANKS, is_wrong=False) for rank in range(_RANKS)]
    [call] = [call for call in ranks[1] if call.op_type == tensor]
    call.inputs[1] = (call.inputs[1] + 1) % 6
    reference = write(tmp_path / "reference", [divided_vocabulary(0, 1, is_wrong=False)])
    [origin] = ascend_dump.compare(write(tmp_path / "actual", ranks), reference).origins
    assert (origin.kind, origin.op_type, origin.rank) == ("input", tensor, 1)


def test_a_narrower_type_and_the_name_of_a_tensor_are_evidence(tmp_path: Path) -> None:
    gradient = rng().standard_normal((4, 8)).astype("f4")
    sides = {}
    for name, value in (("actual", gradient.astype("bfloat16").astype("f4")), ("reference", gradient)):
        sides[name] = write(tmp_path / name, [[Call("aten::neg", [value], [-value], "other", parameter="w.grad")]])
    [origin] = ascend_dump.compare(sides["actual"], sides["reference"]).origins
    assert "(w.grad)" in origin.evidence[0]
    assert "all elements of actual are numbers of bfloat16: it was rounded to that type" in origin.evidence


def test_zeros_were_not_rounded_to_a_narrower_type(tmp_path: Path) -> None:
    bias = rng().standard_normal(16).astype("f4")
    sides = {}
    for name, value in (("actual", np.zeros_like(bias)), ("reference", bias)):
        sides[name] = write(tmp_path / name, [[Call("aten::neg", [value], [-value], "other", parameter="b.grad")]])
    [origin] = ascend_dump.compare(sides["actual"], sides["reference"]).origins
    assert not any("rounded" in fact for fact in origin.evidence), origin.evidence
