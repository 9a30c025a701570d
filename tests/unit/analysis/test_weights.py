"""Weights are recognised by their content, under any name and in any layout."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any, Optional

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file

from ascend_dump import compare_weights
from ascend_dump.analysis.weights import WeightComparison
from ascend_dump.cli import Exit, main

State = dict[str, np.ndarray]
HEADS, GROUPS, SIZE, HIDDEN, INNER, LAYERS = 8, 4, 8, 64, 96, 4


def llama(seed: int = 0) -> State:
    """Return the weights of a Llama with grouped queries and biases, as Hugging Face names them."""
    generator = np.random.default_rng(seed)

    def random(*shape: int) -> np.ndarray:
        return generator.standard_normal(shape).astype(np.float32) * 0.02

    state = {"model.embed_tokens.weight": random(128, HIDDEN), "model.norm.weight": np.ones(HIDDEN, np.float32)}
    state["lm_head.weight"] = random(128, HIDDEN)
    for layer in range(LAYERS):
        attention, mlp = f"model.layers.{layer}.self_attn", f"model.layers.{layer}.mlp"
        for name, count in (("q", HEADS), ("k", GROUPS), ("v", GROUPS)):
            state[f"{attention}.{name}_proj.weight"] = random(count * SIZE, HIDDEN)
            state[f"{attention}.{name}_proj.bias"] = random(count * SIZE)
        state[f"{attention}.o_proj.weight"] = random(HIDDEN, HEADS * SIZE)
        state[f"{mlp}.gate_proj.weight"] = random(INNER, HIDDEN)
        state[f"{mlp}.up_proj.weight"] = random(INNER, HIDDEN)
        state[f"{mlp}.down_proj.weight"] = random(HIDDEN, INNER)
        state[f"model.layers.{layer}.input_layernorm.weight"] = np.ones(HIDDEN, np.float32)
    return state


def vllm(state: State) -> State:
    """Return the same weights with q, k and v joined, and gate and up."""
    fused: State = {}
    for name, value in state.items():
        if "q_proj" in name:
            parts = [state[name.replace("q_proj", f"{part}_proj")] for part in "qkv"]
            fused[name.replace("q_proj", "qkv_proj")] = np.concatenate(parts)
        elif "gate_proj" in name:
            up = state[name.replace("gate", "up")]
            fused[name.replace("gate_proj", "gate_up_proj")] = np.concatenate([value, up])
        elif not any(part in name for part in ("k_proj", "v_proj", "up_proj")):
            fused[name] = value
    return fused


def megatron(state: State) -> State:
    """Return the same weights under other names, with q, k and v interleaved by groups of heads."""
    renamed: State = {}
    for name, value in vllm(state).items():
        new = name.replace("model.layers", "decoder.layers").replace("self_attn.o_proj", "self_attention.linear_proj")
        new = new.replace("self_attn.qkv_proj", "self_attention.linear_qkv").replace("mlp.down_proj", "mlp.linear_fc2")
        new = new.replace("mlp.gate_up_proj", "mlp.linear_fc1").replace("model.embed_tokens", "embedding.word")
        if "qkv" in name:
            parts = np.split(value, [HEADS * SIZE, (HEADS + GROUPS) * SIZE])
            grouped = [part.reshape(GROUPS, -1, *value.shape[1:]) for part in parts]
            value = np.concatenate(grouped, axis=1).reshape(value.shape)
        renamed[new.replace("model.norm", "decoder.final_norm").replace("lm_head", "output_layer")] = value
    return renamed


def cast(state: State) -> State:
    return {name: value.astype(ml_dtypes.bfloat16) for name, value in state.items()}


def changed(name: str, change: Callable[[np.ndarray], np.ndarray]) -> Callable[[State], State]:
    return lambda state: {**state, name: change(state[name].copy())}


def compared(tmp_path: Path, actual: State, reference: State, earlier: Optional[State] = None) -> WeightComparison:
    paths = []
    for number, state in enumerate((actual, reference, earlier)):
        if state is not None:
            paths.append(tmp_path / f"{number}.safetensors")
            save_file({name: np.ascontiguousarray(value) for name, value in state.items()}, paths[-1])
    return compare_weights(paths[0], paths[1], earlier=paths[2] if earlier is not None else None)


def lines(comparison: WeightComparison) -> dict[str, list[str]]:
    """Return the details of the groups by relation."""
    grouped: dict[str, list[str]] = {}
    for relation, _, details in comparison.groups():
        grouped.setdefault(relation, []).append(details)
    return grouped


def test_the_same_weights_are_equal(tmp_path: Path) -> None:
    comparison = compared(tmp_path, llama(), llama())
    assert (comparison.verdict, comparison.counts) == ("equal", {"equal": len(llama())})
    assert len(comparison.groups()) == 1


def test_joined_weights_are_known_by_their_rows(tmp_path: Path) -> None:
    comparison = compared(tmp_path, vllm(llama()), llama())
    assert (comparison.verdict, comparison.counts["concatenated"]) == ("equal", 3 * LAYERS)
    assert sorted(lines(comparison)["concatenated"]) == [
        "elements 0-63 q_proj, elements 64-95 k_proj, elements 96-127 v_proj",
        "rows 0-63 q_proj, rows 64-95 k_proj, rows 96-127 v_proj",
        "rows 0-95 gate_proj, rows 96-191 up_proj",
    ]
    turned = compared(tmp_path, llama(), vllm(llama()))
    assert (turned.verdict, turned.counts["split"]) == ("equal", 8 * LAYERS)


def test_interleaved_weights_under_other_names(tmp_path: Path) -> None:
    comparison = compared(tmp_path, megatron(llama()), llama())
    assert comparison.verdict == "equal"
    texts = lines(comparison)["concatenated"]
    assert "in 4 groups of 16 rows of q_proj, 8 rows of k_proj, 8 rows of v_proj" in texts
    assert "in 4 groups of 16 elements of q_proj, 8 elements of k_proj, 8 elements of v_proj" in texts
    pairs = {finding.actual[0]: finding.reference for finding in comparison.findings if len(finding.reference) == 1}
    assert pairs["decoder.layers.2.mlp.linear_fc2.weight"] == ("model.layers.2.mlp.down_proj.weight",)


def test_a_cast_is_noise_in_any_layout(tmp_path: Path) -> None:
    comparison = compared(tmp_path, cast(megatron(llama())), llama())
    assert comparison.verdict == "noise"
    assert set(comparison.counts) == {"cast", "concatenated"}
    assert all("float32 in the reference, bfloat16 here" in details for _, _, details in comparison.groups())


def test_weights_that_went_through_another_type(tmp_path: Path) -> None:
    through = {name: value.astype(np.float32) for name, value in cast(llama()).items()}
    comparison = compared(tmp_path, through, llama())
    assert (comparison.verdict, set(comparison.counts)) == ("noise", {"equal", "cast"})
    assert lines(comparison)["cast"] == ["one side is the other, rounded to bfloat16"]


def swap(value: np.ndarray) -> np.ndarray:
    value[[5, 9]] = value[[9, 5]]
    return value


def one_element(value: np.ndarray) -> np.ndarray:
    value[7, 3] += 0.5
    return value


def rotary(value: np.ndarray) -> np.ndarray:
    """Interleave the halves of each head, as the original Llama has them."""
    return value.reshape(-1, 2, SIZE // 2, HIDDEN).transpose(0, 2, 1, 3).reshape(value.shape)


OUTPUT, KEY, UP = (f"model.layers.2.{name}_proj.weight" for name in ("self_attn.o", "self_attn.k", "mlp.up"))
FAULTS: dict[str, tuple[Callable[[State], State], str, str, str]] = {
    "two rows": (changed(OUTPUT, swap), OUTPUT, "permuted", "rows 5 and 9 are swapped"),
    "one element": (changed(KEY, one_element), KEY, "different", "row 7: 1 of 64 elements differ"),
    "a factor": (changed(UP, lambda value: value * np.float32(0.5)), UP, "scaled", "scaled by 0.5"),
    "another layer": (
        lambda state: {**state, UP: state[UP.replace("2", "1")]},
        UP,
        "misplaced",
        "has the values of model.layers.1.mlp.up_proj.weight",
    ),
    "one layer's rotary": (changed(KEY, rotary), KEY, "permuted", "in each block of 8 rows 2 parts of 4 rows"),
    "zeros": (changed(UP, np.zeros_like), UP, "different", "6144 of 6144 elements differ"),
    "NaN": (
        changed(UP, lambda value: value * np.float32("nan")),
        UP,
        "different",
        "6144 of 6144 elements are NaN or Inf on one side only",
    ),
}


def interleaved(value: np.ndarray) -> np.ndarray:
    return value.reshape(-1, 2, SIZE // 2, *value.shape[1:]).swapaxes(1, 2).reshape(value.shape)


def with_interleaved(names: str, *layers: int, state: Optional[State] = None) -> State:
    """Return weights with interleaved heads in these layers: names is "qk", or one of both."""
    chosen = {f"model.layers.{layer}.self_attn.{name}_proj.weight" for layer in layers for name in names}
    state = state or llama()
    return {name: interleaved(value) if name in chosen else value for name, value in state.items()}


def test_an_order_that_one_layer_lacks_is_a_difference(tmp_path: Path) -> None:
    for export in (dict, cast):
        state = with_interleaved("k", 0, 1, 3, state=with_interleaved("q", *range(LAYERS)))
        comparison = compared(tmp_path, export(state), llama())
        [finding] = [finding for finding in comparison.findings if finding.verdict == "different"]
        assert (comparison.verdict, finding.relation) == ("different", "permuted")
        assert finding.actual == ("model.layers.2.self_attn.k_proj.weight",)
        assert "in the order of the reference, but in 3 other layers in each block of 8 rows" in finding.text


def test_an_order_that_one_of_two_layers_lacks(tmp_path: Path) -> None:
    reference = {name: value for name, value in llama().items() if not any(f".{n}." in name for n in (2, 3))}
    state = with_interleaved("k", 0, state=with_interleaved("q", 0, 1, state=reference))
    comparison = compared(tmp_path, state, reference)
    [finding] = [finding for finding in comparison.findings if finding.verdict == "different"]
    assert finding.actual == ("model.layers.1.self_attn.k_proj.weight",)
    comparison = compared(tmp_path, with_interleaved("qk", 0, state=reference), reference)
    different = {finding.actual for finding in comparison.findings if finding.verdict == "different"}
    assert different == {(f"model.layers.0.self_attn.{name}_proj.weight",) for name in "qk"}


def test_rows_that_are_alike_have_any_order(tmp_path: Path) -> None:
    name = "model.layers.2.self_attn.k_proj.weight"
    reference = changed(name, np.zeros_like)(llama())
    comparison = compared(tmp_path, with_interleaved("qk", *range(LAYERS), state=reference), reference)
    assert comparison.verdict == "equal"
    transposed = {name: value.T if "o_proj" in name else value for name, value in reference.items()}
    assert compared(tmp_path, transposed, reference).verdict == "equal"
    name = "model.layers.2.self_attn.o_proj.weight"
    assert compared(tmp_path, changed(name, np.transpose)(transposed), reference).verdict == "different"
    symmetric = changed(name, lambda value: value + value.T)
    assert compared(tmp_path, symmetric(transposed), symmetric(reference)).verdict == "equal"


@pytest.mark.parametrize("layout", [dict, cast], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_named(name: str, layout: Callable[[State], State], tmp_path: Path) -> None:
    fault, weight, relation, words = FAULTS[name]
    comparison = compared(tmp_path, layout(fault(llama())), layout(llama()))
    assert comparison.verdict == "different"
    [finding] = [finding for finding in comparison.findings if finding.verdict == "different"]
    assert (finding.relation, finding.actual) == (relation, (weight,))
    assert words in f"{finding.text} {finding.measure}"


@pytest.mark.parametrize("name", ["one element", "a factor", "zeros"])
@pytest.mark.parametrize("layout", [vllm, megatron])
def test_a_fault_in_a_joined_weight_is_named(name: str, layout: Callable[[State], State], tmp_path: Path) -> None:
    fault, weight, _, _ = FAULTS[name]
    comparison = compared(tmp_path, layout(fault(llama())), llama())
    [finding] = [finding for finding in comparison.findings if finding.verdict == "different"]
    assert weight in finding.reference
    assert finding.relative


@pytest.mark.parametrize(("order", "verdict"), [("qkv", "equal"), ("qvk", "different")])
def test_an_order_of_joined_rows_that_the_name_denies(order: str, verdict: str, tmp_path: Path) -> None:
    """All layers have the same order, so that only the name shows that keys and values are exchanged."""
    fused = vllm(llama())
    for layer in range(LAYERS):
        attention = f"model.layers.{layer}.self_attn"
        for kind in ("weight", "bias"):
            parts = [llama()[f"{attention}.{part}_proj.{kind}"] for part in order]
            fused[f"{attention}.qkv_proj.{kind}"] = np.concatenate(parts)
    comparison = compared(tmp_path, fused, llama())
    assert comparison.verdict == verdict
    named = [text for text in lines(comparison)["concatenated"] if "its name says q_proj, k_proj, v_proj" in text]
    assert len(named) == (0 if verdict == "equal" else 2)  # weights and biases


def test_rotary_rows_of_all_layers_are_a_layout(tmp_path: Path) -> None:
    state = {
        name: rotary(value) if name.endswith(("q_proj.weight", "k_proj.weight")) else value
        for name, value in llama().items()
    }
    comparison = compared(tmp_path, state, llama())
    assert (comparison.verdict, comparison.counts["permuted"]) == ("equal", 2 * LAYERS)
    assert lines(comparison)["permuted"] == [
        "in each block of 8 rows 2 parts of 4 rows are interleaved, which the reference has apart"
    ]


def test_gate_and_up_swapped_in_one_layer(tmp_path: Path) -> None:
    fused = vllm(llama())
    name = "model.layers.1.mlp.gate_up_proj.weight"
    fused[name] = np.concatenate(np.split(fused[name], 2)[::-1])
    comparison = compared(tmp_path, fused, llama())
    [finding] = [finding for finding in comparison.findings if finding.verdict != "equal"]
    assert (finding.verdict, finding.actual) == ("different", (name,))
    assert finding.text.startswith("rows 0-95 up_proj, rows 96-191 gate_proj: its name says gate_proj, up_proj")


def test_transposed_and_split_along_the_last_axis(tmp_path: Path) -> None:
    state = {}
    for name, value in llama().items():
        if "down_proj" in name:
            state.update({f"{name}.{number}": part for number, part in enumerate(np.split(value, 2, axis=1))})
        else:
            state[name] = value.T if "up_proj" in name or "q_proj.weight" in name else value
    comparison = compared(tmp_path, state, llama())
    assert (comparison.verdict, comparison.counts["transposed"]) == ("equal", 2 * LAYERS)
    assert lines(comparison)["split"] == ["columns 0-47 0, columns 48-95 1"]


def test_stacked_experts(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    apart = {
        f"layers.{layer}.experts.{expert}.{name}.weight": generator.standard_normal((24, 32)).astype(np.float32)
        for layer in range(2)
        for expert in range(3)
        for name in ("w1", "w3")
    }
    stacked = {
        f"layers.{layer}.experts.w13": np.stack(
            [
                np.concatenate([apart[f"layers.{layer}.experts.{expert}.{name}.weight"] for name in ("w1", "w3")])
                for expert in range(3)
            ]
        )
        for layer in range(2)
    }
    assert compared(tmp_path, stacked, apart).counts == {"concatenated": 2}
    turned = {name: value.transpose(0, 2, 1) for name, value in stacked.items()}
    comparison = compared(tmp_path, turned, apart)
    assert (comparison.verdict, comparison.counts) == ("equal", {"concatenated": 2})
    assert lines(comparison)["concatenated"][0].startswith("transposed, columns 0-23 0.w1, columns 24-47 0.w3")


def test_a_part_of_a_weight(tmp_path: Path) -> None:
    state = {name: value[: len(value) // 2] if "q_proj" in name else value for name, value in llama().items()}
    comparison = compared(tmp_path, state, llama())
    assert (comparison.verdict, comparison.counts["part"]) == ("unmatched", 2 * LAYERS)
    assert sorted(lines(comparison)["part"]) == ["elements 32-63 are missing", "rows 32-63 are missing"]


def test_missing_added_and_tied_weights(tmp_path: Path) -> None:
    state = llama()
    bias = state.pop("model.layers.1.self_attn.k_proj.bias")
    state["extra.weight"] = bias[:16] + 1
    state["tied.weight"] = state["lm_head.weight"]
    comparison = compared(tmp_path, state, llama())
    assert comparison.verdict == "unmatched"
    named = {(finding.relation, *finding.actual, *finding.reference) for finding in comparison.findings if finding.text}
    assert named == {
        ("missing", "model.layers.1.self_attn.k_proj.bias"),
        ("added", "extra.weight"),
        ("equal", "tied.weight", "lm_head.weight"),
    }


def updated(state: State, size: float, layers: str = "") -> State:
    generator = np.random.default_rng(7)
    return {
        name: (value + generator.standard_normal(value.shape) * size * 0.02).astype(np.float32)
        if layers in name
        else value
        for name, value in state.items()
    }


@pytest.mark.parametrize("layout", [dict, vllm, megatron])
def test_a_stale_layer(layout: Callable[[State], State], tmp_path: Path) -> None:
    comparison = compared(tmp_path, layout(updated(llama(), 0.01, "layers.1.")), llama())
    stale = [finding for finding in comparison.findings if finding.verdict == "different"]
    assert {finding.relation for finding in stale} == {"stale"}
    assert all("layers.1." in name for finding in stale for name in finding.actual)
    assert len({name for finding in stale for name in finding.reference}) == 11


@pytest.mark.parametrize("layout", [dict, vllm, megatron])
def test_an_update_of_everything_is_paired(layout: Callable[[State], State], tmp_path: Path) -> None:
    comparison = compared(tmp_path, layout(updated(llama(), 0.01)), llama())
    assert set(comparison.counts) == {"updated"}
    assert len({name for finding in comparison.findings for name in finding.reference}) == len(llama())


def test_weights_of_an_earlier_state_are_stale(tmp_path: Path) -> None:
    earlier, now = llama(), updated(llama(), 1.0)
    state = {name: (earlier if "layers.3." in name else now)[name] for name in now}
    comparison = compared(tmp_path, state, now, earlier)
    stale = [finding for finding in comparison.findings if finding.verdict == "different"]
    assert {(finding.relation, "equal to" in finding.measure) for finding in stale} == {("stale", True)}
    assert {name for finding in stale for name in finding.actual} == {name for name in now if "layers.3." in name}


def test_unrelated_weights_are_different(tmp_path: Path) -> None:
    comparison = compared(tmp_path, llama(1), llama())
    assert comparison.verdict == "different"
    assert comparison.counts == {"equal": 1 + LAYERS, "different": len(llama()) - 1 - LAYERS}


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_any_cut_of_the_rows_is_put_together_again(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Rows of several weights, in pieces of any size and any order, have partners that are all right."""
    sizes = data.draw(st.lists(st.integers(1, 9), min_size=1, max_size=4))
    generator = np.random.default_rng(data.draw(st.integers(0, 9)))
    reference = {f"part{number}.weight": generator.standard_normal((size, 16)) for number, size in enumerate(sizes)}
    rows = [(name, row) for name, value in reference.items() for row in range(len(value))]
    order = data.draw(st.permutations(rows))
    actual = {"joined.weight": np.stack([reference[name][row] for name, row in order])}
    comparison = compared(tmp_path_factory.mktemp("cut"), actual, reference)
    [finding] = comparison.findings
    assert finding.reference == tuple(dict.fromkeys(name for name, _ in order))
    for part in finding.parts:
        assert part.unit == "rows"
        expected = reference[part.reference][part.reference_start : part.reference_start + part.length]
        assert (actual[part.actual][part.start : part.start + part.length] == expected).all()


