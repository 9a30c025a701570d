"""Networks of transformers, small and with random weights."""

from __future__ import annotations

from typing import Any

import torch
import transformers
from torch import Tensor, nn
from torch.nn import functional

from program_pairs.case import network
from program_pairs.optimizers import adamw, sgd
from program_pairs.program import Batch, Program
from program_pairs.training import LoopOptions

Flags = frozenset[str]


def next_token_loss(logits: Tensor, batch: Batch) -> Tensor:
    """Cross entropy of the next token."""
    logits, labels = logits[:, :-1], batch["labels"][:, 1:]
    return functional.cross_entropy(logits.reshape(-1, logits.shape[-1]), labels.reshape(-1))


def token_loss(logits: Tensor, batch: Batch) -> Tensor:
    """Cross entropy of tokens or classes."""
    return functional.cross_entropy(logits.reshape(-1, logits.shape[-1]), batch["labels"].reshape(-1))


def _call(model: nn.Module, batch: Batch) -> Tensor:
    inputs = {name: value for name, value in batch.items() if name not in ("labels", "shift")}
    output: Any = model(**inputs)  # place: network_call
    return output.logits


def _text(vocabulary: int, tokens: int = 12, batch: int = 2, steps: int = 2, padded: bool = False) -> list[Batch]:
    batches: list[Batch] = []
    for _ in range(steps):
        ids = torch.randint(3, vocabulary, (batch, tokens))
        entry: Batch = {"input_ids": ids, "labels": ids.clone(), "shift": True}
        if padded:
            mask = torch.ones_like(ids)
            mask[0, -3:] = 0
            entry["labels"][0, -3:] = -100
            entry["attention_mask"] = mask
        batches.append(entry)
    return batches


