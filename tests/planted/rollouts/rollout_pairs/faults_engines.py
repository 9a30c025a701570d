"""Faults in copies of the engines of this package."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Optional

import torch

from rollout_pairs import hf, serving
from rollout_pairs.cases import Case, Scores, places
from rollout_pairs.correct import SHARED, drafts
from rollout_pairs.designs import build
from rollout_pairs.faults_transformers import CLEAR, stale
from rollout_pairs.hf import Record
from rollout_pairs.mutation import mutate
from rollout_pairs.scenarios import FOUR, ONE, THREE

Changes = Sequence[tuple[str, str]]

_MODULES = {
    "vllm": "rollout_pairs.engines.vllm_style",
    "sglang": "rollout_pairs.engines.sglang_style",
    "plain": "rollout_pairs.engines.functional",
    "mla": "rollout_pairs.engines.mla_style",
}
_TRAINERS: dict[str, Callable[..., Scores]] = {
    "right": hf.score,
    "plain": lambda model, answers, record: hf.score(model, answers, record, masked=False),
    "packed": hf.score_packed,
    "train": hf.train,
    "function": hf.score_function,
}


def _case(
    engine: str,
    name: str,
    design: str,
    trainer: str,
    *accepted: str,
    changes: Changes = (),
    edit: Optional[Callable[[Any], object]] = None,
    bound: float = CLEAR,
    with_drafts: bool = False,
    dtype: torch.dtype = torch.float32,
    **options: Any,
) -> Case:
    """Return the case of a fault in an engine. edit: of the model whose weights are loaded; options: of the engine."""

    def run(a: Record, b: Record, folder: Path) -> tuple[Scores, Scores]:
        values = dict(options)
        if changes:
            values["code"] = mutate(_MODULES[engine], changes, folder)
        if with_drafts:
            values["drafts"] = drafts(design, values["steps"])
        reference = build(design, dtype=dtype)
        if edit is not None:
            with torch.no_grad():
                edit(reference)
        answers = getattr(serving, engine)(reference, values.pop("prompts", THREE), a, **values)
        return hf.odds_of(answers), _TRAINERS[trainer](build(design, dtype=dtype), answers, b)

    return Case(f"{engine}-{design}-{name}", run, bound, places=places(*accepted))


def _line(old: str, new: str) -> tuple[str, str]:
    """Return a change whose new text is one marked line."""
    return old, f"{new}  # planted"


def vllm() -> Iterator[Case]:
    """Faults of the paged engine."""
    cached = r"self_attn\.attn$ ^(index_put|index|_unsafe_index|index_copy|copy|view|bmm|slice)"
    rotary = "rotary_emb ."
    masked = r"self_attn\.attn$ ^(masked_fill|where|bitwise|_?softmax|lt|le|ge|gt|sub|add)"
    heads = r"self_attn\.attn$ ^(bmm|view|permute|transpose|repeat|clone|_unsafe_view|expand|index)"
    operands = ("self_attn$ ^(split|view|slice)", "rotary_emb ^(split|slice|mul)", r"self_attn\.attn$ ^index_put")
    eps = "x = x * torch.rsqrt(variance + self.variance_epsilon)"
    yield _case("vllm", "eps", "llama", "right", changes=[_line(eps, "x = x * torch.rsqrt(variance + 0.02)")])
    yield _case(
        "vllm",
        "norm_plus_one",
        "qwen2",
        "packed",
        changes=[_line("x = x.to(dtype) * self.weight", "x = x.to(dtype) * (1 + self.weight)")],
    )
    yield _case(
        "vllm",
        "residual_not_kept",
        "llama",
        "plain",
        "norm$ ^(add|_to_copy|mul|pow)",
        prompts=ONE,
        changes=[("            residual = x.to(dtype)\n", "")],
    )
    yield _case(
        "vllm",
        "final_residual",
        "qwen3",
        "right",
        r"model\.norm .",
        "^model$ .",
        r"layers\.1$ ^add",
        changes=[_line("x, _ = self.norm(x, residual)", "x = self.norm(x)")],
    )
    yield _case(
        "vllm",
        "split_of_qkv",
        "qwen2",
        "right",
        *operands,
        changes=[_line("q, k, v = qkv.split(self.qkv_proj.sizes, -1)", "q, v, k = qkv.split(self.qkv_proj.sizes, -1)")],
    )
    yield _case(
        "vllm",
        "fused_order",
        "llama",
        "packed",
        "qkv_proj .",
        *operands,
        changes=[_line('for part in "qkv"]', 'for part in "qvk"]')],
    )
    yield _case(
        "vllm",
        "gate_and_up",
        "qwen3",
        "right",
        "gate_up_proj .",
        r"mlp\.act_fn .",
        changes=[
            _line(
                'parts = [weight, state[name.replace("gate_proj", "up_proj")]]',
                'parts = [state[name.replace("gate_proj", "up_proj")], weight]',
            )
        ],
    )
    yield _case(
        "vllm",
        "halves",
        "mistral",
        "right",
        "act_fn ^(slice|silu|mul)",
        changes=[_line("return F.silu(x[..., :half]) * x[..., half:]", "return F.silu(x[..., half:]) * x[..., :half]")],
    )
    yield _case(
        "vllm",
        "activation",
        "llama",
        "train",
        "act_fn ^(gelu|silu|mul)",
        changes=[_line("return F.silu(x[..., :half]) * x[..., half:]", "return F.gelu(x[..., :half]) * x[..., half:]")],
    )
    yield _case(
        "vllm",
        "kv_heads_decode",
        "llama",
        "right",
        heads,
        changes=[
            _line(
                "q = q.view(len(q), self.kv_heads, -1, self.head)",
                "q = q.view(len(q), -1, self.kv_heads, self.head).transpose(1, 2)",
            )
        ],
    )
    repeat = "repeat_interleave(self.heads // self.kv_heads, 1)"
    yield _case(
        "vllm",
        "kv_heads_extend",
        "qwen3",
        "function",
        heads,
        changes=[
            _line(
                f"keys = self.key_cache[table].flatten(0, 1)[:length].{repeat}",
                "keys = self.key_cache[table].flatten(0, 1)[:length].repeat(1, self.heads // self.kv_heads, 1)",
            ),
            _line(
                f"values = self.value_cache[table].flatten(0, 1)[:length].{repeat}",
                "values = self.value_cache[table].flatten(0, 1)[:length].repeat(1, self.heads // self.kv_heads, 1)",
            ),
        ],
    )
    slots = "slots += [request.blocks[p // BLOCK] * BLOCK + p % BLOCK for p in places]"
    yield _case(
        "vllm",
        "slot",
        "llama",
        "right",
        cached,
        changes=[
            _line(slots, "slots += [request.blocks[p // BLOCK] * BLOCK + (p + (count == 1)) % BLOCK for p in places]")
        ],
    )
    yield _case(
        "vllm",
        "slot_of_chunk",
        "qwen3",
        "packed",
        cached,
        budget=5,
        changes=[
            _line(
                slots, "slots += [request.blocks[(p - request.computed) // BLOCK] * BLOCK + p % BLOCK for p in places]"
            )
        ],
    )
    yield _case(
        "vllm",
        "shared_block",
        "qwen2",
        "right",
        cached,
        prompts=FOUR,
        changes=[
            _line("request.blocks.append(self.free.pop(0))", "request.blocks.append(self.free[len(request.blocks)])")
        ],
    )
    yield _case(
        "vllm",
        "table_order",
        "llama",
        "packed",
        cached,
        changes=[
            _line(
                "tables = [request.blocks + [0] * (width - len(request.blocks)) for request, _ in scheduled]",
                "tables = [[0] * (width - len(request.blocks)) + request.blocks for request, _ in scheduled]",
            )
        ],
    )
    yield _case(
        "vllm",
        "length_by_one",
        "qwen3",
        "right",
        masked,
        changes=[
            _line("visible = columns < metadata.seq_lens[:, None]", "visible = columns <= metadata.seq_lens[:, None]")
        ],
    )
    yield _case(
        "vllm",
        "longest_length",
        "llama",
        "right",
        masked,
        changes=[
            _line(
                "visible = columns < metadata.seq_lens[:, None]",
                "visible = columns < metadata.seq_lens.max().expand(len(q), 1)",
            )
        ],
    )
    yield _case(
        "vllm",
        "chunk_forgets",
        "llama",
        "right",
        masked,
        budget=5,
        changes=[
            _line(
                "rows = torch.arange(length - len(query), length)[:, None]", "rows = torch.arange(len(query))[:, None]"
            )
        ],
    )
    yield _case(
        "vllm",
        "window_decode",
        "mistral",
        "right",
        masked,
        changes=[
            _line(
                "visible = visible & (columns >= metadata.seq_lens[:, None] - self.window)",
                "visible = visible & (columns > metadata.seq_lens[:, None] - self.window)",
            )
        ],
    )
    yield _case(
        "vllm",
        "window_extend",
        "mistral",
        "packed",
        masked,
        changes=[
            _line(
                "visible = visible & (columns > rows - self.window)",
                "visible = visible & (columns >= rows - self.window)",
            )
        ],
    )
    yield _case(
        "vllm",
        "positions_restart",
        "qwen2",
        "right",
        rotary,
        budget=5,
        changes=[_line("positions += places", "positions += range(count)")],
    )
    yield _case(
        "vllm",
        "theta",
        "llama",
        "right",
        rotary,
        changes=[
            _line(
                "inv_freq = 1.0 / (theta ** (torch.arange(0, head, 2, dtype=torch.float) / head))",
                "inv_freq = 1.0 / (1e6 ** (torch.arange(0, head, 2, dtype=torch.float) / head))",
            )
        ],
    )
    yield _case(
        "vllm",
        "rotary_layout",
        "qwen3",
        "packed",
        "rotary_emb ^(slice|split|mul|cat|stack)",
        changes=[_line("first, second = x.chunk(2, -1)", "first, second = x[..., ::2], x[..., 1::2]")],
    )
    yield _case(
        "vllm",
        "keys_unrotated",
        "llama",
        "right",
        r"self_attn\.attn$ ^(index_put|index)",
        rotary,
        changes=[_line("q, k = self.rotary_emb(positions, q, k)", "q, _ = self.rotary_emb(positions, q, k)")],
    )
    yield _case(
        "vllm",
        "scale",
        "mistral",
        "train",
        r"self_attn\.attn$ ^mul",
        changes=[_line("self.scale = head**-0.5", "self.scale = (2 * head) ** -0.5")],
    )
    yield _case(
        "vllm",
        "softmax_type",
        "llama",
        "right",
        bound=2e-4,
        changes=[
            (
                "weights = scores.float().softmax(-1).to(q.dtype)\n        return",
                "weights = scores.bfloat16().softmax(-1).to(q.dtype)  # planted\n        return",
            )
        ],
    )
    yield _case(
        "vllm",
        "product_type",
        "qwen2",
        "right",
        changes=[
            (
                "RowParallelLinear:: return F.linear(x, self.weight)",
                "return F.linear(x.bfloat16(), self.weight.bfloat16()).float()  # planted",
            )
        ],
    )
    yield _case(
        "vllm",
        "stale",
        "qwen3",
        "right",
        r"layers\.1\.mlp\.down_proj .",
        edit=stale("model.layers.1.mlp.down_proj.weight"),
    )
    yield _case(
        "vllm",
        "stale_part",
        "qwen2",
        "packed",
        r"layers\.0\.self_attn\.qkv_proj .",
        edit=stale("model.layers.0.self_attn.k_proj.weight"),
    )
    yield _case(
        "vllm",
        "transposed",
        "llama",
        "function",
        "o_proj .",
        changes=[
            (
                "                own[name] = weight\n",
                "                own[name] = weight.T if 'o_proj' in name else weight  # planted\n",
            )
        ],
    )
    yield _case(
        "vllm",
        "bias_lost",
        "qwen2",
        "train",
        "qkv_proj ^(mm|addmm|linear|t|view|add)",
        changes=[_line("return F.linear(x, self.weight, self.bias)", "return F.linear(x, self.weight)")],
    )
    yield _case(
        "vllm",
        "key_norm_lost",
        "qwen3",
        "right",
        "k_norm .",
        "self_attn$ ^(view|split)",
        "rotary_emb ^(split|mul|slice)",
        changes=[("            k = self.k_norm(k)\n", "")],
    )
    yield _case(
        "vllm",
        "not_renormalised",
        "qwen3moe",
        "right",
        "mlp$ ^(div|sum|topk|_to_copy|index|mul)",
        changes=[("        weights = weights / weights.sum(-1, keepdim=True)\n", "")],
    )
    yield _case(
        "vllm",
        "weights_of_other_rank",
        "qwen3moe",
        "packed",
        changes=[
            _line(
                "out.index_add_(0, tokens, expert(x[tokens]) * weights[tokens, ranks, None])",
                "out.index_add_(0, tokens, expert(x[tokens]) * weights[tokens, 0, None])",
            )
        ],
    )
    yield _case(
        "vllm",
        "router_sigmoid",
        "qwen3moe",
        "function",
        "mlp$ ^(sigmoid|_?softmax|topk)",
        changes=[
            _line("probabilities = self.gate(x).float().softmax(-1)", "probabilities = self.gate(x).float().sigmoid()")
        ],
    )
    yield _case(
        "vllm",
        "wrong_expert",
        "qwen3moe",
        "right",
        r"mlp$ ^(eq|where|nonzero|index)",
        r"experts\.\d+\.gate_up_proj .",
        changes=[
            _line(
                "tokens, ranks = torch.where(chosen == number)",
                "tokens, ranks = torch.where(chosen == (number + 1) % len(self.experts))",
            )
        ],
    )
    yield _case(
        "vllm",
        "logits_of_other_token",
        "qwen3",
        "right",
        r"~hidden\[logits_indices\]",
        "lm_head .",
        changes=[
            _line(
                "indices += range(starts[-1] - 1 - len(request.draft), starts[-1])",
                "indices += [max(starts[-1] - 2, starts[-2])]",
            )
        ],
    )
    yield _case(
        "vllm",
        "draft_kept",
        "llama",
        "right",
        cached,
        "attn$ ^(eq|sum|abs|flatten|_reshape)",
        steps=9,
        with_drafts=True,
        changes=[
            (
                "        self.key_cache.view(-1, self.kv_heads, self.head)[metadata.slot_mapping] = k\n"
                "        self.value_cache.view(-1, self.kv_heads, self.head)[metadata.slot_mapping] = v\n",
                "        slots = metadata.slot_mapping\n"
                "        is_free = self.key_cache.view(-1, self.kv_heads * "
                "self.head)[slots].abs().sum(1) == 0  # planted\n"
                "        self.key_cache.view(-1, self.kv_heads, self.head)[slots[is_free]] = k[is_free]  # planted\n"
                "        self.value_cache.view(-1, self.kv_heads, self.head)[slots[is_free]] = v[is_free]  # planted\n",
            )
        ],
    )
    yield _case(
        "vllm",
        "draft_positions",
        "qwen3moe",
        "right",
        rotary,
        steps=9,
        with_drafts=True,
        changes=[_line("positions += places", "positions += [min(p, len(request.ids) - 1) for p in places]")],
    )
    yield _case(
        "vllm",
        "eps_narrow",
        "llama",
        "right",
        bound=0.25,
        dtype=torch.bfloat16,
        changes=[_line(eps, "x = x * torch.rsqrt(variance + 0.5)")],
    )


def vllm_against_itself() -> Iterator[Case]:
    """One request alone and in a batch, and two steps of one dump."""

    def leak(a: Record, b: Record, folder: Path) -> tuple[Scores, Scores]:
        changes = [
            _line(
                "visible = columns < metadata.seq_lens[:, None]",
                "visible = columns < metadata.seq_lens.max().expand(len(q), 1)",
            )
        ]
        code = mutate(_MODULES["vllm"], changes, folder)
        batch = serving.vllm(build("qwen3"), THREE, b, code=code)
        alone = serving.vllm(build("qwen3"), THREE[1:2], a, code=code, forced=batch[1:2])
        return hf.odds_of(alone), hf.odds_of(batch[1:2])

    def calibration(a: Record, _: Record, folder: Path) -> tuple[Scores, Scores]:
        changes = [
            (
                "        self.key_cache.view(-1, self.kv_heads, self.head)[metadata.slot_mapping] = k\n",
                "        limit = getattr(self, 'limit', float('inf'))\n"
                "        v = v.clamp(-limit, limit)  # planted\n        self.limit = 0.6 * v.abs().max().item()\n"
                "        self.key_cache.view(-1, self.kv_heads, self.head)[metadata.slot_mapping] = k\n",
            )
        ]
        code = mutate(_MODULES["vllm"], changes, folder)
        second = serving.vllm(build("llama"), FOUR, a, steps=1, repeats=3, code=code)
        first = serving.vllm(build("llama"), FOUR, lambda _: hf.nothing(), steps=1)
        forced = [line.tokens[0] == other.tokens[0] for line, other in zip(second, first)]
        scores = [(x.scores, y.scores) for x, y, same in zip(second, first, forced) if same]
        return [x for x, _ in scores], [y for _, y in scores]

    yield Case(
        "vllm-qwen3-leak_in_batch",
        leak,
        CLEAR,
        places=places(r"self_attn\.attn$ ^(lt|max|amax|expand|masked_fill|bitwise|_?softmax)"),
    )
    yield Case(
        "vllm-llama-calibration_kept",
        calibration,
        CLEAR,
        ("actual@1", "actual@0"),
        places=places(r"self_attn\.attn$ ^clamp"),
    )


def sglang() -> Iterator[Case]:
    """Faults of the engine that shares prefixes."""
    cached = r"self_attn\.attn$ ^(index|index_copy|_?scaled_dot|transpose|_unsafe_index|copy)"
    prefix: dict[str, Any] = {"prompts": SHARED, "at_once": False}
    yield _case(
        "sglang",
        "prefix_positions",
        "llama",
        "right",
        r"~batch\.positions",
        **prefix,
        changes=[
            _line("positions += range(known, len(request.prompt))", "positions += range(len(request.prompt) - known)")
        ],
    )
    yield _case(
        "sglang",
        "prefix_too_long",
        "qwen2",
        "right",
        cached,
        **prefix,
        changes=[
            _line("best = slots[:count]", "best = slots[: count + (count < len(ids) - 2)]"),
            ("if count > len(best)", "if count >= len(best)"),
        ],
    )
    yield _case(
        "sglang",
        "slot_shared",
        "llama",
        "packed",
        cached,
        changes=[_line("request.slots.append(self.free.pop(0))", "request.slots.append(self.free[0])")],
    )
    yield _case(
        "sglang",
        "table_not_updated",
        "qwen2",
        "right",
        cached,
        changes=[
            (
                "            self.pool.req_to_token[request.row, : len(request.slots)] = torch.tensor(request.slots)\n",
                "            if counts is not None:\n"
                "                self.pool.req_to_token[request.row, : len(request.slots)] = "
                "torch.tensor(request.slots)  # planted\n",
            )
        ],
    )
    yield _case(
        "sglang",
        "scale",
        "mixtral",
        "right",
        r"self_attn\.attn$ ^_?scaled_dot",
        changes=[
            (
                "self.attn = RadixAttention(layer_id, self.head**-0.5)",
                "self.attn = RadixAttention(layer_id, self.head**-0.6)  # planted",
            )
        ],
    )
    yield _case(
        "sglang",
        "not_causal",
        "llama",
        "right",
        r"self_attn\.attn$ ^_?scaled_dot",
        changes=[
            (
                "                is_causal=True,\n",
                "                is_causal=length == count and length < 9,  # planted\n",
            )
        ],
    )
    yield _case(
        "sglang",
        "length_by_one",
        "llama",
        "right",
        r"self_attn\.attn$ ^(_?scaled_dot|lt)",
        changes=[
            _line(
                "visible = torch.arange(width) < batch.seq_lens[:, None]",
                "visible = torch.arange(width) < batch.seq_lens[:, None].sub(1)",
            )
        ],
    )
    yield _case(
        "sglang",
        "kv_heads",
        "qwen2moe",
        "right",
        r"self_attn\.attn$ ^(repeat|_?scaled_dot|index|transpose)",
        changes=[("keys[slots].transpose(0, 1)[None],", "keys[slots].flip(1).transpose(0, 1)[None],  # planted")],
    )
    yield _case(
        "sglang",
        "rotary_sign",
        "llama",
        "packed",
        changes=[
            _line(
                "rotated = torch.cat((-x[..., half:], x[..., :half]), dim=-1)",
                "rotated = torch.cat((x[..., half:], -x[..., :half]), dim=-1)",
            )
        ],
    )
    yield _case(
        "sglang",
        "keys_unrotated",
        "qwen2",
        "train",
        "self_attn$ ^(mul|cat|add|neg)",
        r"self_attn\.attn$ ^index_copy",
        changes=[_line("q, k = apply_rotary(q, cos, sin), apply_rotary(k, cos, sin)", "q = apply_rotary(q, cos, sin)")],
    )
    yield _case(
        "sglang",
        "query_norm_lost",
        "olmoe",
        "right",
        "q_norm .",
        "self_attn$ ^(split|view|mul|slice)",
        changes=[("            q = self.q_norm(q)\n", "")],
    )
    yield _case(
        "sglang",
        "eps",
        "qwen2",
        "right",
        changes=[
            _line(
                "wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)",
                "wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 0.02)",
            )
        ],
    )
    router = "mlp$ ^(div|sum|_?softmax|topk|mul|_to_copy|unsqueeze)"
    yield _case(
        "sglang",
        "renormalised",
        "qwen2moe",
        "packed",
        router,
        changes=[
            (
                "        if self.renormalize:\n            topk_weights = topk_weights / "
                "topk_weights.sum(dim=-1, keepdim=True)\n",
                "        topk_weights = topk_weights / topk_weights.sum(dim=-1, keepdim=True)  # planted\n",
            )
        ],
    )
    yield _case(
        "sglang",
        "not_renormalised",
        "mixtral",
        "right",
        router,
        changes=[
            (
                "        if self.renormalize:\n            topk_weights = topk_weights / "
                "topk_weights.sum(dim=-1, keepdim=True)\n",
                "",
            )
        ],
    )
    yield _case(
        "sglang",
        "wrong_expert",
        "mixtral",
        "packed",
        changes=[
            _line(
                'expert_out = torch.einsum("tki,tkhi->tkh", F.silu(gate) * up, self.w2_weight[topk_ids])',
                'expert_out = torch.einsum("tki,tkhi->tkh", F.silu(gate) * up, self.w2_weight[topk_ids.flip(-1)])',
            )
        ],
    )
    yield _case(
        "sglang",
        "shared_gate_lost",
        "qwen2moe",
        "right",
        "shared_expert_gate .",
        "mlp$ ^(mul|sigmoid|add)",
        changes=[
            _line(
                "out = out + torch.sigmoid(self.shared_expert_gate(x)) * self.shared_expert(x)",
                "out = out + self.shared_expert(x)",
            )
        ],
    )
    yield _case(
        "sglang",
        "expert_halves",
        "olmoe",
        "packed",
        "mlp$ ^(silu|mul)",
        changes=[("gate, up = gate_up.chunk(2, dim=-1)", "up, gate = gate_up.chunk(2, dim=-1)  # planted")],
    )
    yield _case(
        "sglang",
        "router_type",
        "mixtral",
        "function",
        router,
        bound=2e-4,
        changes=[
            _line(
                "scores = torch.softmax(router_logits.float(), dim=-1)",
                "scores = torch.softmax(router_logits.bfloat16(), dim=-1).float()",
            )
        ],
    )
    yield _case(
        "sglang",
        "gate_and_up",
        "llama",
        "right",
        "mlp$ ^(silu|mul)",
        changes=[
            _line(
                "gate, up = self.gate_up_proj(x).chunk(2, dim=-1)", "up, gate = self.gate_up_proj(x).chunk(2, dim=-1)"
            )
        ],
    )
    yield _case(
        "sglang",
        "logits_of_other_token",
        "qwen2",
        "right",
        "^norm .",
        changes=[_line("x = x[extend_lens.cumsum(0) - 1]", "x = x[(extend_lens.cumsum(0) - 2).clamp(min=0)]")],
    )
    yield _case(
        "sglang",
        "final_norm_lost",
        "llama",
        "right",
        r"^(model\.)?norm .",
        "lm_head .",
        changes=[_line("return self.lm_head(self.norm(x)).float()", "return self.lm_head(x).float()")],
    )
    yield _case(
        "sglang",
        "frequencies_narrow",
        "llama",
        "packed",
        r"~angles",
        changes=[_line("self.inv_freq = self.inv_freq.float()", "self.inv_freq = self.inv_freq.bfloat16().float()")],
    )
    yield _case(
        "sglang",
        "residual_dropped",
        "qwen2",
        "packed",
        r"layers\.0$ ^add",
        r"layers\.0\.mlp .",
        r"layers\.1\.input_layernorm .",
        changes=[
            _line(
                "return x + self.mlp(self.post_attention_layernorm(x))",
                "return self.mlp(self.post_attention_layernorm(x))",
            )
        ],
    )
    yield _case(
        "sglang",
        "split_of_qkv",
        "llama",
        "train",
        "self_attn$ ^(split|slice|view|mul|neg|cat)",
        changes=[
            _line(
                "q, k, v = self.qkv_proj(x).split([self.q_size, self.kv_size, self.kv_size], dim=-1)",
                "q, v, k = self.qkv_proj(x).split([self.q_size, self.kv_size, self.kv_size], dim=-1)",
            )
        ],
    )
    yield _case(
        "sglang",
        "stale",
        "mixtral",
        "right",
        r"layers\.1\.mlp$ ^(index|bmm|permute|view)",
        edit=stale("model.layers.1.mlp.experts.gate_up_proj"),
    )
    yield _case(
        "sglang",
        "stale_router",
        "qwen2moe",
        "right",
        r"layers\.0\.mlp\.gate .",
        edit=stale("model.layers.0.mlp.gate.weight"),
    )
    yield Case("sglang-llama-tree_not_flushed", _not_flushed, CLEAR, places=places(cached))


def _not_flushed(a: Record, b: Record, _: Path) -> tuple[Scores, Scores]:
    """Serve with prefixes that were cached with the weights from before an update."""
    from rollout_pairs.engines import sglang_style

    old = build("llama")
    with torch.no_grad():
        for parameter in old.parameters():
            parameter.mul_(1.2)
    engine = sglang_style.Engine(sglang_style.Model(old), old.config)
    engine.serve(SHARED[:1], 2)
    new = build("llama")
    engine.model.load_weights(new.state_dict())
    with a(engine.model):
        requests = engine.serve(SHARED[1:], 7)
    answers = [hf.Answer(r.prompt, r.tokens, r.scores) for r in requests]
    return hf.odds_of(answers), hf.score(new, answers, b)


def plain() -> Iterator[Case]:
    """Faults of the engine of functions; its operators have no module."""
    yield _case(
        "plain",
        "cap_lost",
        "gemma2",
        "right",
        r"~softcap|tanh|torch\.where\(mask|einsum\(.btkgh",
        changes=[("        logits = softcap * torch.tanh(logits / softcap)\n", "        pass\n")],
    )
    yield _case(
        "plain",
        "final_cap_lost",
        "gemma2",
        "packed",
        r"~final_logit_softcapping|tanh\(logits\)|params\[.embed.\]\.T|log_softmax",
        changes=[
            ("    logits = config.final_logit_softcapping * torch.tanh(logits / config.final_logit_softcapping)\n", "")
        ],
    )
    yield _case(
        "plain",
        "embedding_scale_lost",
        "gemma2",
        "right",
        r"~F\.embedding|embed_scale|wide \* wide|wide = x\.float",
        changes=[("    x = x * torch.tensor(math.sqrt(config.hidden_size), dtype=x.dtype)\n", "")],
    )
    yield _case(
        "plain",
        "window",
        "gemma2",
        "right",
        r"~torch\.where\(mask",
        changes=[
            _line(
                "mask = mask & (columns > positions[..., None] - window)",
                "mask = mask & (columns >= positions[..., None] - window)",
            )
        ],
    )
    yield _case(
        "plain",
        "layer_kinds",
        "gemma2",
        "plain",
        r"~mask & \(columns|torch\.where\(mask",
        prompts=ONE,
        changes=[
            ('config.layer_types[number] == "sliding_attention"', 'config.layer_types[number] != "sliding_attention"')
        ],
    )
    yield _case(
        "plain",
        "scale",
        "gemma2",
        "function",
        r"~einsum\(.btkgh",
        changes=[_line("scale = config.query_pre_attn_scalar**-0.5", "scale = head**-0.5")],
    )
    yield _case(
        "plain",
        "post_norm_lost",
        "gemma2",
        "right",
        r"\.post_attention_layernorm$ .",
        changes=[_line('x = x + rms_norm(h @ p["wo"], p["attn_post_norm"], eps)', 'x = x + h @ p["wo"]')],
    )
    yield _case(
        "plain",
        "gelu",
        "gemma2",
        "right",
        bound=5e-5,
        changes=[
            _line(
                'h = (F.gelu(h @ p["w_gate"], approximate="tanh") * (h @ p["w_up"])) @ p["w_down"]',
                'h = (F.gelu(h @ p["w_gate"]) * (h @ p["w_up"])) @ p["w_down"]',
            )
        ],
    )
    yield _case(
        "plain",
        "norm_without_one",
        "gemma2",
        "packed",
        r"~wide \* scale \* weight",
        r"\.pre_feedforward_layernorm$ ^(add|mul)",
        changes=[
            _line(
                '"mlp_norm": 1.0 + take("pre_feedforward_layernorm").float(),',
                '"mlp_norm": take("pre_feedforward_layernorm").float(),',
            )
        ],
    )
    yield _case(
        "plain",
        "theta",
        "gemma2",
        "right",
        r"~inv_freq|angles",
        changes=[_line('theta = config.rope_parameters["rope_theta"]', "theta = 500000.0")],
    )
    yield _case(
        "plain",
        "rotary_sign",
        "gemma2",
        "train",
        r"~x\.split",
        changes=[
            _line(
                "return torch.cat([first * cos - second * sin, first * sin + second * cos, rest], -1)",
                "return torch.cat([first * cos + second * sin, second * cos - first * sin, rest], -1)",
            )
        ],
    )
    yield _case(
        "plain",
        "slot",
        "gemma2",
        "right",
        r"~cache\[[01]\]",
        changes=[
            (
                "    cache[0][rows[:, None], positions] = k\n",
                "    cache[0][rows[:, None], positions + (k.shape[1] == 1)] = k  # planted\n",
            )
        ],
    )
    yield _case(
        "plain",
        "row",
        "neox",
        "right",
        r"~cache\[[01]\]",
        changes=[
            (
                "    cache[1][rows[:, None], positions] = v\n",
                "    cache[1][rows[:, None].clamp(max=1), positions] = v  # planted\n",
            )
        ],
    )
    yield _case(
        "plain",
        "mask_by_one",
        "neox",
        "right",
        r"~torch\.where\(mask",
        changes=[
            _line(
                "mask = columns <= positions[..., None]",
                "mask = columns <= positions[..., None] - int(q.shape[1] == 1)",
            )
        ],
    )
    yield _case(
        "plain",
        "keys_and_values",
        "gemma2",
        "right",
        r"~cache\[[01]\]|x\.split|first \* cos",
        changes=[
            _line(
                'k, v = (h @ p["wkv"]).unflatten(-1, (2, -1, head)).unbind(2)',
                'v, k = (h @ p["wkv"]).unflatten(-1, (2, -1, head)).unbind(2)',
            )
        ],
    )
    yield _case(
        "plain",
        "rotary_width",
        "neox",
        "right",
        r"~inv_freq|angles|x\.split|first \* cos",
        changes=[_line('width = int(head * rotary.get("partial_rotary_factor", 1.0))', "width = head")],
    )
    yield _case(
        "plain",
        "serial_residual",
        "neox",
        "packed",
        r"~w_post_attention_layernorm",
        changes=[
            (
                '            x, size, p["w_post_attention_layernorm"]',
                '            x + a,  # planted\n            size, p["w_post_attention_layernorm"]',
            )
        ],
    )
    yield _case(
        "plain",
        "bias_lost",
        "neox",
        "right",
        changes=[
            _line(
                'k = F.linear(h, p["wk"], p["bk"]).unflatten(-1, (-1, head))',
                'k = F.linear(h, p["wk"]).unflatten(-1, (-1, head))',
            )
        ],
    )
    yield _case(
        "plain",
        "fused_by_thirds",
        "neox",
        "right",
        r"~F\.linear\(h, p\[.w[qkv]",
        changes=[
            _line(
                'fused = take("attention.query_key_value.weight").view(heads, 3, -1, config.hidden_size)',
                'fused = take("attention.query_key_value.weight").view(3, heads, -1, '
                "config.hidden_size).transpose(0, 1)",
            )
        ],
    )
    yield _case(
        "plain",
        "eps",
        "neox",
        "train",
        changes=[_line('p["b_input_layernorm"], config.layer_norm_eps)', 'p["b_input_layernorm"], 0.05)')],
    )
    yield _case(
        "plain", "stale", "neox", "right", r"~w_dense_4h_to_h", edit=stale("gpt_neox.layers.1.mlp.dense_4h_to_h.weight")
    )
    yield _case(
        "plain",
        "softmax_type",
        "gemma2",
        "plain",
        bound=2e-4,
        prompts=ONE,
        changes=[
            _line(
                "probs = torch.softmax(logits.float(), -1).to(q.dtype)",
                "probs = torch.softmax(logits.bfloat16(), -1).to(q.dtype)",
            )
        ],
    )
    yield _case(
        "plain",
        "logits_of_other_token",
        "gemma2",
        "right",
        changes=[
            _line(
                'x = rms_norm(x[:, -1], params["final_norm"], eps)',
                'x = rms_norm(x[:, -min(2, x.shape[1])], params["final_norm"], eps)',
            )
        ],
    )
    yield _case(
        "plain",
        "positions_by_one",
        "neox",
        "packed",
        r"~positions|inv_freq|angles",
        changes=[
            _line(
                "positions = torch.tensor([[len(prompt) + step - 1] for prompt in prompts])",
                "positions = torch.tensor([[len(prompt) + step] for prompt in prompts])",
            )
        ],
    )
    yield _case(
        "plain",
        "kv_heads",
        "gemma2",
        "right",
        r"~einsum\(.btkgh",
        changes=[
            _line("q = q.unflatten(2, (k.shape[2], -1))", "q = q.unflatten(2, (-1, k.shape[2])).transpose(2, 3)"),
        ],
    )


def mla() -> Iterator[Case]:
    """Faults of the engine of latents."""
    attention = r"self_attn$"
    yield _case(
        "mla",
        "scale",
        "deepseek3",
        "right",
        rf"{attention} ^(mul|_?scaled_dot)",
        changes=[_line("self.scale = (self.nope + self.rope) ** -0.5", "self.scale = self.nope**-0.5")],
    )
    yield _case(
        "mla",
        "rotary_layout",
        "deepseek3",
        "packed",
        rf"{attention} ^(slice|mul|stack|sub|add|split)",
        changes=[_line("even, odd = x[..., 0::2], x[..., 1::2]", "even, odd = x.chunk(2, -1)")],
    )
    yield _case(
        "mla",
        "latent_norm_lost",
        "deepseek3",
        "right",
        "kv_a_layernorm .",
        rf"{attention} ^(cat|split|index_put)",
        changes=[("        latent = self.kv_a_layernorm(latent)\n", "")],
    )
    yield _case(
        "mla",
        "absorbed_exchanged",
        "deepseek3",
        "right",
        rf"{attention} ^(bmm|view|permute)",
        changes=[
            _line(
                'return torch.einsum("bthr,hvr->bthv", context, self.w_vc)',
                'return torch.einsum("bthr,hvr->bthv", context, self.w_kc)',
            )
        ],
    )
    yield _case(
        "mla",
        "absorbed_stale",
        "deepseek3",
        "packed",
        rf"layers\.\d\.{attention} ^(bmm|view|permute)",
        changes=[
            _line(
                "self.w_kc, self.w_vc = fused[:, : self.nope].contiguous(), fused[:, self.nope :].contiguous()",
                "self.w_kc, self.w_vc = 0.8 * fused[:, : self.nope], fused[:, self.nope :].contiguous()",
            )
        ],
    )
    yield _case(
        "mla",
        "key_unrotated",
        "deepseek3",
        "right",
        rf"{attention} ^(cat|index_put|mul|slice|stack)",
        changes=[
            (
                "        k_rope = rotate(k_rope, cos, sin)\n        self.latents[rows[:, None], positions] ="
                " torch.cat([latent, k_rope], -1)\n",
                "        self.latents[rows[:, None], positions] = torch.cat([latent, k_rope], -1)  # planted\n"
                "        k_rope = rotate(k_rope, cos, sin)\n",
            )
        ],
    )
    yield _case(
        "mla",
        "mask_by_one",
        "deepseek3",
        "right",
        rf"{attention} ^(ge|gt|masked_fill)",
        changes=[
            _line(
                "hidden = torch.arange(cached.shape[1]) > positions[:, :, None]",
                "hidden = torch.arange(cached.shape[1]) >= positions[:, :, None]",
            )
        ],
    )
    yield _case(
        "mla",
        "row",
        "deepseek3",
        "right",
        rf"{attention} ^index",
        changes=[
            _line(
                "cached = self.latents[rows, : int(positions.max()) + 1]",
                "cached = self.latents[rows.flip(0), : int(positions.max()) + 1]",
            )
        ],
    )
    yield _case(
        "mla",
        "rotated_term_lost",
        "deepseek3",
        "train",
        rf"{attention} ^(add|bmm|mul|view)",
        changes=[('        scores = scores + torch.einsum("bthr,bsr->bhts", q_rope, k_rope)\n', "")],
    )
    yield _case(
        "mla",
        "eps",
        "deepseek3",
        "right",
        "q_a_layernorm .",
        changes=[
            _line(
                'self.q_a_layernorm = RMSNorm(state[f"{prefix}.q_a_layernorm.weight"], 1e-6)',
                'self.q_a_layernorm = RMSNorm(state[f"{prefix}.q_a_layernorm.weight"], 0.1)',
            )
        ],
    )
    yield _case(
        "mla",
        "router_bias_lost",
        "deepseek3",
        "right",
        r"mlp(\.gate)?$ ^(add|view|topk|sigmoid)",
        changes=[_line("biased = scores + self.correction_bias", "biased = scores")],
    )
    yield _case(
        "mla",
        "bias_in_weights",
        "deepseek3",
        "packed",
        changes=[_line("weights = scores.gather(1, chosen)", "weights = biased.gather(1, chosen)")],
    )
    yield _case(
        "mla",
        "groups",
        "deepseek3",
        "right",
        r"mlp$ ^(topk|sum|amax|max|scatter)",
        changes=[_line("group_scores = groups.topk(2, -1).values.sum(-1)", "group_scores = groups.amax(-1)")],
    )
    yield _case(
        "mla",
        "not_renormalised",
        "deepseek3",
        "function",
        r"mlp$ ^(div|sum|gather|unsqueeze|mul)",
        changes=[("        weights = weights / weights.sum(-1, keepdim=True)\n", "")],
    )
    yield _case(
        "mla",
        "routed_scale_lost",
        "deepseek3",
        "right",
        r"mlp$ ^(mul|sum|add|view)",
        changes=[("        routed = routed * self.config.routed_scaling_factor\n", "")],
    )
    yield _case(
        "mla",
        "shared_experts_lost",
        "deepseek3",
        "packed",
        "shared_experts .",
        r"mlp$ ^(add|view)",
        r"layers\.1$ ^add",
        changes=[_line("return routed.view_as(x) + self.shared_experts(x)", "return routed.view_as(x)")],
    )
    yield _case(
        "mla",
        "not_unsorted",
        "deepseek3",
        "right",
        r"mlp$ ^(cat|index_put|empty|view|mul)",
        changes=[_line("unsorted[order] = torch.cat(outputs)", "unsorted = torch.cat(outputs)")],
    )
    yield _case(
        "mla",
        "expert_halves",
        "deepseek3",
        "right",
        r"mlp$ ^(silu|mul|split)",
        changes=[
            _line(
                "gate, up = F.linear(part, self.w13[number]).chunk(2, -1)",
                "up, gate = F.linear(part, self.w13[number]).chunk(2, -1)",
            )
        ],
    )
    yield _case(
        "mla",
        "stale",
        "deepseek3",
        "plain",
        "fused_qkv_a_proj .",
        prompts=ONE,
        edit=stale("model.layers.1.self_attn.q_a_proj.weight"),
    )
    yield _case("mla", "stale_bias", "deepseek3", "right", r"layers\.1\.mlp$ ^(add|view|topk)", edit=_stale_bias)


def _stale_bias(model: Any) -> None:
    bias = model.model.layers[1].mlp.gate.e_score_correction_bias
    bias.copy_(bias.roll(1))


def cases() -> list[Case]:
    """Return the faults of engines."""
    return [case for group in (vllm, vllm_against_itself, sglang, plain, mla) for case in group()]
