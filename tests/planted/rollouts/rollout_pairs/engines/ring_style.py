"""A script that generates with OLMo 3 and Cohere 2: functions over lists of weights, and rings of keys and values.

A layer with a sliding window keeps as many tokens as the window is wide, each with its position; a full layer keeps
all. Prompts are read one after another, in pieces, and then decoded together.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, Callable, Optional

import torch
import torch.nn.functional as F
from torch import Tensor

LENGTH = 40


def load_weights(model: Any) -> list[dict[str, Tensor]]:
    """Return the weights of the layers by short names; those of the first and last layer stand behind them."""
    state = model.state_dict()
    layers: list[dict[str, Tensor]] = [{} for _ in range(model.config.num_hidden_layers)]
    ends = {}
    for name, weight in state.items():
        if not name.startswith("model.layers."):
            ends[name.removeprefix("model.").removesuffix(".weight")] = weight
            continue
        number, short = name.removeprefix("model.layers.").split(".", 1)
        layers[int(number)][short.removesuffix(".weight").rpartition(".")[2]] = weight
    for layer in layers:
        layer["qkv"] = torch.cat([layer.pop("q_proj"), layer.pop("k_proj"), layer.pop("v_proj")])
    return [*layers, ends]


def make_rings(config: Any, rows: int, dtype: torch.dtype) -> list[dict[str, Any]]:
    """Return an empty ring for each layer; a position of -1 marks a free slot."""
    rings = []
    for kind in config.layer_types:
        window = config.sliding_window if kind == "sliding_attention" else None
        shape = (rows, window or LENGTH, config.num_key_value_heads, head_size(config))
        rings.append(
            {
                "k": torch.zeros(shape, dtype=dtype),
                "v": torch.zeros(shape, dtype=dtype),
                "places": torch.full(shape[:2], -1),
                "window": window,
            }
        )
    return rings


def head_size(config: Any) -> int:
    return getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads


def put(ring: dict[str, Any], rows: Tensor, positions: Tensor, k: Tensor, v: Tensor) -> None:
    """Write new tokens over the oldest ones."""
    size = ring["k"].shape[1]
    if positions.shape[1] > size:
        k, v, positions = k[:, -size:], v[:, -size:], positions[:, -size:]
    slots = positions % size
    ring["k"][rows[:, None], slots] = k
    ring["v"][rows[:, None], slots] = v
    ring["places"][rows[:, None], slots] = positions


def attend(q: Tensor, k: Tensor, v: Tensor, ring: dict[str, Any], rows: Tensor, positions: Tensor) -> Tensor:
    """Attend to what the ring holds and to the new tokens."""
    keys = torch.cat([ring["k"][rows], k], 1)
    values = torch.cat([ring["v"][rows], v], 1)
    places = torch.cat([ring["places"][rows], positions], 1)
    q = q.unflatten(2, (k.shape[2], -1))
    scores = torch.einsum("btkgd,bskd->bkgts", q, keys) * q.shape[-1] ** -0.5
    visible = (places[:, None] >= 0) & (places[:, None] <= positions[:, :, None])
    if ring["window"] is not None:
        visible = visible & (places[:, None] > positions[:, :, None] - ring["window"])
    scores = scores.masked_fill(~visible[:, None, None], torch.finfo(scores.dtype).min)
    weights = scores.float().softmax(-1).to(v.dtype)
    put(ring, rows, positions, k, v)
    return torch.einsum("bkgts,bskd->btkgd", weights, values).flatten(2)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return (F.rms_norm(x.float(), x.shape[-1:], eps=eps) * weight).to(x.dtype)


def frequencies(parameters: dict[str, Any], head: int) -> Tensor:
    inv_freq = parameters["rope_theta"] ** -(torch.arange(0, head, 2).float() / head)
    if parameters["rope_type"] == "linear":
        inv_freq = inv_freq / parameters["factor"]
    return inv_freq


def rotate_halves(x: Tensor, positions: Tensor, inv_freq: Tensor) -> Tensor:
    angles = positions[..., None, None].float() * inv_freq
    left, right = x.chunk(2, -1)
    cos, sin = angles.cos(), angles.sin()
    return torch.cat([left * cos - right * sin, right * cos + left * sin], -1).to(x.dtype)


def rotate_pairs(x: Tensor, positions: Tensor, inv_freq: Tensor) -> Tensor:
    """Rotate pairs of neighbours as complex numbers."""
    angles = positions[..., None, None].float() * inv_freq
    turns = torch.polar(torch.ones_like(angles), angles)
    pairs = torch.view_as_complex(x.float().unflatten(-1, (-1, 2)).contiguous())
    return torch.view_as_real(pairs * turns).flatten(-2).to(x.dtype)


def olmo3(weights: Any, config: Any, rings: Any, ids: Tensor, positions: Tensor, rows: Tensor) -> Tensor:
    """Return the logits of the last tokens."""
    eps, head = config.rms_norm_eps, head_size(config)
    sizes = [config.num_attention_heads * head, *[config.num_key_value_heads * head] * 2]
    *layers, ends = weights
    x = ends["embed_tokens"][ids]
    for number, (w, ring) in enumerate(zip(layers, rings)):
        inv_freq = frequencies(config.rope_parameters[config.layer_types[number]], head)
        q, k, v = F.linear(x, w["qkv"]).split(sizes, -1)
        q, k = rms_norm(q, w["q_norm"], eps), rms_norm(k, w["k_norm"], eps)
        q, k, v = (part.unflatten(-1, (-1, head)) for part in (q, k, v))
        q, k = rotate_halves(q, positions, inv_freq), rotate_halves(k, positions, inv_freq)
        h = F.linear(attend(q, k, v, ring, rows, positions), w["o_proj"])
        x = x + rms_norm(h, w["post_attention_layernorm"], eps)
        h = F.linear(F.silu(F.linear(x, w["gate_proj"])) * F.linear(x, w["up_proj"]), w["down_proj"])
        x = x + rms_norm(h, w["post_feedforward_layernorm"], eps)
    return F.linear(rms_norm(x[:, -1], ends["norm"], eps), ends["lm_head"]).float()


def cohere2(weights: Any, config: Any, rings: Any, ids: Tensor, positions: Tensor, rows: Tensor) -> Tensor:
    """Return the logits of the last tokens; attention and MLP are parallel, and only sliding layers rotate."""
    eps, head = config.layer_norm_eps, head_size(config)
    sizes = [config.num_attention_heads * head, *[config.num_key_value_heads * head] * 2]
    inv_freq = frequencies(config.rope_parameters, head)
    *layers, ends = weights
    x = ends["embed_tokens"][ids]
    for number, (w, ring) in enumerate(zip(layers, rings)):
        h = F.layer_norm(x, x.shape[-1:], w["input_layernorm"], None, eps)
        q, k, v = (part.unflatten(-1, (-1, head)) for part in F.linear(h, w["qkv"]).split(sizes, -1))
        if config.layer_types[number] == "sliding_attention":
            q, k = rotate_pairs(q, positions, inv_freq), rotate_pairs(k, positions, inv_freq)
        a = F.linear(attend(q, k, v, ring, rows, positions), w["o_proj"])
        m = F.linear(F.silu(F.linear(h, w["gate_proj"])) * F.linear(h, w["up_proj"]), w["down_proj"])
        x = x + a + m
    x = F.layer_norm(x[:, -1], x.shape[-1:], ends["norm"], None, eps)
    return (F.linear(x, ends["embed_tokens"]) * config.logit_scale).float()


FORWARDS = {"olmo3": olmo3, "cohere2": cohere2}


@torch.no_grad()
def serve(
    model: Any,
    prompts: Sequence[Sequence[int]],
    steps: int,
    record: Callable[[Any], AbstractContextManager[Any]],
    piece: int = 64,
    forced: Optional[Sequence[Sequence[int]]] = None,
) -> list[tuple[list[int], list[float]]]:
    """Answer prompts and return the tokens and log-probabilities of each. piece: tokens of a prompt read at once."""
    forward, weights, config = FORWARDS[model.config.model_type], load_weights(model), model.config
    rings = make_rings(config, len(prompts), model.dtype)
    results: list[tuple[list[int], list[float]]] = [([], []) for _ in prompts]
    calls = 0
    with record(None) as capture:

        def run(ids: Tensor, positions: Tensor, rows: Tensor) -> Tensor:
            nonlocal calls
            if capture is not None and calls:
                capture.step()
            calls += 1
            return forward(weights, config, rings, ids, positions, rows)

        for step in range(steps):
            if step == 0:
                logits = torch.cat([read(run, prompt, row, piece) for row, prompt in enumerate(prompts)])
            else:
                ids = torch.tensor([[tokens[-1]] for tokens, _ in results])
                positions = torch.tensor([[len(prompt) + step - 1] for prompt in prompts])
                logits = run(ids, positions, torch.arange(len(prompts)))
            odds = logits.log_softmax(-1)
            chosen = torch.tensor([line[step] for line in forced]) if forced else odds.argmax(-1)
            for (tokens, scores), token, line in zip(results, chosen.tolist(), odds):
                tokens.append(token)
                scores.append(line[token].item())
    return results


def read(run: Callable[..., Tensor], prompt: Sequence[int], row: int, piece: int) -> Tensor:
    """Read a prompt in pieces, and return the logits of its last token."""
    logits = torch.empty(0)
    for start in range(0, len(prompt), piece):
        part = torch.tensor([list(prompt[start : start + piece])])
        positions = torch.arange(start, start + part.shape[1])[None]
        logits = run(part, positions, torch.tensor([row]))
    return logits
