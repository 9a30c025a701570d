"""Faults in the engines of the `late-` cases."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Optional

import torch

from rollout_pairs import hf, late_serving
from rollout_pairs.cases import Case, Place, Scores, places
from rollout_pairs.designs import build
from rollout_pairs.faults_transformers import CLEAR, stale
from rollout_pairs.hf import Record
from rollout_pairs.late_serving import SHARED, TRAINERS
from rollout_pairs.mutation import mutate
from rollout_pairs.scenarios import ONE, THREE

Changes = Sequence[tuple[str, str]]

_MODULES = {name: f"rollout_pairs.engines.{name}_style" for name in ("ring", "packed", "quant")}


def _case(
    engine: str,
    name: str,
    design: str,
    trainer: str,
    *accepted: str,
    changes: Changes = (),
    edit: Optional[Callable[[Any], object]] = None,
    more: tuple[Place, ...] = (),
    bound: float = CLEAR,
    attention: str = "eager",
    **options: Any,
) -> Case:
    """Return the case of a fault in an engine.

    edit: of the model whose weights are loaded; attention: of the trainer; options: of the engine.
    """

    def run(a: Record, b: Record, folder: Path) -> tuple[Scores, Scores]:
        values = dict(options)
        if changes:
            values["code"] = mutate(_MODULES[engine], changes, folder)
        reference = build(design)
        if edit is not None:
            with torch.no_grad():
                edit(reference)
        answers = getattr(late_serving, engine)(reference, values.pop("prompts", THREE), a, **values)
        return hf.odds_of(answers), TRAINERS[trainer](build(design, attention=attention), answers, b)

    return Case(f"late-{engine}-{design}-{name}", run, bound, places=(*places(*accepted), *more))


def _line(old: str, new: str) -> tuple[str, str]:
    """Return a change whose new text is one marked line."""
    return old, f"{new}  # planted"


def ring() -> Iterator[Case]:
    """Faults of the script with rings."""
    slots = r"~ring\[|slots"
    masked = "~visible|masked_fill|softmax"
    turns = r"~inv_freq|angles|left \* cos|x\.chunk|turns|view_as"
    yield _case(
        "ring",
        "slots_clamped",
        "olmo3",
        "right",
        slots,
        changes=[_line("slots = positions % size", "slots = positions.clamp(max=size - 1)")],
    )
    yield _case(
        "ring",
        "first_kept",
        "cohere2",
        "packed",
        slots,
        changes=[
            _line(
                "k, v, positions = k[:, -size:], v[:, -size:], positions[:, -size:]",
                "k, v, positions = k[:, :size], v[:, :size], positions[:, :size]",
            )
        ],
    )
    yield _case(
        "ring",
        "window_by_one",
        "cohere2",
        "right",
        masked,
        changes=[
            _line(
                'visible = visible & (places[:, None] > positions[:, :, None] - ring["window"])',
                'visible = visible & (places[:, None] >= positions[:, :, None] - ring["window"])',
            )
        ],
    )
    yield _case(
        "ring",
        "windows_reversed",
        "olmo3",
        "packed",
        slots,
        masked,
        changes=[_line("for kind in config.layer_types:", "for kind in reversed(config.layer_types):")],
    )
    yield _case(
        "ring",
        "factor_lost",
        "olmo3",
        "function",
        turns,
        changes=[('        inv_freq = inv_freq / parameters["factor"]\n', "        pass\n")],
    )
    yield _case(
        "ring",
        "rotated_everywhere",
        "cohere2",
        "train",
        turns,
        "~scores = ",
        changes=[('if config.layer_types[number] == "sliding_attention":', "if number >= 0:  # planted")],
    )
    yield _case(
        "ring",
        "halves",
        "cohere2",
        "plain",
        turns,
        prompts=ONE,
        changes=[
            _line(
                "q, k = rotate_pairs(q, positions, inv_freq), rotate_pairs(k, positions, inv_freq)",
                "q, k = rotate_halves(q, positions, inv_freq), rotate_halves(k, positions, inv_freq)",
            )
        ],
    )
    yield _case(
        "ring",
        "logit_scale_lost",
        "cohere2",
        "function",
        changes=[
            _line(
                'return (F.linear(x, ends["embed_tokens"]) * config.logit_scale).float()',
                'return F.linear(x, ends["embed_tokens"]).float()',
            )
        ],
    )
    yield _case(
        "ring",
        "norm_of_heads",
        "olmo3",
        "right",
        changes=[
            (
                'q, k = rms_norm(q, w["q_norm"], eps), rms_norm(k, w["k_norm"], eps)\n',
                'k = rms_norm(k, w["k_norm"], eps)\n'
                '        q = F.rms_norm(q.unflatten(-1, (-1, head)), (head,), eps=eps).flatten(-2) * w["q_norm"]'
                "  # planted\n",
            )
        ],
    )
    yield _case(
        "ring",
        "norm_of_sum",
        "olmo3",
        "train",
        changes=[
            _line(
                'x = x + rms_norm(h, w["post_attention_layernorm"], eps)',
                'x = rms_norm(x + h, w["post_attention_layernorm"], eps)',
            )
        ],
    )
    yield _case(
        "ring",
        "serial",
        "cohere2",
        "right",
        r'~w\["gate_proj"\]',
        changes=[
            (
                '        m = F.linear(F.silu(F.linear(h, w["gate_proj"]))',
                '        h = F.layer_norm(x + a, x.shape[-1:], w["input_layernorm"], None, eps)  # planted\n'
                '        m = F.linear(F.silu(F.linear(h, w["gate_proj"]))',
            )
        ],
    )
    yield _case(
        "ring",
        "piece_restarts",
        "olmo3",
        "right",
        slots,
        masked,
        turns,
        piece=4,
        changes=[
            _line(
                "positions = torch.arange(start, start + part.shape[1])[None]",
                "positions = torch.arange(part.shape[1])[None]",
            )
        ],
    )
    yield _case(
        "ring",
        "rows_by_length",
        "cohere2",
        "right",
        slots,
        changes=[
            _line(
                "logits = run(ids, positions, torch.arange(len(prompts)))",
                "logits = run(ids, positions, torch.tensor([len(p) for p in prompts]).argsort(descending=True))",
            )
        ],
    )
    yield _case(
        "ring",
        "stale",
        "olmo3",
        "packed",
        r'~w\["up_proj"\]',
        edit=stale("model.layers.2.mlp.up_proj.weight"),
    )
    yield _case(
        "ring",
        "eps",
        "cohere2",
        "packed",
        "~F.layer_norm",
        changes=[_line("eps, head = config.layer_norm_eps, head_size(config)", "eps, head = 0.05, head_size(config)")],
    )
    yield _case(
        "ring",
        "softmax_type",
        "olmo3",
        "plain",
        prompts=ONE,
        bound=2e-4,
        changes=[
            _line(
                "weights = scores.float().softmax(-1).to(v.dtype)",
                "weights = scores.bfloat16().softmax(-1).to(v.dtype)",
            )
        ],
    )
    yield _case(
        "ring",
        "groups_of_heads",
        "olmo3",
        "right",
        "~bskd->bkgts",
        changes=[
            _line(
                "q = q.unflatten(2, (k.shape[2], -1))",
                "q = q.unflatten(2, (-1, k.shape[2])).transpose(2, 3)",
            )
        ],
    )
    yield _case(
        "ring",
        "head_tied",
        "olmo3",
        "function",
        changes=[
            _line(
                'return F.linear(rms_norm(x[:, -1], ends["norm"], eps), ends["lm_head"]).float()',
                'return F.linear(rms_norm(x[:, -1], ends["norm"], eps), ends["embed_tokens"]).float()',
            )
        ],
    )


def packed() -> Iterator[Case]:
    """Faults of the engine with packed prompts."""
    stored = r"core_attention$ ^(index|index_put|_index_put|slice)"
    read = r"core_attention$ ^(index|slice|repeat|view|expand|clone|matmul|bmm|unsqueeze)"
    masked = r"core_attention$ ^(bitwise_and|logical_and|masked_fill|add|_?softmax|eq|tril|ge|gt|zeros|new_zeros)"
    operands = ("linear_qkv$ .", r"rotary$ ^(split|chunk|mul|slice|unbind|view)", r"core_attention$ ^_?index_put")
    yield _case(
        "packed",
        "prompts_leak",
        "arcee",
        "right",
        masked,
        changes=[("        allowed = allowed & (segments[:, None] == segments)\n", "")],
    )
    yield _case(
        "packed",
        "fused_order",
        "seed_oss",
        "right",
        *operands,
        changes=[_line("mixed = torch.cat(grouped, 1).flatten(0, 2)", "mixed = torch.cat(parts)")],
    )
    yield _case(
        "packed",
        "norm_over_heads",
        "hunyuan",
        "packed",
        "(q|k)_layernorm$ .",
        changes=[
            _line(
                "return F.rms_norm(x, x.shape[-1:], self.weight, self.eps)",
                "return F.rms_norm(x, x.shape[-2:], eps=self.eps) * self.weight",
            )
        ],
    )
    yield _case(
        "packed",
        "halves",
        "ernie45",
        "right",
        "rotary$ .",
        changes=[_line("rotary_class = PairRotary", "rotary_class = Rotary")],
    )
    yield _case(
        "packed",
        "activation",
        "arcee",
        "train",
        "mlp$ ^(silu|relu|pow|square|mul)",
        changes=[
            _line(
                "return self.linear_fc2(F.relu(self.linear_fc1(x)).square())",
                "return self.linear_fc2(F.silu(self.linear_fc1(x)))",
            )
        ],
    )
    yield _case(
        "packed",
        "bias_lost",
        "seed_oss",
        "function",
        "linear_qkv$ .",
        changes=[
            _line(
                "mixed = F.linear(x, self.weight, self.bias).view(len(x), self.groups, self.queries + 2, self.head)",
                "mixed = F.linear(x, self.weight).view(len(x), self.groups, self.queries + 2, self.head)",
            )
        ],
    )
    yield _case(
        "packed",
        "residual_of_norm",
        "ernie45",
        "packed",
        "mlp_norm$ ^add",
        changes=[
            _line(
                "x, residual = self.mlp_norm(self.self_attention(x, step), residual)",
                "x, residual = self.mlp_norm(self.self_attention(x, step), x)",
            )
        ],
    )
    yield _case(
        "packed",
        "length_by_one",
        "hunyuan",
        "right",
        masked,
        changes=[
            _line(
                "padding = torch.arange(width) >= step.lengths[:, None]",
                "padding = torch.arange(width) > step.lengths[:, None]",
            )
        ],
    )
    yield _case(
        "packed",
        "layout_of_cache",
        "ernie45",
        "train",
        stored,
        read,
        changes=[
            _line(
                "self.key_cache[step.segments, :, step.position_ids] = k",
                "self.key_cache[step.segments, :, step.position_ids] = k.transpose(0, 1).reshape(k.shape)",
            )
        ],
    )
    yield _case(
        "packed",
        "eps",
        "seed_oss",
        "packed",
        "mlp_norm$ ^(add|rsqrt)",
        changes=[
            _line(
                "self.mlp_norm = AddNorm(config.hidden_size, config.rms_norm_eps)",
                "self.mlp_norm = AddNorm(config.hidden_size, 0.05)",
            )
        ],
    )
    yield _case(
        "packed",
        "positions_run_on",
        "arcee",
        "packed",
        "rotary$ .",
        stored,
        changes=[
            _line(
                "positions = torch.cat([torch.arange(length) for length in lengths.tolist()])",
                "positions = torch.arange(len(ids))",
            )
        ],
    )
    yield _case(
        "packed",
        "decoding_late",
        "hunyuan",
        "function",
        "rotary$ .",
        changes=[
            _line(
                "return self.model(ids, Decoding(lengths + 1, lengths, rows))",
                "return self.model(ids, Decoding(lengths + 1, lengths + 1, rows))",
            )
        ],
    )
    yield _case(
        "packed",
        "last_tokens",
        "seed_oss",
        "left",
        "output_layer .",
        "^$ ^(index|sub|slice)",
        changes=[_line("x = x[step.cu_seqlens[1:] - 1]", "x = x[step.cu_seqlens[:-1] - 1]")],
    )
    yield _case(
        "packed",
        "scaled_twice",
        "hunyuan",
        "train",
        "core_attention$ ^mul",
        changes=[
            (
                "        return self.linear_proj(self.core_attention(q, k, v, step))",
                "        q = q * self.core_attention.scale  # planted\n"
                "        return self.linear_proj(self.core_attention(q, k, v, step))",
            )
        ],
    )
    yield _case(
        "packed",
        "gate_and_up",
        "ernie45",
        "function",
        "linear_fc1 .",
        "mlp$ ^(silu|mul|split|chunk|slice)",
        changes=[_line("= torch.cat([weight, up])", "= torch.cat([up, weight])")],
    )
    yield _case(
        "packed",
        "layers_exchanged",
        "hunyuan",
        "plain",
        r"layers\.(0|1)\.self_attention\.linear_proj .",
        prompts=ONE,
        edit=_exchange,
    )
    yield _case(
        "packed",
        "narrow_head",
        "arcee",
        "function",
        "output_layer .",
        changes=[
            _line(
                "return self.output_layer(x).float()",
                "return F.linear(x.bfloat16(), self.output_layer.weight.bfloat16()).float()",
            )
        ],
    )
    yield _case(
        "packed",
        "heads_of_values",
        "seed_oss",
        "train",
        read,
        changes=[
            _line(
                "values = self.value_cache[step.rows, :, :width].repeat_interleave(self.repeats, 1)",
                "values = self.value_cache[step.rows, :, :width].repeat(1, self.repeats, 1, 1)",
            )
        ],
    )


def _exchange(model: Any) -> None:
    """Load the output projections of two layers into each other."""
    first, second = (model.model.layers[number].self_attn.o_proj.weight for number in (0, 1))
    kept = first.clone()
    first.copy_(second)
    second.copy_(kept)


def quant() -> Iterator[Case]:
    """Faults of the server with a quantised cache, and of its trainer."""
    stored = r"attention\.cache$ ."
    masked = r"attention$ ^(masked_fill|gt|_?softmax|where|arange)"
    router = r"mlp\.router$ ^(div|sum|mul|gather|scatter|topk|add|sort|where|amax|max)"
    int8 = {"attention": "int8_cache"}
    yield _case(
        "quant",
        "position_after_prefix",
        "dots1",
        "right",
        "~angles|positions|cos, sin",
        r"attention$ ^(mul|cat|slice|sub|add)",
        stored,
        prompts=SHARED,
        changes=[
            _line(
                "positions = torch.arange(start, len(ids))[None]",
                "positions = torch.arange(start, len(ids))[None] - int(shared > 0)",
            )
        ],
        **int8,
    )
    yield _case(
        "quant",
        "scales_of_keys",
        "dots1",
        "packed",
        stored,
        changes=[
            _line(
                "values = self.v_pages[tables].to(v.dtype) * self.v_scales[tables]",
                "values = self.v_pages[tables].to(v.dtype) * self.k_scales[tables]",
            )
        ],
        **int8,
    )
    yield _case(
        "quant",
        "not_rounded",
        "glm4moe",
        "right",
        stored,
        changes=[_line("return (x / scale).round().to(torch.int8), scale", "return (x / scale).to(torch.int8), scale")],
        **int8,
    )
    yield _case(
        "quant",
        "scale_of_token",
        "glm4moe",
        "train",
        stored,
        changes=[
            _line(
                "scale = x.abs().amax(-1, keepdim=True).clamp(min=1e-6) / 127",
                "scale = x.abs().amax((-2, -1), keepdim=True).clamp(min=1e-6) / 127",
            )
        ],
        **int8,
    )
    yield _case(
        "quant",
        "biased_weights",
        "dots1",
        "function",
        router,
        changes=[_line("weights = scores.gather(-1, chosen)", "weights = (scores + self.bias).gather(-1, chosen)")],
        kind="bf16",
        attention="bf16_cache",
    )
    yield _case(
        "quant",
        "not_renormalised",
        "glm4moe",
        "packed",
        router,
        changes=[("        weights = weights / weights.sum(-1, keepdim=True)\n", "")],
        kind="bf16",
        attention="bf16_cache",
    )
    yield _case(
        "quant",
        "order_of_experts",
        "dots1",
        "right",
        router,
        changes=[
            _line(
                "return torch.zeros_like(scores).scatter(-1, chosen, weights).to(x.dtype)",
                "return torch.zeros_like(scores).scatter(-1, chosen.sort(-1).values, weights).to(x.dtype)",
            ),
        ],
        **int8,
    )
    yield _case(
        "quant",
        "scaled_shared",
        "glm4moe",
        "function",
        r"blocks\.\d\.mlp$ ^(mul|add)",
        changes=[
            _line(
                "return routed + self.shared(x)",
                "return routed + self.shared(x) * self.router.config.routed_scaling_factor",
            )
        ],
        kind="bf16",
        attention="bf16_cache",
    )
    yield _case(
        "quant",
        "page_at_border",
        "dots1",
        "train",
        stored,
        changes=[
            _line(
                "pages = tables.gather(1, positions // PAGE)",
                "pages = tables.gather(1, (positions - 1).clamp(min=0) // PAGE)",
            )
        ],
        **int8,
    )
    again = THREE[0][:4]
    yield _case(
        "quant",
        "key_of_page",
        "glm4moe",
        "right",
        stored,
        r"attention$ ^(bmm|matmul|permute|transpose)",
        prompts=[again + THREE[1][:3], again + again + THREE[2][:2], THREE[2]],
        changes=[
            _line("return tuple(ids[: (number + 1) * PAGE])", "return tuple(ids[number * PAGE : (number + 1) * PAGE])")
        ],
        **int8,
    )
    yield _case(
        "quant",
        "key_norm_lost",
        "dots1",
        "plain",
        "k_norm .",
        "attention$ ^(mul|slice|sub|cat|split)",
        prompts=ONE,
        changes=[_line("k = rotate(self.k_norm(k), cos, sin)", "k = rotate(k, cos, sin)")],
        kind="bf16",
        attention="bf16_cache",
    )
    yield _case(
        "quant",
        "rotary_width",
        "glm4moe",
        "right",
        "~angles|inv_freq|cos, sin",
        r"attention$ ^(mul|cat|slice|sub|add)",
        changes=[
            _line(
                'width = int(config.head_dim * config.rope_parameters.get("partial_rotary_factor", 1.0))',
                "width = config.head_dim",
            )
        ],
        **int8,
    )
    yield _case(
        "quant",
        "gate_and_up",
        "dots1",
        "packed",
        r"mlp(\.shared)?$ .",
        changes=[_line('for name in ("gate", "up", "down")', 'for name in ("up", "gate", "down")')],
        kind="bf16",
        attention="bf16_cache",
    )
    yield _case(
        "quant",
        "interleaved_experts",
        "glm4moe",
        "left",
        r"blocks\.1\.mlp$ ^(split|chunk|slice|silu|mul)",
        changes=[
            (
                '        gate, up = torch.einsum("bth,eih->btei", x, self.w13).chunk(2, -1)\n',
                '        both = torch.einsum("bth,eih->btei", x, self.w13)\n'
                "        gate, up = both[..., ::2], both[..., 1::2]  # planted\n",
            )
        ],
        **int8,
    )
    yield _case(
        "quant",
        "later_tokens_seen",
        "dots1",
        "right",
        masked,
        changes=[
            _line(
                "hidden = torch.arange(keys.shape[1]) > positions[:, :, None]",
                "hidden = torch.arange(keys.shape[1]) > positions[:, -1:, None]",
            )
        ],
        kind="bf16",
        attention="bf16_cache",
    )
    yield _case(
        "quant",
        "stale_keys",
        "glm4moe",
        "function",
        more=(Place(r"blocks\.1\.attention$", "", r"self\.wkv"),),
        edit=stale("model.layers.1.self_attn.k_proj.weight"),
        **int8,
    )
    yield _case(
        "quant",
        "values_of_trainer",
        "dots1",
        "left",
        r"self_attn$ ^(round|div|mul|clamp|abs|amax)",
        r"~weights @ value|_rounded|value\.repeat|x / scale|@ values|values = ",
        attention="int8_keys",
    )


def cases() -> list[Case]:
    """Return all faults of the engines."""
    return [*ring(), *packed(), *quant()]