def shell(*words: object) -> tuple[int, str]:
    out = io.StringIO()
    with redirect_stdout(out):
        code = main([str(word) for word in words])
    return code, out.getvalue()


def test_the_verb_prints_few_lines_and_its_exit_code(tmp_path: Path) -> None:
    states = {"hf": llama(), "fused": vllm(llama()), "stale": vllm(updated(llama(), 0.01, "layers.1."))}
    for name, state in states.items():
        save_file(state, tmp_path / f"{name}.safetensors")
    path = {name: tmp_path / f"{name}.safetensors" for name in states}
    code, text = shell("compare-weights", path["fused"], path["hf"])
    assert (code, text.splitlines()[0]) == (Exit.OK, "equal: 27 weights against 47: 15 equal, 12 concatenated")
    code, text = shell("compare-weights", path["stale"], path["hf"])
    assert code == Exit.DIFFERENT
    assert len(text.splitlines()) <= 25
    assert text.splitlines()[1].lstrip().startswith("stale")
    code, text = shell("compare-weights", path["hf"], tmp_path / "nothing")
    assert code == Exit.UNREADABLE


def test_the_document_follows_its_schema(tmp_path: Path) -> None:
    pytest.importorskip("jsonschema")
    from schemas import faults_of

    save_file(llama(), tmp_path / "a.safetensors")
    save_file(vllm(FAULTS["one element"][0](llama())), tmp_path / "b.safetensors")
    code, text = shell("compare-weights", tmp_path / "b.safetensors", tmp_path / "a.safetensors", "--json")
    document: Any = json.loads(text)
    assert (code, document["schema"], faults_of(document)) == (Exit.DIFFERENT, "ascend-dump/compare-weights/1", [])
    assert document["findings"][0]["parts"][1]["reference_start"] == 0


