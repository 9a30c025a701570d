"""Faults in layers, experts, weights and calls of further designs."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torch import Tensor

from rollout_pairs import hf
from rollout_pairs.cases import Case, Scores, places
from rollout_pairs.designs import build
from rollout_pairs.faults_transformers import CLEAR, MASKS, ROTARY, ROUTER, _case, stale
from rollout_pairs.hf import Record
from rollout_pairs.late_designs import LATE
from rollout_pairs.scenarios import ONE, THREE


def layers() -> Iterator[Case]:
    """Wrong activations, residuals, convolutions, embeddings and dropout."""
    yield _case("activation", "arcee", "batch4", r"mlp\.act_fn$ .", "mlp$ ^(relu|square|pow|mul)", hidden_act="relu")
    dropout = r"(self_attn|mlp)$ ^(native_dropout|_?fused_dropout|dropout|bernoulli|mul|div)"
    yield _case(
        "dropout_left_on",
        "seed_oss",
        "train",
        dropout,
        "~dropout",
        on="trainer",
        residual_dropout=0.1,
    )
    yield _case(
        "alpha_not_loaded",
        "apertus",
        "right",
        r"layers\.1\.mlp\.act_fn$ .",
        edit=lambda model: model.model.layers[1].mlp.act_fn.alpha_n.add_(0.8),
    )
    yield _case(
        "narrow_normalizer",
        "gemma",
        "right",
        "embed_tokens .",
        bound=2e-4,
        edit=lambda model: model.model.embed_tokens.embed_scale.copy_(model.model.embed_tokens.embed_scale.bfloat16()),
    )
    yield _case(
        "embedding_scale",
        "biogpt",
        "left",
        "embed_tokens .",
        "^biogpt$ ^(mul|add)",
        scale_embedding=False,
    )
    yield _case(
        "gates_exchanged",
        "lfm2",
        "plain",
        r"\.conv$ ^(split|chunk|slice|mul)",
        changes=[("B, C, x = BCx.chunk(3, dim=-2)", "C, B, x = BCx.chunk(3, dim=-2)  # planted")],
    )
    yield _case(
        "kernel_reversed",
        "lfm2",
        "right",
        r"\.conv$ .",
        changes=[
            (
                "hidden_states, conv_state, self.conv.weight.squeeze(1), self.conv.bias\n",
                "hidden_states, conv_state, self.conv.weight.squeeze(1).flip(-1), self.conv.bias  # planted\n",
            )
        ],
    )
    yield _case(
        "shared_of_residual",
        "granitemoeshared",
        "right",
        "shared_mlp .",
        changes=[("self.shared_mlp(hidden_states)", "self.shared_mlp(residual)  # planted")],
    )


def experts() -> Iterator[Case]:
    """Wrong routers."""
    yield _case(
        "second_not_masked",
        "phimoe",
        "packed",
        r"mlp(\.router|\.gate)?$ ^(masked_fill|_?softmax|gather|cat)",
        changes=[
            (
                'masked_gates_top2 = masked_scores.masked_fill(mask_logits_threshold, float("-inf"))',
                "masked_gates_top2 = masked_scores  # planted",
            ),
            (
                "masked_gates_top2 = torch.softmax(masked_gates_top2, dim=-1)",
                "masked_gates_top2 = torch.softmax(masked_gates_top2, dim=-1)  # planted",
            ),
        ],
    )
    yield _case(
        "router_bias_lost",
        "ernie45moe",
        "right",
        "moe_statics .",
        r"mlp\.gate$ ^(topk|add|gather)",
        changes=[
            (
                "_, selected_experts = torch.topk(self.moe_statics(routing_weights), self.top_k, dim=-1)",
                "_, selected_experts = torch.topk(routing_weights, self.top_k, dim=-1)  # planted",
            )
        ],
    )
    yield _case(
        "not_renormalised",
        "hunyuanmoe",
        "batch4",
        more=ROUTER,
        changes=[("        routing_weights /= routing_weights.sum(dim=-1, keepdim=True)\n", "")],
    )
    yield _case(
        "groups_by_best",
        "dots1",
        "right",
        r"mlp\.gate$ ^(max|amax)",
        more=ROUTER,
        changes=[
            (
                "            .topk(2, dim=-1)[0]\n            .sum(dim=-1)\n",
                "            .max(dim=-1)[0]  # planted\n",
            )
        ],
    )
    yield _case(
        "softmax_of_all",
        "granitemoe",
        "right",
        "router$ ^(_?softmax|gather|topk)",
        changes=[
            (
                "top_k_weights = torch.softmax(top_k_logits, dim=-1).type_as(hidden_states)",
                "top_k_weights = torch.softmax(router_logits, dim=-1).gather(1, top_k_index)  # planted\n"
                "        top_k_weights = top_k_weights.type_as(hidden_states)",
            )
        ],
    )
    yield _case(
        "narrow_router",
        "flexolmo",
        "left",
        bound=2e-4,
        changes=[
            (
                "router_logits = F.linear(hidden_states, self.weight)",
                "router_logits = F.linear(hidden_states.bfloat16(), self.weight.bfloat16())  # planted\n"
                "        router_logits = router_logits.float()",
            )
        ],
    )
    yield _case(
        "softmax_for_sigmoid",
        "minimaxm2",
        "packed",
        more=ROUTER,
        changes=[
            (
                "routing_weights = nn.functional.sigmoid(router_logits.float())",
                "routing_weights = nn.functional.softmax(router_logits.float(), -1)  # planted",
            )
        ],
    )
    yield _case(
        "norm_of_weights",
        "dbrx",
        "right",
        "ffn$ ^(linalg_vector_norm|norm|div)",
        ffn_config={**LATE["dbrx"].values["ffn_config"], "moe_normalize_expert_weights": 2.0},
    )
    yield _case(
        "trainer_scale",
        "glm4moe",
        "right",
        r"mlp\.gate$ ^mul",
        more=ROUTER,
        on="trainer",
        routed_scaling_factor=1.0,
    )


def weights() -> Iterator[Case]:
    """Parameters that are stale or stand in another place."""
    yield _case("layers_exchanged", "olmo3", "packed", r"layers\.(1|2)\.mlp\.down_proj .", edit=_exchange)
    yield _case(
        "trainer_stale",
        "jetmoe",
        "right",
        r"layers\.1\.self_attention\.kv_proj .",
        on="trainer",
        edit=stale("model.layers.1.self_attention.kv_proj.weight"),
    )
    yield _case("stale_norm", "helium", "generate", r"^model\.norm$ ^mul", edit=stale("model.norm.weight"))
    yield _case(
        "rows_of_experts",
        "granitemoe",
        "batch4",
        r"layers\.0\.block_sparse_moe\.experts .",
        edit=lambda model: _roll(model.model.layers[0].block_sparse_moe.experts.down_proj),
    )


def _exchange(model: Any) -> None:
    """Load a projection of two layers into the other one."""
    first, second = (model.model.layers[number].mlp.down_proj.weight for number in (1, 2))
    kept = first.clone()
    first.copy_(second)
    second.copy_(kept)


def _roll(weight: Tensor) -> None:
    weight.copy_(weight.roll(1, 0))


def calls() -> Iterator[Case]:
    """Faults of the programs around a model."""

    def filtered(a: Record, b: Record, _: Path) -> tuple[Scores, Scores]:
        def head(logits: Tensor) -> Tensor:
            least = logits.topk(8).values[..., -1:]
            return logits.masked_fill(logits < least, float("-inf"))  # planted

        answers = hf.rollout(build("ernie45"), THREE, a, head=head)
        return hf.odds_of(answers), hf.score(build("ernie45"), answers, b)

    def batch_counts_padding(a: Record, b: Record, _: Path) -> tuple[Scores, Scores]:
        answers = hf.rollout(build("bigcode"), THREE, b, counts_padding=True)
        same = hf.rollout(build("bigcode"), THREE[1:2], a, forced=answers[1:2])
        return hf.odds_of(same), hf.odds_of(answers[1:2])

    def chunk_restarts(a: Record, b: Record, _: Path) -> tuple[Scores, Scores]:
        answers = hf.rollout(build("helium"), ONE, a, chunk=4, restarts=True)
        return hf.odds_of(answers), hf.score(build("helium"), answers, b, masked=False)

    def entropy_temperature(a: Record, b: Record, _: Path) -> tuple[Scores, Scores]:
        answers = hf.rollout(build("exaone4"), THREE, a)
        return hf.odds_of(answers), hf.score_function(build("exaone4"), answers, b, temperature=1.25)

    def encoder_mask_lost(a: Record, b: Record, _: Path) -> tuple[Scores, Scores]:
        model = build("mbart")
        answers = hf.rollout_decoder(model, THREE, a, keeps_mask=False)
        return hf.odds_of(answers), hf.score_decoder(build("mbart"), THREE, answers, b)

    yield Case("ernie45-filtered_odds", filtered, CLEAR, places=places("~masked_fill|topk|log_softmax"))
    yield Case(
        "bigcode-batch_counts_padding",
        batch_counts_padding,
        CLEAR,
        options={"rows": {0: 1}},
        places=places("wpe .", "^transformer$ ^add"),
    )
    yield Case(
        "helium-chunk_restarts", chunk_restarts, CLEAR, places=(*ROTARY, *places("^model$ ^(add|arange|unsqueeze)"))
    )
    yield Case("exaone4-temperature_of_trainer", entropy_temperature, CLEAR, places=places("~temperature|log_softmax"))
    yield Case(
        "mbart-encoder_mask_lost",
        encoder_mask_lost,
        CLEAR,
        places=(*MASKS[:1], *places(r"encoder_attn$ ^(add|_?softmax|_?scaled_dot)")),
    )


def cases() -> list[Case]:
    """Return all faults of this module."""
    return [*layers(), *experts(), *weights(), *calls()]
