"""Faults of the engine with packed prompts."""

from collections.abc import Iterator
from typing import Any

from rollout_pairs.cases import Case
from rollout_pairs.late_engine_cases import engine_case, line
from rollout_pairs.scenarios import ONE


def cases() -> Iterator[Case]:
    """Faults of the engine with packed prompts."""
    stored = r"core_attention$ ^(index|index_put|_index_put|slice)"
    read = r"core_attention$ ^(matmul|bmm)"
    masked = r"core_attention$ ^(bitwise_and|logical_and|masked_fill|add|_?softmax|eq|tril|ge|gt|zeros|new_zeros)"
    operands = ("linear_qkv$ .", r"rotary$ ^(split|chunk|mul|slice|unbind|view)", r"core_attention$ ^_?index_put")
    yield engine_case(
        "packed",
        "prompts_leak",
        "arcee",
        "right",
        masked,
        changes=[("        allowed = allowed & (segments[:, None] == segments)\n", "")],
    )
    yield engine_case(
        "packed",
        "fused_order",
        "seed_oss",
        "right",
        *operands,
        changes=[line("mixed = torch.cat(grouped, 1).flatten(0, 2)", "mixed = torch.cat(parts)")],
    )
    yield engine_case(
        "packed",
        "norm_over_heads",
        "hunyuan",
        "packed",
        "(q|k)_layernorm$ .",
        changes=[
            line(
                "return F.rms_norm(x, x.shape[-1:], self.weight, self.eps)",
                "return F.rms_norm(x, x.shape[-2:], eps=self.eps) * self.weight",
            )
        ],
    )
    yield engine_case(
        "packed",
        "halves",
        "ernie45",
        "right",
        "rotary$ .",
        changes=[line("rotary_class = PairRotary", "rotary_class = Rotary")],
    )
    yield engine_case(
        "packed",
        "activation",
        "arcee",
        "train",
        "mlp$ ^(silu|relu|pow|square|mul)",
        changes=[
            line(
                "return self.linear_fc2(F.relu(self.linear_fc1(x)).square())",
                "return self.linear_fc2(F.silu(self.linear_fc1(x)))",
            )
        ],
    )
    yield engine_case(
        "packed",
        "bias_lost",
        "seed_oss",
        "function",
        "linear_qkv$ .",
        changes=[
            line(
                "mixed = F.linear(x, self.weight, self.bias).view(len(x), self.groups, self.queries + 2, self.head)",
                "mixed = F.linear(x, self.weight).view(len(x), self.groups, self.queries + 2, self.head)",
            )
        ],
    )
    yield engine_case(
        "packed",
        "residual_of_norm",
        "ernie45",
        "packed",
        "mlp_norm$ ^add",
        changes=[
            line(
                "x, residual = self.mlp_norm(self.self_attention(x, step), residual)",
                "x, residual = self.mlp_norm(self.self_attention(x, step), x)",
            )
        ],
    )
    yield engine_case(
        "packed",
        "length_by_one",
        "hunyuan",
        "right",
        masked,
        changes=[
            line(
                "padding = torch.arange(width) >= step.lengths[:, None]",
                "padding = torch.arange(width) > step.lengths[:, None]",
            )
        ],
    )
    yield engine_case(
        "packed",
        "layout_of_cache",
        "ernie45",
        "train",
        stored,
        read,
        changes=[
            line(
                "self.key_cache[step.segments, :, step.position_ids] = k",
                "self.key_cache[step.segments, :, step.position_ids] = k.transpose(0, 1).reshape(k.shape)",
            )
        ],
    )
    yield engine_case(
        "packed",
        "eps",
        "seed_oss",
        "packed",
        "mlp_norm$ ^(add|rsqrt)",
        changes=[
            line(
                "self.mlp_norm = AddNorm(config.hidden_size, config.rms_norm_eps)",
                "self.mlp_norm = AddNorm(config.hidden_size, 0.05)",
            )
        ],
    )
    yield engine_case(
        "packed",
        "positions_run_on",
        "arcee",
        "packed",
        "rotary$ .",
        stored,
        changes=[
            line(
                "positions = torch.cat([torch.arange(length) for length in lengths.tolist()])",
                "positions = torch.arange(len(ids))",
            )
        ],
    )
    yield engine_case(
        "packed",
        "decoding_late",
        "hunyuan",
        "function",
        "rotary$ .",
        changes=[
            line(
                "return self.model(ids, Decoding(lengths + 1, lengths, rows))",
                "return self.model(ids, Decoding(lengths + 1, lengths + 1, rows))",
            )
        ],
    )
    yield engine_case(
        "packed",
        "last_tokens",
        "seed_oss",
        "left",
        "output_layer .",
        "^$ ^(index|sub|slice)",
        changes=[line("x = x[step.cu_seqlens[1:] - 1]", "x = x[step.cu_seqlens[:-1] - 1]")],
    )
    yield engine_case(
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
    yield engine_case(
        "packed",
        "gate_and_up",
        "ernie45",
        "function",
        "linear_fc1 .",
        "mlp$ ^(silu|mul|split|chunk|slice)",
        changes=[line("= torch.cat([weight, up])", "= torch.cat([up, weight])")],
    )
    yield engine_case(
        "packed",
        "layers_exchanged",
        "hunyuan",
        "plain",
        r"layers\.(0|1)\.self_attention\.linear_proj .",
        prompts=ONE,
        edit=_exchange,
    )
    yield engine_case(
        "packed",
        "narrow_head",
        "arcee",
        "function",
        "output_layer .",
        changes=[
            line(
                "return self.output_layer(x).float()",
                "return F.linear(x.bfloat16(), self.output_layer.weight.bfloat16()).float()",
            )
        ],
    )
    yield engine_case(
        "packed",
        "heads_of_values",
        "seed_oss",
        "train",
        read,
        changes=[
            line(
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
