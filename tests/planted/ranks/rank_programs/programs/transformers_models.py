"""A model of transformers, data-parallel and tensor-parallel."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

from rank_programs.common import STEPS, Context, Fault, program, seeded, tokens

LLAMA = "transformers.models.llama.modeling_llama"


def llama() -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=32,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=32,
        attn_implementation="eager",
        use_cache=False,
        tie_word_embeddings=False,
    )
    return LlamaForCausalLM(config).train()


def plant(ctx: Context, model: Any) -> None:
    layer = model.model.layers[1]
    if ctx.planted("eps"):
        layer.post_attention_layernorm.variance_epsilon = 0.7
    if ctx.planted("scaling"):
        layer.self_attn.scaling = 3.0
    if ctx.planted("rotary"):
        model.model.rotary_emb.attention_scaling = 2.0
    if ctx.planted("norm"):
        model.model.norm.weight.data.mul_(1.6)


def train(ctx: Context, model: Any, optimizer: torch.optim.Optimizer, *, is_cut: bool) -> None:
    with ctx.capture(model):
        for step in range(STEPS):
            ids = tokens(step)[0]
            labels = ids.clone()
            if not is_cut:
                ids, labels = ctx.rows(ids, labels)
            if ctx.planted("labels"):
                labels = labels.roll(2, 1)  # planted: labels
            loss = model(input_ids=ids, labels=labels).loss  # planted: labels
            loss.backward()
            if ctx.planted("clip"):
                nn.utils.clip_grad_norm_(model.parameters(), 0.05)  # planted: clip
            optimizer.step()  # planted: rate, update
            optimizer.zero_grad()
            ctx.loss(loss)


@program(
    "transformers_ddp",
    imports=LLAMA,
    tolerance=2e-4,
    eps=Fault("another eps of a norm on rank 1", at=r"layers\.1\.post_attention_layernorm"),
    scaling=Fault("another scale of the scores on rank 1", at=r"layers\.1\.self_attn"),
    rotary=Fault("another scale of the rotary embedding on rank 1", at=r"rotary_emb"),
    labels=Fault("rank 1 shifts its labels", at=r"roll"),
    clip=Fault("rank 1 alone clips gradients", at=r"clip", rules="replicas"),
)
def transformers_ddp(ctx: Context) -> None:
    net = seeded(llama)
    model = net if ctx.single else DistributedDataParallel(net)
    plant(ctx, net)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.5, momentum=0.9)
    train(ctx, model, optimizer, is_cut=False)
    ctx.end(net.named_parameters())


@program(
    "transformers_tp",
    imports=LLAMA,
    tolerance=2e-4,
    norm=Fault("other weights of the last norm on rank 1", at=r"model\.norm", rules="replicas"),
    shard=Fault("rank 1 loads another part of the rows of a layer", at=r"layers\.0\.mlp\.down_proj", alone=False),
    scaling=Fault("another scale of the scores on rank 1", at=r"layers\.1\.self_attn"),
    rate=Fault("another learning rate on rank 1", rules="replicas shard-update", update=True),
)
def transformers_tp(ctx: Context) -> None:
    net: Any = seeded(llama)
    if not ctx.single:
        plan: dict[str, Any] = {}
        for name in ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "mlp.gate_proj", "mlp.up_proj"):
            plan[f"model.layers.*.{name}"] = ColwiseParallel()
        for name in ("self_attn.o_proj", "mlp.down_proj"):
            plan[f"model.layers.*.{name}"] = RowwiseParallel()
        parallelize_module(net, init_device_mesh("cpu", (ctx.world,)), plan)
    plant(ctx, net)
    if ctx.planted("shard"):
        part = net.model.layers[0].mlp.down_proj.weight.to_local().detach().numpy()
        part[:] = part[:, ::-1].copy()
    optimizer = torch.optim.SGD(net.parameters(), lr=1.5 if ctx.planted("rate") else 0.5, momentum=0.9)
    train(ctx, net, optimizer, is_cut=True)
    whole = (
        (name, value.full_tensor() if isinstance(value, DTensor) else value) for name, value in net.named_parameters()
    )
    ctx.end(whole)