def _larger(model: nn.Module, factor: float = 4.0) -> nn.Module:
    """Make the small random matrices as large as those of a trained network."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() >= 2:
                parameter.mul_(factor)
            elif name.endswith("bias"):
                parameter.add_(torch.randn_like(parameter) * 0.1)
            else:
                parameter.add_(torch.randn_like(parameter) * 0.1)
    return model


@network("llama")
def llama(_: Flags) -> Program:
    config = transformers.LlamaConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        rms_norm_eps=1e-6,
        use_cache=False,
    )
    model = _larger(transformers.LlamaForCausalLM(config))
    return Program(model, _text(64), _call, next_token_loss, adamw(lr=3e-3), options=LoopOptions(max_norm=1.0))


@network("gemma2")
def gemma2(_: Flags) -> Program:
    config = transformers.Gemma2Config(
        vocab_size=48,
        hidden_size=24,
        intermediate_size=40,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=64,
        sliding_window=6,
        query_pre_attn_scalar=8,
        attn_logit_softcapping=3.0,
        final_logit_softcapping=10.0,
        use_cache=False,
        attn_implementation="eager",
    )
    model = _larger(transformers.Gemma2ForCausalLM(config))
    return Program(model, _text(48, tokens=10), _call, next_token_loss, sgd(lr=0.05))


@network("gpt2")
def gpt2(_: Flags) -> Program:
    config = transformers.GPT2Config(
        vocab_size=60,
        n_positions=32,
        n_embd=32,
        n_layer=2,
        n_head=4,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        use_cache=False,
    )
    model = _larger(transformers.GPT2LMHeadModel(config))
    return Program(model, _text(60, padded=True), _call, next_token_loss, sgd(lr=0.05, weight_decay=0.1, groups="two"))


@network("bloom")
def bloom(_: Flags) -> Program:
    config = transformers.BloomConfig(
        vocab_size=50,
        hidden_size=32,
        n_layer=2,
        n_head=4,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        use_cache=False,
    )
    model = _larger(transformers.BloomForCausalLM(config)).eval()
    return Program(model, _text(50, padded=True), _call)


@network("bert")
def bert(_: Flags) -> Program:
    config = transformers.BertConfig(
        vocab_size=70,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        max_position_embeddings=32,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        num_labels=5,
    )
    model = _larger(transformers.BertForTokenClassification(config))
    batches = _text(70, tokens=9, batch=3, padded=True)
    for batch in batches:
        batch["labels"] = torch.where(batch["labels"] < 0, batch["labels"], batch["labels"] % 5)
        batch["token_type_ids"] = (torch.arange(9) > 4).long().expand(3, 9).contiguous()
        del batch["shift"]
    return Program(model, batches, _call, token_loss, sgd(lr=0.1), options=LoopOptions(max_norm=0.5))


@network("t5")
def t5(_: Flags) -> Program:
    config = transformers.T5Config(
        vocab_size=40,
        d_model=32,
        d_kv=8,
        d_ff=64,
        num_layers=2,
        num_decoder_layers=2,
        num_heads=4,
        dropout_rate=0.0,
        relative_attention_num_buckets=8,
        relative_attention_max_distance=16,
        decoder_start_token_id=0,
        use_cache=False,
    )
    model = transformers.T5ForConditionalGeneration(config)
    batches: list[Batch] = []
    for _step in range(2):
        mask = torch.ones(2, 8, dtype=torch.long)
        mask[1, -2:] = 0
        batches.append(
            {
                "input_ids": torch.randint(2, 40, (2, 8)),
                "attention_mask": mask,
                "decoder_input_ids": torch.randint(2, 40, (2, 6)),
                "labels": torch.randint(2, 40, (2, 6)),
            }
        )
    return Program(model, batches, _call, token_loss, adamw(lr=3e-3, weight_decay=0.0))


@network("mixtral")
def mixtral(_: Flags) -> Program:
    config = transformers.MixtralConfig(
        vocab_size=48,
        hidden_size=24,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        num_local_experts=4,
        num_experts_per_tok=2,
        max_position_embeddings=64,
        use_cache=False,
        router_jitter_noise=0.0,
        attn_implementation="eager",
        experts_implementation="eager",
    )
    model = _larger(transformers.MixtralForCausalLM(config))
    return Program(model, _text(48, tokens=10), _call, next_token_loss, adamw(lr=2e-3, groups="one"))


@network("vit")
def vit(_: Flags) -> Program:
    config = transformers.ViTConfig(
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        image_size=16,
        patch_size=4,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        num_labels=6,
    )
    model = _larger(transformers.ViTForImageClassification(config))
    with torch.no_grad():
        model.vit.embeddings.position_embeddings.add_(0.3 * torch.randn(1, 17, 32))
    batches: list[Batch] = [
        {"pixel_values": torch.randn(3, 3, 16, 16), "labels": torch.randint(0, 6, (3,))} for _step in range(2)
    ]
    return Program(model, batches, _call, token_loss, sgd(lr=0.05, weight_decay=1e-2, groups="two"))


@network("whisper")
def whisper(_: Flags) -> Program:
    config = transformers.WhisperConfig(
        vocab_size=52,
        num_mel_bins=8,
        d_model=32,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=48,
        decoder_ffn_dim=48,
        max_source_positions=10,
        max_target_positions=16,
        dropout=0.0,
        use_cache=False,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=1,
        suppress_tokens=[],
        begin_suppress_tokens=[],
    )
    model = _larger(transformers.WhisperForConditionalGeneration(config), 3.0)
    batches: list[Batch] = [
        {
            "input_features": torch.randn(2, 8, 20),
            "decoder_input_ids": torch.randint(3, 52, (2, 7)),
            "labels": torch.randint(3, 52, (2, 7)),
        }
        for _step in range(2)
    ]
    return Program(model, batches, _call, token_loss, sgd(lr=0.05))


@network("mamba")
def mamba(_: Flags) -> Program:
    config = transformers.MambaConfig(
        vocab_size=50,
        hidden_size=24,
        state_size=4,
        num_hidden_layers=2,
        expand=2,
        conv_kernel=4,
        time_step_rank=4,
        use_cache=False,
        use_mambapy=False,
    )
    model = _larger(transformers.MambaForCausalLM(config), 2.0)
    return Program(model, _text(50, tokens=9), _call, next_token_loss, adamw(lr=3e-3))


@network("wav2vec2")
def wav2vec2(_: Flags) -> Program:
    config = transformers.Wav2Vec2Config(
        vocab_size=20,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=48,
        conv_dim=(16, 16),
        conv_stride=(4, 2),
        conv_kernel=(8, 3),
        num_feat_extract_layers=2,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        activation_dropout=0.0,
        feat_proj_dropout=0.0,
        final_dropout=0.0,
        layerdrop=0.0,
        num_conv_pos_embeddings=8,
        num_conv_pos_embedding_groups=4,
        mask_time_prob=0.0,
        num_labels=4,
        classifier_proj_size=16,
    )
    model = _larger(transformers.Wav2Vec2ForSequenceClassification(config), 2.0)
    batches: list[Batch] = [
        {"input_values": torch.randn(2, 160), "labels": torch.randint(0, 4, (2,))} for _step in range(2)
    ]
    return Program(model, batches, _call, token_loss, sgd(lr=0.02))
