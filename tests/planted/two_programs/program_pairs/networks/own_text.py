"""Hand-written networks of sequences and graphs; their flags choose another style or plant a fault."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from program_pairs.case import network
from program_pairs.networks.transformers_networks import next_token_loss
from program_pairs.optimizers import adamw, sgd
from program_pairs.program import Batch, Program
from program_pairs.training import LoopOptions

Flags = frozenset[str]


class SelfAttention(nn.Module):
    """Causal attention with a learned gate a head."""

    def __init__(self, width: int, heads: int, flags: Flags) -> None:
        super().__init__()
        self.heads, self.flags = heads, flags
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.gate = nn.Parameter(torch.ones(heads) + 0.1 * torch.randn(heads))
        mask = torch.ones(64, 64).tril()
        self.mask = nn.Buffer(mask == 0, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens, width = x.shape
        query, key, value = self.qkv(x).split(width, dim=-1)
        query, key, value = (part.view(batch, tokens, self.heads, -1).transpose(1, 2) for part in (query, key, value))
        mask = self.mask[:tokens, :tokens]
        scale = 1 / math.sqrt(query.shape[-1])
        if "gpt_scale_of_width" in self.flags:
            scale = 1 / math.sqrt(width)
        if "gpt_mask_diagonal" in self.flags:
            mask = torch.ones(tokens, tokens).triu(2) > 0  # planted: gpt_mask_diagonal
        if "sdpa" in self.flags:
            mixed = functional.scaled_dot_product_attention(query, key, value, attn_mask=~mask)
        elif "additive_mask" in self.flags:
            scores = query @ key.transpose(-1, -2) * scale  # planted: gpt_scale_of_width
            scores = scores + mask.to(scores.dtype) * -1e9  # planted: gpt_mask_diagonal
            mixed = torch.softmax(scores, -1) @ value
        else:
            scores = query @ key.transpose(-1, -2) * scale  # planted: gpt_scale_of_width
            if "gpt_mask_zero" in self.flags:
                scores = scores.masked_fill(mask, 0.0)  # planted: gpt_mask_zero
            elif "gpt_mask_not_in_place" in self.flags:
                scores.masked_fill(mask, float("-inf"))  # planted: gpt_mask_not_in_place
            else:
                scores = scores.masked_fill(mask, float("-inf"))  # planted: gpt_mask_diagonal
            mixed = torch.softmax(scores, -1) @ value  # planted: gpt_mask_not_in_place
        if "gpt_gate_of_token" in self.flags:
            mixed = mixed * self.gate.repeat(tokens)[:tokens].view(1, 1, -1, 1)  # planted: gpt_gate_of_token
        else:
            mixed = mixed * self.gate.view(1, -1, 1, 1)
        if "gpt_heads_not_merged" in self.flags:
            return self.out(mixed.reshape(batch, tokens, width))  # planted: gpt_heads_not_merged
        return self.out(mixed.transpose(1, 2).reshape(batch, tokens, width))


class FeedForward(nn.Module):
    """Two linear layers."""

    def __init__(self, width: int, flags: Flags) -> None:
        super().__init__()
        self.up, self.down, self.flags = nn.Linear(width, 3 * width), nn.Linear(3 * width, width), flags

    def forward(self, x: Tensor) -> Tensor:
        inner = self.up(x)
        if "gpt_squared_relu" in self.flags:
            return self.down(torch.relu(inner).square())  # planted: gpt_squared_relu
        if "own_functions" in self.flags:
            return self.down(0.5 * inner * (1 + torch.erf(inner * 0.7071067811865476)))
        return self.down(functional.gelu(inner))


class Block(nn.Module):
    """A block with the norms in front."""

    def __init__(self, width: int, heads: int, flags: Flags) -> None:
        super().__init__()
        self.flags = flags
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention, self.feed_forward = SelfAttention(width, heads, flags), FeedForward(width, flags)

    def forward(self, x: Tensor) -> Tensor:
        if "gpt_same_norm" in self.flags:
            x = x + self.attention(self.norm1(x))
            return x + self.feed_forward(self.norm1(x))  # planted: gpt_same_norm
        if "operand_order" in self.flags:
            x = self.attention(self.norm1(x)) + x
            return self.feed_forward(self.norm2(x)) + x
        x = x + self.attention(self.norm1(x))
        return x + self.feed_forward(self.norm2(x))


class OwnGPT(nn.Module):
    """A decoder with tied embeddings and sinusoidal positions."""

    def __init__(self, flags: Flags, vocabulary: int = 40, width: int = 32, layers: int = 3) -> None:
        super().__init__()
        self.flags = flags
        self.tokens = nn.Embedding(vocabulary, width)
        nn.init.normal_(self.tokens.weight, std=0.3)
        self.blocks = nn.ModuleList(Block(width, 4, flags) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        if "gpt_head_not_tied" in flags:
            self.head.weight = nn.Parameter(self.tokens.weight.detach().clone())
        else:
            self.head.weight = self.tokens.weight

    def _positions(self, tokens: int, width: int, dtype: torch.dtype) -> Tensor:
        position = torch.arange(tokens, dtype=dtype)[:, None]
        if "gpt_positions_from_one" in self.flags:
            position = position + 1  # planted: gpt_positions_from_one
        base = 1e3 if "gpt_position_base" in self.flags else 1e4
        rate = torch.exp(
            torch.arange(0, width, 2, dtype=dtype) * (-math.log(base) / width)
        )  # planted: gpt_position_base
        angle = position * rate
        if "gpt_positions_not_interleaved" in self.flags:
            return torch.cat((angle.sin(), angle.cos()), -1)  # planted: gpt_positions_not_interleaved
        return torch.stack((angle.sin(), angle.cos()), -1).flatten(1)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids)
        scale = math.sqrt(x.shape[-1]) * 0.2
        if "gpt_embedding_scale" in self.flags:
            scale = 1.0
        x = x * scale + self._positions(ids.shape[1], x.shape[-1], x.dtype)  # planted: gpt_embedding_scale
        for index, block in enumerate(self.blocks):
            if "gpt_layer_skipped" in self.flags and index == 1:
                continue
            x = block(x)  # planted: gpt_layer_skipped
        if "gpt_no_final_norm" in self.flags:
            return self.head(x)  # planted: gpt_no_final_norm
        return self.head(self.norm(x))


@network("own_gpt")
def own_gpt(flags: Flags) -> Program:
    batches: list[Batch] = []
    for _ in range(2):
        ids = torch.randint(0, 40, (2, 12))
        batches.append({"ids": ids, "labels": ids, "shift": True})

    def forward(model: nn.Module, batch: Batch) -> Tensor:
        logits: Tensor = model(batch["ids"])  # place: network_call
        return logits

    return Program(OwnGPT(flags), batches, forward, next_token_loss, sgd(lr=0.1), options=LoopOptions(max_norm=2.0))


class GatedCell(nn.Module):
    """A GRU cell from linear layers."""

    def __init__(self, old: nn.GRU, layer: int, flags: Flags) -> None:
        super().__init__()
        self.flags = flags
        self.weight_input = getattr(old, f"weight_ih_l{layer}")
        self.weight_hidden = getattr(old, f"weight_hh_l{layer}")
        self.bias_input, self.bias_hidden = getattr(old, f"bias_ih_l{layer}"), getattr(old, f"bias_hh_l{layer}")

    def forward(self, x: Tensor, hidden: Tensor) -> Tensor:
        of_input = functional.linear(x, self.weight_input, self.bias_input)
        of_hidden = functional.linear(hidden, self.weight_hidden, self.bias_hidden)
        if "gru_order_of_gates" in self.flags:
            update_in, reset_in, new_in = of_input.chunk(3, -1)  # planted: gru_order_of_gates
            update_of, reset_of, new_of = of_hidden.chunk(3, -1)  # planted: gru_order_of_gates
        else:
            reset_in, update_in, new_in = of_input.chunk(3, -1)
            reset_of, update_of, new_of = of_hidden.chunk(3, -1)
        reset = torch.sigmoid(reset_in + reset_of)  # planted: gru_order_of_gates
        update = torch.sigmoid(update_in + update_of)  # planted: gru_order_of_gates
        if "gru_reset_before" in self.flags:
            size = hidden.shape[-1]
            weight, bias = self.weight_hidden[-size:], self.bias_hidden[-size:]
            new_of = functional.linear(reset * hidden, weight, bias)  # planted: gru_reset_before
            new = torch.tanh(new_in + new_of)  # planted: gru_reset_before
        else:
            new = torch.tanh(new_in + reset * new_of)
        if "gru_update_reversed" in self.flags:
            return update * new + (1 - update) * hidden  # planted: gru_update_reversed
        return (1 - update) * new + update * hidden


class Tagger(nn.Module):
    """Two GRU layers by hand, or those of PyTorch, and a classifier of the mean of the tokens that are no padding."""

    def __init__(self, flags: Flags) -> None:
        super().__init__()
        self.flags = flags
        self.embed = nn.Embedding(30, 16, padding_idx=0)
        rnn = nn.GRU(16, 20, num_layers=2, batch_first=True)
        if "library_gru" in flags:
            self.rnn = rnn
        else:
            self.cells = nn.ModuleList(GatedCell(rnn, layer, flags) for layer in range(2))
        self.classify = nn.Linear(20, 4)

    def _run(self, x: Tensor) -> Tensor:
        if "library_gru" in self.flags:
            return self.rnn(x)[0]
        hidden = [x.new_zeros(x.shape[0], 20) for _ in self.cells]
        outputs = []
        for token in range(x.shape[1]):
            value = x[:, token]
            for index, cell in enumerate(self.cells):
                if "gru_state_detached" in self.flags:
                    hidden[index] = cell(value, hidden[index].detach())  # planted: gru_state_detached
                elif "gru_layers_share_state" in self.flags:
                    hidden[index] = cell(value, hidden[0])  # planted: gru_layers_share_state
                else:
                    hidden[index] = cell(value, hidden[index])
                value = hidden[index]
            outputs.append(value)
        if "gru_outputs_early" in self.flags:
            return torch.stack([outputs[0], *outputs[:-1]], 1)  # planted: gru_outputs_early
        return torch.stack(outputs, 1)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        hidden = self._run(x)
        mask = (ids != 0).to(hidden.dtype)[..., None]
        if "gru_padding_counted" in self.flags:
            pooled = hidden.mean(1)  # planted: gru_padding_counted
        elif "gru_last_token" in self.flags:
            pooled = hidden[:, -1]  # planted: gru_last_token
        elif "einsum_pool" in self.flags:
            pooled = torch.einsum("btc,bt->bc", hidden, mask[..., 0] / mask.sum(1))
        else:
            pooled = (hidden * mask).sum(1) / mask.sum(1)
        return self.classify(pooled)


@network("own_gru")
def own_gru(flags: Flags) -> Program:
    batches: list[Batch] = []
    for _ in range(2):
        ids = torch.randint(1, 30, (4, 8))
        ids[1, -3:] = 0
        ids[3, -1:] = 0
        batches.append({"ids": ids, "labels": torch.randint(0, 4, (4,))})

    def forward(model: nn.Module, batch: Batch) -> Tensor:
        logits: Tensor = model(batch["ids"])  # place: network_call
        return logits

    def criterion(logits: Tensor, batch: Batch) -> Tensor:
        if "gru_loss_of_softmax" in flags:
            return functional.cross_entropy(logits.softmax(-1), batch["labels"])  # planted: gru_loss_of_softmax
        return functional.cross_entropy(logits, batch["labels"])

    return Program(Tagger(flags), batches, forward, criterion, adamw(lr=5e-3, groups="one"))


class GraphLayer(nn.Module):
    """A graph convolution with symmetric normalisation and an attention of edges."""

    def __init__(self, width: int, flags: Flags) -> None:
        super().__init__()
        self.flags = flags
        self.message, self.own = nn.Linear(width, width, bias=False), nn.Linear(width, width)
        self.score = nn.Linear(2 * width, 1)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        source, target = edges
        if "gnn_direction" in self.flags:
            source, target = target, source
        count = x.shape[0]
        degree = x.new_zeros(count).index_add(0, target, x.new_ones(target.shape[0]))
        degree = degree.clamp(min=1)
        score = self.score(torch.cat((x[source], x[target]), -1))[:, 0]  # planted: gnn_direction
        slope = 0.01 if "gnn_slope" in self.flags else 0.2
        raw = functional.leaky_relu(score, slope)  # planted: gnn_slope
        if "gnn_softmax_of_all" in self.flags:
            share = torch.softmax(raw, 0)  # planted: gnn_softmax_of_all
        else:
            power = torch.exp(raw)
            total = x.new_zeros(count).index_add(0, target, power)
            share = power / total[target]
        messages = self.message(x)[source] * share[:, None]  # planted: gnn_direction
        if "gnn_degree_lost" not in self.flags:
            messages = messages * (degree[source] * degree[target]).rsqrt()[:, None]
        if "dense_graph" in self.flags:
            table = x.new_zeros(count, target.shape[0])
            table[target, torch.arange(target.shape[0])] = 1.0
            gathered = table @ messages
        elif "gnn_last_message" in self.flags:
            gathered = torch.zeros_like(x).index_copy(0, target, messages)  # planted: gnn_last_message
        else:
            gathered = torch.zeros_like(x).index_add(0, target, messages)  # planted: gnn_degree_lost
        if "gnn_own_lost" in self.flags:
            return torch.relu(gathered)  # planted: gnn_own_lost
        if "operand_order" in self.flags:
            return torch.relu(gathered + self.own(x))
        return torch.relu(self.own(x) + gathered)


class GraphNet(nn.Module):
    """Three layers and a mean of each graph."""

    def __init__(self, flags: Flags) -> None:
        super().__init__()
        self.flags = flags
        self.embed = nn.Linear(6, 16)
        self.layers = nn.ModuleList(GraphLayer(16, flags) for _ in range(3))
        self.readout = nn.Linear(16, 3)

    def forward(self, x: Tensor, edges: Tensor, graph: Tensor) -> Tensor:
        x = self.embed(x)
        for layer in self.layers:
            if "gnn_residual_lost" in self.flags:
                x = layer(x, edges)  # planted: gnn_residual_lost
            else:
                x = x + layer(x, edges)
        total = x.new_zeros(4, 16).index_add(0, graph, x)
        number = torch.bincount(graph, minlength=4).to(x.dtype)[:, None]
        if "gnn_sum_of_graph" in self.flags:
            return self.readout(total)  # planted: gnn_sum_of_graph
        if "gnn_count_of_edges" in self.flags:
            number = torch.bincount(graph[edges[0]], minlength=4).to(x.dtype)[:, None]  # planted: gnn_count_of_edges
        return self.readout(total / number)  # planted: gnn_count_of_edges


@network("own_gnn")
def own_gnn(flags: Flags) -> Program:
    batches: list[Batch] = []
    for _ in range(2):
        graph = torch.arange(20) // 5
        edges = torch.stack((torch.randint(0, 5, (40,)), torch.randint(0, 5, (40,)))) + 5 * (torch.arange(40) // 10)
        if "sorted_edges" in flags:
            order = torch.argsort(edges[1], stable=True)
            edges = edges[:, order]
        batches.append(
            {"nodes": torch.randn(20, 6), "edges": edges, "graph": graph, "labels": torch.randint(0, 3, (4,))}
        )

    def forward(model: nn.Module, batch: Batch) -> Tensor:
        logits: Tensor = model(batch["nodes"], batch["edges"], batch["graph"])  # place: network_call
        return logits

    def criterion(logits: Tensor, batch: Batch) -> Tensor:
        return functional.cross_entropy(logits, batch["labels"])

    return Program(GraphNet(flags), batches, forward, criterion, adamw(lr=5e-3))


class Policy(nn.Module):
    """An actor and a critic on one body."""

    def __init__(self, flags: Flags) -> None:
        super().__init__()
        self.flags = flags
        self.body = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh())
        self.actor, self.critic = nn.Linear(32, 5), nn.Linear(32, 1)

    def forward(self, states: Tensor) -> Tensor:
        hidden = self.body(states)
        if "rl_critic_detached" in self.flags:
            return torch.cat((self.actor(hidden), self.critic(hidden.detach())), -1)  # planted: rl_critic_detached
        return torch.cat((self.actor(hidden), self.critic(hidden)), -1)


def _advantages(batch: Batch, flags: Flags) -> tuple[Tensor, Tensor]:
    rewards, values, done = batch["rewards"], batch["values"], batch["done"]
    discount, decay = (0.99, 0.95) if "rl_discount" not in flags else (0.9, 0.95)
    running, advantages = torch.zeros_like(rewards[0]), []
    for index in reversed(range(rewards.shape[0])):
        live = 1 - done[index]
        if "rl_done_lost" in flags:
            live = torch.ones_like(live)
        error = (
            rewards[index] + discount * live * values[index + 1] - values[index]
        )  # planted: rl_discount rl_done_lost
        running = error + discount * decay * live * running  # planted: rl_discount rl_done_lost
        advantages.append(running)
    if "rl_not_reversed" in flags:
        result = torch.stack(advantages)  # planted: rl_not_reversed
    else:
        result = torch.stack(advantages[::-1])
    return result, result + values[:-1]


def _policy_loss(output: Tensor, batch: Batch, flags: Flags) -> Tensor:
    logits, value = output[..., :-1], output[..., -1]
    advantage, target = _advantages(batch, flags)
    if "rl_advantage_raw" not in flags:
        advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
    if "own_functions" in flags:
        table = logits - logits.exp().sum(-1, keepdim=True).log()
    else:
        table = torch.log_softmax(logits, -1)
    chosen = table.gather(-1, batch["actions"][..., None])[..., 0]
    if "rl_ratio_of_logs" in flags:
        ratio = chosen / batch["old"]  # planted: rl_ratio_of_logs
    else:
        ratio = torch.exp(chosen - batch["old"])
    clipped = ratio.clamp(0.8, 1.2)
    if "rl_larger_loss" in flags:
        policy = -torch.max(ratio * advantage, clipped * advantage).mean()  # planted: rl_larger_loss
    else:
        policy = -torch.min(ratio * advantage, clipped * advantage).mean()  # planted: rl_advantage_raw
    entropy = -(table.exp() * table).sum(-1).mean()
    if "rl_entropy_sign" in flags:
        entropy = -entropy  # planted: rl_entropy_sign
    error = functional.mse_loss(value, target)
    if "rl_value_weight" in flags:
        return policy + error - 0.05 * entropy  # planted: rl_value_weight
    return policy + 0.5 * error - 0.05 * entropy  # planted: rl_entropy_sign


@network("own_policy")
def own_policy(flags: Flags) -> Program:
    batches: list[Batch] = []
    for _ in range(2):
        done = torch.zeros(10, 3)
        done[4, 0] = done[7, 2] = 1.0
        batches.append(
            {
                "states": torch.randn(10, 3, 8),
                "actions": torch.randint(0, 5, (10, 3)),
                "rewards": torch.randn(10, 3),
                "values": torch.randn(11, 3) * 0.5,
                "done": done,
                "old": -1.6 + 0.3 * torch.randn(10, 3),
            }
        )

    def forward(model: nn.Module, batch: Batch) -> Tensor:
        output: Any = model(batch["states"])  # place: network_call
        return output

    return Program(
        Policy(flags),
        batches,
        forward,
        lambda output, batch: _policy_loss(output, batch, flags),
        adamw(lr=3e-3, weight_decay=0.0, eps=1e-5),
        options=LoopOptions(max_norm=0.5),
    )
