"""Faults of the script with rings."""

from collections.abc import Iterator

from rollout_pairs.cases import Case
from rollout_pairs.faults_transformers import stale
from rollout_pairs.late_engine_cases import engine_case, line
from rollout_pairs.scenarios import ONE


def cases() -> Iterator[Case]:
    """Faults of the script with rings."""
    slots = r"~ring\[|slots"
    masked = "~visible|masked_fill|softmax"
    turns = r"~inv_freq|angles|left \* cos|x\.chunk|turns|view_as"
    yield engine_case(
        "ring",
        "slots_clamped",
        "olmo3",
        "right",
        slots,
        changes=[line("slots = positions % size", "slots = positions.clamp(max=size - 1)")],
    )
    yield engine_case(
        "ring",
        "first_kept",
        "cohere2",
        "packed",
        slots,
        changes=[
            line(
                "k, v, positions = k[:, -size:], v[:, -size:], positions[:, -size:]",
                "k, v, positions = k[:, :size], v[:, :size], positions[:, :size]",
            )
        ],
    )
    yield engine_case(
        "ring",
        "window_by_one",
        "cohere2",
        "right",
        masked,
        changes=[
            line(
                'visible = visible & (places[:, None] > positions[:, :, None] - ring["window"])',
                'visible = visible & (places[:, None] >= positions[:, :, None] - ring["window"])',
            )
        ],
    )
    yield engine_case(
        "ring",
        "windows_reversed",
        "olmo3",
        "packed",
        slots,
        masked,
        changes=[line("for kind in config.layer_types:", "for kind in reversed(config.layer_types):")],
    )
    yield engine_case(
        "ring",
        "factor_lost",
        "olmo3",
        "function",
        "~inv_freq|angles",
        changes=[('        inv_freq = inv_freq / parameters["factor"]\n', "        pass\n")],
    )
    yield engine_case(
        "ring",
        "rotated_everywhere",
        "cohere2",
        "train",
        r"~left \* cos|x\.chunk|angles\.cos|scores = ",
        changes=[
            (
                "        a = F.linear(attend(",
                "        else:\n"
                "            q = rotate_halves(q, positions, inv_freq)  # planted\n"
                "            k = rotate_halves(k, positions, inv_freq)  # planted\n"
                "        a = F.linear(attend(",
            )
        ],
    )
    yield engine_case(
        "ring",
        "halves",
        "cohere2",
        "plain",
        turns,
        prompts=ONE,
        changes=[
            line(
                "q, k = rotate_pairs(q, positions, inv_freq), rotate_pairs(k, positions, inv_freq)",
                "q, k = rotate_halves(q, positions, inv_freq), rotate_halves(k, positions, inv_freq)",
            )
        ],
    )
    yield engine_case(
        "ring",
        "logit_scale_lost",
        "cohere2",
        "function",
        changes=[
            line(
                'return (F.linear(x, ends["embed_tokens"]) * config.logit_scale).float()',
                'return F.linear(x, ends["embed_tokens"]).float()',
            )
        ],
    )
    yield engine_case(
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
    yield engine_case(
        "ring",
        "norm_of_sum",
        "olmo3",
        "train",
        changes=[
            line(
                'x = x + rms_norm(h, w["post_attention_layernorm"], eps)',
                'x = rms_norm(x + h, w["post_attention_layernorm"], eps)',
            )
        ],
    )
    yield engine_case(
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
    yield engine_case(
        "ring",
        "piece_restarts",
        "olmo3",
        "right",
        "~slots|visible|angles",
        piece=4,
        changes=[
            line(
                "positions = torch.arange(start, start + part.shape[1])[None]",
                "positions = torch.arange(part.shape[1])[None]",
            )
        ],
    )
    yield engine_case(
        "ring",
        "rows_by_length",
        "cohere2",
        "right",
        slots,
        changes=[
            line(
                "logits = run(ids, positions, torch.arange(len(prompts)))",
                "logits = run(ids, positions, torch.tensor([len(p) for p in prompts]).argsort(descending=True))",
            )
        ],
    )
    yield engine_case(
        "ring",
        "stale",
        "olmo3",
        "packed",
        r'~w\["up_proj"\]',
        edit=stale("model.layers.2.mlp.up_proj.weight"),
    )
    yield engine_case(
        "ring",
        "eps",
        "cohere2",
        "packed",
        "~F.layer_norm",
        changes=[line("eps, head = config.layer_norm_eps, head_size(config)", "eps, head = 0.05, head_size(config)")],
    )
    yield engine_case(
        "ring",
        "softmax_type",
        "olmo3",
        "plain",
        prompts=ONE,
        bound=2e-4,
        changes=[
            line(
                "weights = scores.float().softmax(-1).to(v.dtype)",
                "weights = scores.bfloat16().softmax(-1).to(v.dtype)",
            )
        ],
    )
    yield engine_case(
        "ring",
        "groups_of_heads",
        "olmo3",
        "right",
        "~bskd->bkgts",
        changes=[
            line(
                "q = q.unflatten(2, (k.shape[2], -1))",
                "q = q.unflatten(2, (-1, k.shape[2])).transpose(2, 3)",
            )
        ],
    )
    yield engine_case(
        "ring",
        "head_tied",
        "olmo3",
        "function",
        changes=[
            line(
                'return F.linear(rms_norm(x[:, -1], ends["norm"], eps), ends["lm_head"]).float()',
                'return F.linear(rms_norm(x[:, -1], ends["norm"], eps), ends["embed_tokens"]).float()',
            )
        ],
    )
