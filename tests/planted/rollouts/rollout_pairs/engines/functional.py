"""A simple engine without modules: functions over a tree of weights, and a static cache with one row a request.

It generates with Gemma 2 and GPT-NeoX. Requests are prefilled one after another and decoded together.
"""

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, Callable, Optional

import torch
import torch.nn.functional as F
from torch import Tensor

Tree = dict[str, Any]

LENGTH = 32


def load_gemma2(reference: Any) -> Tree:
    """Return the weights of Gemma 2; norms get their one added, products are stored transposed."""
    state = reference.state_dict()

    def layer(number: int) -> Tree:
        def take(name: str) -> Tensor:
            return state[f"model.layers.{number}.{name}.weight"]

        return {
            "attn_norm": 1.0 + take("input_layernorm").float(),
            "attn_post_norm": 1.0 + take("post_attention_layernorm").float(),
            "mlp_norm": 1.0 + take("pre_feedforward_layernorm").float(),
            "mlp_post_norm": 1.0 + take("post_feedforward_layernorm").float(),
            "wq": take("self_attn.q_proj").T.contiguous(),
            "wkv": torch.cat([take("self_attn.k_proj"), take("self_attn.v_proj")]).T.contiguous(),
            "wo": take("self_attn.o_proj").T.contiguous(),
            "w_gate": take("mlp.gate_proj").T.contiguous(),
            "w_up": take("mlp.up_proj").T.contiguous(),
            "w_down": take("mlp.down_proj").T.contiguous(),
        }

    return {
        "embed": state["model.embed_tokens.weight"],
        "layers": [layer(number) for number in range(reference.config.num_hidden_layers)],
        "final_norm": 1.0 + state["model.norm.weight"].float(),
    }


def load_neox(reference: Any) -> Tree:
    """Return the weights of GPT-NeoX; its fused projection is split, as it is interleaved by heads."""
    state, config = reference.state_dict(), reference.config
    heads = config.num_attention_heads

    def layer(number: int) -> Tree:
        def take(name: str) -> Tensor:
            return state[f"gpt_neox.layers.{number}.{name}"]

        fused = take("attention.query_key_value.weight").view(heads, 3, -1, config.hidden_size)
        biases = take("attention.query_key_value.bias").view(heads, 3, -1)
        tree = {f"w{name}": fused[:, part].flatten(0, 1) for part, name in enumerate("qkv")}
        tree.update({f"b{name}": biases[:, part].flatten() for part, name in enumerate("qkv")})
        tree.update({"wo": take("attention.dense.weight"), "bo": take("attention.dense.bias")})
        for name in ("dense_h_to_4h", "dense_4h_to_h"):
            tree[f"w_{name}"], tree[f"b_{name}"] = take(f"mlp.{name}.weight"), take(f"mlp.{name}.bias")
        for name in ("input_layernorm", "post_attention_layernorm"):
            tree[f"w_{name}"], tree[f"b_{name}"] = take(f"{name}.weight"), take(f"{name}.bias")
        return tree

    return {
        "embed": state["gpt_neox.embed_in.weight"],
        "layers": [layer(number) for number in range(config.num_hidden_layers)],
        "w_final": state["gpt_neox.final_layer_norm.weight"],
        "b_final": state["gpt_neox.final_layer_norm.bias"],
        "head": state["embed_out.weight"] if "embed_out.weight" in state else state["lm_head.weight"],
    }


def new_cache(config: Any, rows: int, dtype: torch.dtype) -> list[tuple[Tensor, Tensor]]:
    """Return zeros for the keys and values of each layer."""
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    shape = (rows, LENGTH, heads, head)
    return [(torch.zeros(shape, dtype=dtype), torch.zeros(shape, dtype=dtype)) for _ in range(config.num_hidden_layers)]


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    wide = x.float()
    scale = torch.rsqrt((wide * wide).mean(-1, keepdim=True) + eps)
    return (wide * scale * weight).to(x.dtype)


