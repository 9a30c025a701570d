"""Faults of the server with a quantised cache, and of its trainer."""

from collections.abc import Iterator

from rollout_pairs.cases import Case, Place
from rollout_pairs.faults_transformers import stale
from rollout_pairs.late_engine_cases import engine_case, line
from rollout_pairs.late_serving import SHARED
from rollout_pairs.scenarios import ONE, THREE


def cases() -> Iterator[Case]:
    """Faults of the server with a quantised cache, and of its trainer."""
    stored = r"attention\.cache$ ."
    masked = r"attention$ ^(masked_fill|gt|_?softmax|where|arange)"
    router = r"mlp\.router$ ^(div|sum|mul|gather|scatter|topk|add|sort|where|amax|max)"
    int8 = {"attention": "int8_cache"}
    yield engine_case(
        "quant",
        "position_after_prefix",
        "dots1",
        "right",
        "~angles|positions|cos, sin = ",
        r"attention\.cache$ ^_?index_put",
        prompts=SHARED,
        changes=[
            line(
                "positions = torch.arange(start, len(ids))[None]",
                "positions = torch.arange(start, len(ids))[None] - int(shared > 0)",
            )
        ],
        theirs=int8,
    )
    yield engine_case(
        "quant",
        "scales_of_keys",
        "dots1",
        "packed",
        "~values|v_pages",
        changes=[
            line(
                "values = self.v_pages[tables].to(v.dtype) * self.v_scales[tables]",
                "values = self.v_pages[tables].to(v.dtype) * self.k_scales[tables]",
            )
        ],
        theirs=int8,
    )
    yield engine_case(
        "quant",
        "not_rounded",
        "glm4moe",
        "right",
        stored,
        r"~\(x / scale\)\.round\(\) \* scale",  # what the trainer rounds, and the engine does not
        changes=[line("return (x / scale).round().to(torch.int8), scale", "return (x / scale).to(torch.int8), scale")],
        theirs=int8,
    )
    yield engine_case(
        "quant",
        "scale_of_token",
        "glm4moe",
        "train",
        stored,
        changes=[
            line(
                "scale = x.abs().amax(-1, keepdim=True).clamp(min=1e-6) / 127",
                "scale = x.abs().amax((-2, -1), keepdim=True).clamp(min=1e-6) / 127",
            )
        ],
        theirs=int8,
    )
    yield engine_case(
        "quant",
        "biased_weights",
        "dots1",
        "function",
        router,
        changes=[line("weights = scores.gather(-1, chosen)", "weights = (scores + self.bias).gather(-1, chosen)")],
        kind="bf16",
        theirs={"attention": "bf16_cache"},
    )
    yield engine_case(
        "quant",
        "not_renormalised",
        "glm4moe",
        "packed",
        router,
        changes=[("        weights = weights / weights.sum(-1, keepdim=True)\n", "")],
        kind="bf16",
        theirs={"attention": "bf16_cache"},
    )
    yield engine_case(
        "quant",
        "order_of_experts",
        "dots1",
        "right",
        router,
        changes=[
            line(
                "return torch.zeros_like(scores).scatter(-1, chosen, weights).to(x.dtype)",
                "return torch.zeros_like(scores).scatter(-1, chosen.sort(-1).values, weights).to(x.dtype)",
            ),
        ],
        theirs=int8,
    )
    yield engine_case(
        "quant",
        "scaled_shared",
        "glm4moe",
        "function",
        r"blocks\.\d\.mlp$ ^(mul|add)",
        changes=[
            line(
                "return routed + self.shared(x)",
                "return routed + self.shared(x) * self.router.config.routed_scaling_factor",
            )
        ],
        kind="bf16",
        theirs={"attention": "bf16_cache"},
    )
    yield engine_case(
        "quant",
        "page_at_border",
        "dots1",
        "train",
        stored,
        changes=[
            line(
                "pages = tables.gather(1, positions // PAGE)",
                "pages = tables.gather(1, (positions - 1).clamp(min=0) // PAGE)",
            )
        ],
        theirs=int8,
    )
    again = THREE[0][:4]
    yield engine_case(
        "quant",
        "key_of_page",
        "glm4moe",
        "right",
        r"attention\.cache$ ^(index|mul|_to_copy|clone)",
        r"attention$ ^(bmm|matmul)",
        prompts=[again + THREE[1][:3], again + again + THREE[2][:2], THREE[2]],
        changes=[
            line("return tuple(ids[: (number + 1) * PAGE])", "return tuple(ids[number * PAGE : (number + 1) * PAGE])")
        ],
        theirs=int8,
    )
    yield engine_case(
        "quant",
        "key_norm_lost",
        "dots1",
        "plain",
        "k_norm .",
        "attention$ ^(mul|slice|sub|cat|split)",
        prompts=ONE,
        changes=[line("k = rotate(self.k_norm(k), cos, sin)", "k = rotate(k, cos, sin)")],
        kind="bf16",
        theirs={"attention": "bf16_cache"},
    )
    yield engine_case(
        "quant",
        "rotary_width",
        "glm4moe",
        "right",
        "~angles|inv_freq|cos, sin",
        r"attention$ ^(mul|cat|slice|sub|add)",
        changes=[
            line(
                'width = int(config.head_dim * config.rope_parameters.get("partial_rotary_factor", 1.0))',
                "width = config.head_dim",
            )
        ],
        theirs=int8,
    )
    yield engine_case(
        "quant",
        "gate_and_up",
        "dots1",
        "packed",
        r"blocks\.0\.mlp$ .",
        r"mlp\.shared$ .",
        changes=[line('for name in ("gate", "up", "down")', 'for name in ("up", "gate", "down")')],
        kind="bf16",
        theirs={"attention": "bf16_cache"},
    )
    yield engine_case(
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
        theirs=int8,
    )
    yield engine_case(
        "quant",
        "later_tokens_seen",
        "dots1",
        "right",
        masked,
        changes=[
            line(
                "hidden = torch.arange(keys.shape[1]) > positions[:, :, None]",
                "hidden = torch.arange(keys.shape[1]) > positions[:, -1:, None]",
            )
        ],
        kind="bf16",
        theirs={"attention": "bf16_cache"},
    )
    yield engine_case(
        "quant",
        "stale_keys",
        "glm4moe",
        "function",
        more=(Place(r"blocks\.1\.attention$", "", r"self\.wkv"),),
        edit=stale("model.layers.1.self_attn.k_proj.weight"),
        theirs=int8,
    )
    yield engine_case(
        "quant",
        "values_of_trainer",
        "dots1",
        "left",
        r"self_attn$ ^(round|div|mul|clamp|abs|amax)",
        r"~weights @ value|_rounded|value\.repeat|x / scale|@ values|values = ",
        theirs={"attention": "int8_keys"},
    )