def test_values_that_no_float_has_are_compared_exactly(tmp_path: Path) -> None:
    large = np.array([2**60, 2**60 + 1], np.int64)
    state = {
        "ids": large,
        "rotary.freqs": np.exp(1j * np.arange(32)).astype(np.complex64),
        "flags": np.ones(3, bool),
        "scalar": np.array(3.0, np.float32),
        "empty": np.zeros((0, 4), np.float32),
    }
    assert compared(tmp_path, state, state).counts == {"equal": 5}
    other = {**state, "ids": large + 1, "rotary.freqs": state["rotary.freqs"].conj(), "flags": ~state["flags"]}
    comparison = compared(tmp_path, state, other)
    different = {name for finding in comparison.findings if finding.verdict == "different" for name in finding.actual}
    assert different == {"ids", "rotary.freqs", "flags"}


def test_names_from_a_file_are_no_format_and_no_escape_code(tmp_path: Path) -> None:
    names = ["{0}.1.{", "}\x1b[31m.2\n.w", f"layers.{'9' * 5000}.w", "", "7", "١.w"]
    state = {name: np.full((2, 16), number, np.float32) for number, name in enumerate(names, 1)}
    changed_state = {name: value + 0.25 * np.arange(32).reshape(2, 16) for name, value in state.items()}
    changed_state = {name: value.astype(np.float32) for name, value in changed_state.items()}
    comparison = compared(tmp_path, changed_state, state)
    assert {name for finding in comparison.findings for name in finding.actual} == set(names)
    _, text = shell("compare-weights", tmp_path / "0.safetensors", tmp_path / "1.safetensors", "--all")
    assert "\x1b" not in text