def rope(x: Tensor, positions: Tensor, theta: float, width: int) -> Tensor:
    """Rotate the first `width` elements of each head."""
    inv_freq = theta ** -(torch.arange(0, width, 2).float() / width)
    angles = positions[..., None, None].float() * inv_freq
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    first, second, rest = x.split([width // 2, width // 2, x.shape[-1] - width], -1)
    return torch.cat([first * cos - second * sin, first * sin + second * cos, rest], -1)


def update(cache: tuple[Tensor, Tensor], rows: Tensor, positions: Tensor, k: Tensor, v: Tensor) -> None:
    """Write the keys and values of new tokens."""
    cache[0][rows[:, None], positions] = k
    cache[1][rows[:, None], positions] = v


def attend(
    q: Tensor,
    cache: tuple[Tensor, Tensor],
    rows: Tensor,
    positions: Tensor,
    scale: float,
    window: Optional[int] = None,
    softcap: Optional[float] = None,
) -> Tensor:
    """Return the attention of new tokens to all that the cache has of their rows."""
    k, v = cache[0][rows], cache[1][rows]
    q = q.unflatten(2, (k.shape[2], -1))
    logits = torch.einsum("btkgh,bskh->bkgts", q, k) * scale
    if softcap is not None:
        logits = softcap * torch.tanh(logits / softcap)
    columns = torch.arange(LENGTH)
    mask = columns <= positions[..., None]
    if window is not None:
        mask = mask & (columns > positions[..., None] - window)
    logits = torch.where(mask[:, None, None], logits, -2.0e38)
    probs = torch.softmax(logits.float(), -1).to(q.dtype)
    return torch.einsum("bkgts,bskh->btkgh", probs, v).flatten(2)


def gemma2(params: Tree, config: Any, cache: Any, ids: Tensor, positions: Tensor, rows: Tensor) -> Tensor:
    """Return the logits of the last tokens."""
    eps, head = config.rms_norm_eps, config.head_dim
    theta = config.rope_parameters["rope_theta"]
    x = F.embedding(ids, params["embed"])
    x = x * torch.tensor(math.sqrt(config.hidden_size), dtype=x.dtype)
    for number, p in enumerate(params["layers"]):
        window = config.sliding_window if config.layer_types[number] == "sliding_attention" else None
        h = rms_norm(x, p["attn_norm"], eps)
        q = (h @ p["wq"]).unflatten(-1, (-1, head))
        k, v = (h @ p["wkv"]).unflatten(-1, (2, -1, head)).unbind(2)
        q, k = rope(q, positions, theta, head), rope(k, positions, theta, head)
        update(cache[number], rows, positions, k, v)
        scale = config.query_pre_attn_scalar**-0.5
        h = attend(q, cache[number], rows, positions, scale, window, config.attn_logit_softcapping)
        x = x + rms_norm(h @ p["wo"], p["attn_post_norm"], eps)
        h = rms_norm(x, p["mlp_norm"], eps)
        h = (F.gelu(h @ p["w_gate"], approximate="tanh") * (h @ p["w_up"])) @ p["w_down"]
        x = x + rms_norm(h, p["mlp_post_norm"], eps)
    x = rms_norm(x[:, -1], params["final_norm"], eps)
    logits = x @ params["embed"].T
    logits = config.final_logit_softcapping * torch.tanh(logits / config.final_logit_softcapping)
    return logits.float()


def neox(params: Tree, config: Any, cache: Any, ids: Tensor, positions: Tensor, rows: Tensor) -> Tensor:
    """Return the logits of the last tokens."""
    head = config.hidden_size // config.num_attention_heads
    rotary = config.rope_parameters
    width = int(head * rotary.get("partial_rotary_factor", 1.0))
    size = (config.hidden_size,)
    x = F.embedding(ids, params["embed"])
    for number, p in enumerate(params["layers"]):
        h = F.layer_norm(x, size, p["w_input_layernorm"], p["b_input_layernorm"], config.layer_norm_eps)
        q = F.linear(h, p["wq"], p["bq"]).unflatten(-1, (-1, head))
        k = F.linear(h, p["wk"], p["bk"]).unflatten(-1, (-1, head))
        v = F.linear(h, p["wv"], p["bv"]).unflatten(-1, (-1, head))
        q = rope(q, positions, rotary["rope_theta"], width)
        k = rope(k, positions, rotary["rope_theta"], width)
        update(cache[number], rows, positions, k, v)
        a = F.linear(attend(q, cache[number], rows, positions, head**-0.5), p["wo"], p["bo"])
        h = F.layer_norm(
            x, size, p["w_post_attention_layernorm"], p["b_post_attention_layernorm"], config.layer_norm_eps
        )
        h = F.gelu(F.linear(h, p["w_dense_h_to_4h"], p["b_dense_h_to_4h"]))
        h = F.linear(h, p["w_dense_4h_to_h"], p["b_dense_4h_to_h"])
        x = x + a + h
    x = F.layer_norm(x[:, -1], size, params["w_final"], params["b_final"], config.layer_norm_eps)
    return F.linear(x, params["head"]).float()


@torch.no_grad()
def serve(
    forward: Callable[..., Tensor],
    params: Tree,
    config: Any,
    prompts: Sequence[Sequence[int]],
    steps: int,
    record: Callable[[Any], AbstractContextManager[Any]],
    dtype: torch.dtype = torch.float32,
) -> list[tuple[list[int], list[float]]]:
    """Answer prompts and return the tokens and log-probabilities of each."""
    cache = new_cache(config, len(prompts), dtype)
    results: list[tuple[list[int], list[float]]] = [([], []) for _ in prompts]
    with record(None) as capture:

        def run(ids: Tensor, positions: Tensor, rows: Tensor, is_first: bool = False) -> Tensor:
            if capture is not None and not is_first:
                capture.step()
            return forward(params, config, cache, ids, positions, rows)

        for step in range(steps):
            if step == 0:
                lines = [
                    run(torch.tensor([list(prompt)]), torch.arange(len(prompt))[None], torch.tensor([row]), row == 0)
                    for row, prompt in enumerate(prompts)
                ]
                logits = torch.cat(lines)
            else:
                ids = torch.tensor([[tokens[-1]] for tokens, _ in results])
                positions = torch.tensor([[len(prompt) + step - 1] for prompt in prompts])
                logits = run(ids, positions, torch.arange(len(prompts)))
            odds = logits.log_softmax(-1)
            chosen = odds.argmax(-1)
            for (tokens, scores), token, line in zip(results, chosen.tolist(), odds):
                tokens.append(token)
                scores.append(line[token].item())
    return results
