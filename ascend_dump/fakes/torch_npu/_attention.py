"""Attention operators of torch_npu, computed on the host in float32.

A batch is split into sequences, each a tensor of shape (heads, tokens, size of a head), and each sequence is computed
by itself. Layouts, sparse modes and results are those in the documents of npu_fusion_attention and
npu_fused_infer_attention_score.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple, Optional

import torch

from ascend_dump import NotSupported
from ascend_dump.fakes.torch_npu._operators import gradient, operator, refuse

__all__: list[str] = []

_Tensors = list[torch.Tensor]
_ALL = 2147483647
#: The outputs with softmax statistics contain each value this many times, in their last axis.
_COPIES = 8

_FUSION = (
    "int head_num, str input_layout, {}Tensor? pse=None, Tensor? padding_mask=None, Tensor? atten_mask=None, {}"
    "float keep_prob=1., int pre_tockens=2147483647, int next_tockens=2147483647, int inner_precise=0, {}"
    "int[]? prefix=None, int[]? actual_seq_qlen=None, int[]? actual_seq_kvlen=None, int sparse_mode=0,"
    " bool gen_mask_parallel=True, bool sync=False, str softmax_layout='', Tensor? sink=None"
)
_INFER = (
    "Tensor query, Tensor key, Tensor value, *, Tensor? pse_shift=None, Tensor? atten_mask=None,"
    " SymInt[]? actual_seq_lengths=None, SymInt[]? actual_seq_lengths_kv=None, Tensor? dequant_scale1=None,"
    " Tensor? quant_scale1=None, Tensor? dequant_scale2=None, Tensor? quant_scale2=None, Tensor? quant_offset2=None,"
    " Tensor? antiquant_scale=None, Tensor? antiquant_offset=None, Tensor? key_antiquant_scale=None,"
    " Tensor? key_antiquant_offset=None, Tensor? value_antiquant_scale=None, Tensor? value_antiquant_offset=None,"
    " Tensor? block_table=None, Tensor? query_padding_size=None, Tensor? kv_padding_size=None,"
    " Tensor? key_shared_prefix=None, Tensor? value_shared_prefix=None, SymInt[]? actual_shared_prefix_len=None,"
    " Tensor? query_rope=None, Tensor? key_rope=None, Tensor? key_rope_antiquant_scale=None, int num_heads=1,"
    " float scale=1.0, int pre_tokens=2147483647, int next_tokens=2147483647, str input_layout='BSH',"
    " int num_key_value_heads=0, int sparse_mode=0, int inner_precise=0, int block_size=0, int antiquant_mode=0,"
    " int key_antiquant_mode=0, int value_antiquant_mode=0, bool softmax_lse_flag=False"
)
_INFER_V2 = (
    "Tensor query, Tensor key, Tensor value, *, Tensor? query_rope=None, Tensor? key_rope=None,"
    " Tensor? pse_shift=None, Tensor? atten_mask=None, SymInt[]? actual_seq_qlen=None,"
    " SymInt[]? actual_seq_kvlen=None, Tensor? block_table=None, Tensor? dequant_scale_query=None,"
    " Tensor? dequant_scale_key=None, Tensor? dequant_offset_key=None, Tensor? dequant_scale_value=None,"
    " Tensor? dequant_offset_value=None, Tensor? dequant_scale_key_rope=None, Tensor? quant_scale_out=None,"
    " Tensor? quant_offset_out=None, Tensor? quant_scale_p=None, Tensor? learnable_sink=None,"
    " int num_query_heads=1, int num_key_value_heads=0, float softmax_scale=1.0, int pre_tokens=2147483647,"
    " int next_tokens=2147483647, str input_layout='BSH', int sparse_mode=0, int block_size=0,"
    " int query_quant_mode=0, int key_quant_mode=0, int value_quant_mode=0, int inner_precise=0,"
    " bool return_softmax_lse=False"
)
#: The end of the schema of a variant with `out=`, which takes a list of the two outputs.
_OUT = ", Tensor? workspace=None, Tensor[] out) -> (Tensor, Tensor)"


class _Settings(NamedTuple):
    """The settings of a call, which apply to all its sequences.

    before, after  numbers of tokens before and after its own position that a query sees
    keep           probability with which dropout keeps a weight
    """

    heads: int
    layout: str
    scale: float
    mask: Optional[torch.Tensor] = None
    bias: Optional[torch.Tensor] = None
    sparse_mode: int = 0
    before: int = _ALL
    after: int = _ALL
    keep: float = 1.0


class _Softmax(NamedTuple):
    """The softmax of the scores, with the maximum and the sum of each row. The sum is that of exp(score - maximum)."""

    weights: torch.Tensor
    highest: torch.Tensor
    total: torch.Tensor


def _split(tensor: torch.Tensor, layout: str, heads: int, lengths: Optional[Sequence[int]]) -> _Tensors:
    """Return the sequences of a batch, each of shape (heads, tokens, size of a head).

    lengths: in the layouts TND and NTD the end of each sequence, as a number of tokens from the start of the batch.
    """
    if layout in ("TND", "NTD"):
        if lengths is None:
            raise RuntimeError(f"the layout {layout} needs the lengths of the sequences")
        by_head = tensor.transpose(0, 1) if layout == "TND" else tensor
        return list(by_head[:, : lengths[-1]].split([int(n) for n in _differences(lengths)], 1))
    if layout == "SBH":
        tensor, layout = tensor.transpose(0, 1), "BSH"
    if layout == "BSH":
        tensor, layout = tensor.unflatten(-1, (heads, -1)), "BSND"
    if layout == "BSND":
        tensor = tensor.transpose(1, 2)
    elif layout != "BNSD":
        raise NotSupported(
            f"the fake torch_npu has no attention in the layout {layout}", hint="use BSH, SBH, BSND, BNSD, TND or NTD"
        )
    return list(tensor.unbind(0))


def _join(sequences: _Tensors, layout: str, like: torch.Tensor) -> torch.Tensor:
    """Return sequences as a batch in a layout, with the dtype of `like`.

    In TND and NTD it has as many tokens as `like`; those after the last sequence are 0.
    """
    if layout in ("TND", "NTD"):
        joined = torch.cat(sequences, 1)
        axis = 0 if layout == "TND" else 1
        joined = torch.nn.functional.pad(joined, (0, 0, 0, like.shape[axis] - joined.shape[1]))
        return (joined.transpose(0, 1) if layout == "TND" else joined).to(like.dtype).contiguous()
    joined = torch.stack(sequences)
    if layout != "BNSD":
        joined = joined.transpose(1, 2)
    if layout in ("BSH", "SBH"):
        joined = joined.flatten(2)
    if layout == "SBH":
        joined = joined.transpose(0, 1)
    return joined.to(like.dtype).contiguous()


def _differences(ends: Sequence[int]) -> list[int]:
    return [end - start for start, end in zip((0, *ends), ends)]


def _part(values: Optional[torch.Tensor], index: int, query: int, key: int) -> Optional[torch.Tensor]:
    """Return the part of a mask or bias for one sequence, with at most `query` rows and `key` columns.

    index: number of the sequence. A mask with two dimensions, or for one sequence, applies to all sequences.
    """
    if values is None:
        return None
    if values.dim() >= 3:
        values = values[index if values.shape[0] > 1 else 0]
    return values[..., :query, :key]


def _hidden(settings: _Settings, index: int, query: int, key: int) -> Optional[torch.Tensor]:
    """Return a tensor of shape (…, query, key) that is True if the query does not see the key; None if all are seen."""
    mode = settings.sparse_mode
    if mode not in (0, 1, 2, 3, 4):
        raise NotSupported(f"the fake torch_npu has no attention with sparse_mode {mode}", hint="it has 0 to 4")
    distance = torch.arange(key) - torch.arange(query).unsqueeze(1)
    if mode == 2:
        return distance > 0
    if mode == 3:
        return distance > key - query
    if mode == 4:
        distance = distance - (key - query)
        return (distance > settings.after) | (distance < -settings.before)
    if settings.mask is None:
        return None
    hidden = _part(settings.mask, index, query, key)
    assert hidden is not None, "there is a mask"
    if mode == 0:
        return hidden.bool() | (distance > settings.after) | (distance < -settings.before)
    return hidden.bool()


def _softmax(query: torch.Tensor, key: torch.Tensor, settings: _Settings, index: int) -> _Softmax:
    """Return the softmax for sequence `index`."""
    scores = query.float() @ _for_heads(key, query).float().transpose(-1, -2) * settings.scale
    bias = _part(settings.bias, index, *scores.shape[-2:])
    if bias is not None:
        scores = scores + bias.float()
    hidden = _hidden(settings, index, *scores.shape[-2:])
    if hidden is not None:
        scores = scores.masked_fill(hidden, -math.inf)
    highest = scores.amax(-1, keepdim=True)
    # A query that sees no key has the maximum -Inf. The limits in the next lines let its weights be 0, not NaN.
    powers = torch.exp(scores - highest.clamp_min(torch.finfo(torch.float32).min))
    total = powers.sum(-1, keepdim=True)
    return _Softmax(powers / total.clamp_min(torch.finfo(torch.float32).tiny), highest, total)


def _for_heads(key: torch.Tensor, query: torch.Tensor) -> torch.Tensor:
    """Repeat the heads of keys or values, so that there is one for each head of the queries."""
    return key.repeat_interleave(query.shape[0] // key.shape[0], 0)


def _dropout(weights: torch.Tensor, keep: float, generator: torch.Generator) -> torch.Tensor:
    """Return the factor of each weight: 0 if it is dropped, else 1 / keep."""
    return (torch.rand(weights.shape, generator=generator) < keep) / keep


@operator(
    "npu_fusion_attention(Tensor query, Tensor key, Tensor value, "
    + _FUSION.format("", "float scale=1., ", "")
    + ", Tensor? dropout_mask=None, int seed=0, int offset=0) -> (Tensor, Tensor, Tensor, Tensor, int, int, int)"
)
def _fusion_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    head_num: int,
    input_layout: str,
    pse: Optional[torch.Tensor] = None,
    padding_mask: Optional[torch.Tensor] = None,
    atten_mask: Optional[torch.Tensor] = None,
    scale: float = 1.0,
    keep_prob: float = 1.0,
    pre_tockens: int = _ALL,
    next_tockens: int = _ALL,
    inner_precise: int = 0,
    prefix: Any = None,
    actual_seq_qlen: Any = None,
    actual_seq_kvlen: Any = None,
    sparse_mode: int = 0,
    gen_mask_parallel: bool = True,
    sync: bool = False,
    softmax_layout: str = "",
    sink: Any = None,
    dropout_mask: Any = None,
    seed: int = 0,
    offset: int = 0,
) -> tuple[Any, ...]:
    refuse("npu_fusion_attention", padding_mask=padding_mask, prefix=prefix, sink=sink, dropout_mask=dropout_mask)
    settings = _Settings(
        head_num, input_layout, scale, atten_mask, pse, sparse_mode, pre_tockens, next_tockens, keep_prob
    )
    queries, keys, values = _sequences(query, key, value, settings, actual_seq_qlen, actual_seq_kvlen)
    seed = int(torch.randint(1 << 31, ())) if keep_prob < 1 else seed
    generator = torch.Generator().manual_seed(seed)
    outputs, highest, totals, numels = [], [], [], 0
    for index, (one_query, one_key, one_value) in enumerate(zip(queries, keys, values)):
        weights, top, total = _softmax(one_query, one_key, settings, index)
        numels += weights.numel()
        if keep_prob < 1:
            weights = weights * _dropout(weights, keep_prob, generator)
        outputs.append(weights @ _for_heads(one_value, one_query).float())
        highest.append(top.expand(*top.shape[:-1], _COPIES))
        totals.append(total.expand(*total.shape[:-1], _COPIES))
    statistics = "TND" if input_layout == "TND" else "BNSD"
    like = query.new_empty(query.shape[0], dtype=torch.float32)
    return (
        _join(outputs, input_layout, query),
        _join(highest, statistics, like),
        _join(totals, statistics, like),
        query.new_empty(0),
        seed,
        offset,
        numels if keep_prob < 1 else 0,
    )


def _sequences(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, settings: _Settings, query_ends: Any, key_ends: Any
) -> tuple[_Tensors, _Tensors, _Tensors]:
    heads, layout = settings.heads, settings.layout
    queries = _split(query, layout, heads, query_ends)
    size = queries[0].shape[-1]
    # In BSH and SBH all heads are one axis. The number of key heads then follows from the size of a query's head.
    key_heads = key.shape[-1] // size if layout in ("BSH", "SBH") else heads
    return queries, _split(key, layout, key_heads, key_ends), _split(value, layout, key_heads, key_ends)


@operator(
    "npu_fusion_attention_grad(Tensor query, Tensor key, Tensor value, Tensor dy, "
    + _FUSION.format(
        "*, ",
        "Tensor? softmax_max=None, Tensor? softmax_sum=None, Tensor? softmax_in=None, Tensor? attention_in=None, "
        "float scale_value=1., ",
        "int seed=0, int offset=0, int numels=0, ",
    )
    + ") -> (Tensor, Tensor, Tensor, Tensor, Tensor)"
)
def _fusion_attention_grad(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    dy: torch.Tensor,
    head_num: int,
    input_layout: str,
    *,
    pse: Optional[torch.Tensor] = None,
    atten_mask: Optional[torch.Tensor] = None,
    scale_value: float = 1.0,
    keep_prob: float = 1.0,
    pre_tockens: int = _ALL,
    next_tockens: int = _ALL,
    seed: int = 0,
    actual_seq_qlen: Any = None,
    actual_seq_kvlen: Any = None,
    sparse_mode: int = 0,
    padding_mask: Any = None,
    prefix: Any = None,
    sink: Any = None,
    **recomputed: Any,
) -> tuple[Any, ...]:
    """Return the gradients of query, key, value and bias, and an empty tensor.

    The softmax is computed anew; the statistics from the forward pass (`recomputed`) are not used.
    """
    refuse("npu_fusion_attention_grad", padding_mask=padding_mask, prefix=prefix, sink=sink)
    settings = _Settings(
        head_num, input_layout, scale_value, atten_mask, pse, sparse_mode, pre_tockens, next_tockens, keep_prob
    )
    queries, keys, values = _sequences(query, key, value, settings, actual_seq_qlen, actual_seq_kvlen)
    generator = torch.Generator().manual_seed(seed)
    grads: tuple[_Tensors, _Tensors, _Tensors] = ([], [], [])
    dpse = torch.zeros_like(pse, dtype=torch.float32) if pse is not None else query.new_empty(0)
    for index, grad in enumerate(_split(dy, input_layout, head_num, actual_seq_qlen)):
        one_query, one_key, wide = queries[index].float(), keys[index].float(), grad.float()
        weights = _softmax(one_query, one_key, settings, index).weights
        factors = _dropout(weights, keep_prob, generator) if keep_prob < 1 else torch.ones(())
        dweights = wide @ _for_heads(values[index].float(), one_query).transpose(-1, -2) * factors
        dscores = weights * (dweights - (dweights * weights).sum(-1, keepdim=True))
        grads[0].append(dscores @ _for_heads(one_key, one_query) * scale_value)
        grads[1].append(_sum_heads(dscores.transpose(-1, -2) @ one_query * scale_value, one_key))
        grads[2].append(_sum_heads((weights * factors).transpose(-1, -2) @ wide, values[index]))
        part = _part(dpse if pse is not None else None, index, *dscores.shape[-2:])
        if part is not None:
            part += dscores.sum_to_size(part.shape)
    results = (_join(each, input_layout, like) for each, like in zip(grads, (query, key, value)))
    return (*results, dpse if pse is None else dpse.to(pse.dtype), query.new_empty(0))


def _sum_heads(grad: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    """Sum the gradients of query heads that share a key head."""
    return grad.unflatten(0, (key.shape[0], -1)).sum(1)


_SAVED = ("pse", "atten_mask")
_FORWARD = (
    *("query", "key", "value", "head_num", "input_layout", "pse", "padding_mask", "atten_mask", "scale", "keep_prob"),
    *("pre_tockens", "next_tockens", "inner_precise", "prefix", "actual_seq_qlen", "actual_seq_kvlen", "sparse_mode"),
    *("gen_mask_parallel", "sync", "softmax_layout", "sink", "dropout_mask", "seed", "offset"),
)


def _save_fusion(ctx: Any, inputs: Any, output: Any) -> None:
    values = dict(zip(_FORWARD, inputs))
    ctx.save_for_backward(*inputs[:3], *(values[name] for name in _SAVED), *output[:4])
    ctx.mark_non_differentiable(*output[1:4])
    ctx.count = len(inputs)
    ctx.head_num, ctx.input_layout = values["head_num"], values["input_layout"]
    copied = (
        *("keep_prob", "pre_tockens", "next_tockens", "inner_precise", "actual_seq_qlen", "actual_seq_kvlen"),
        *("sparse_mode", "softmax_layout"),
    )
    ctx.options = {name: values[name] for name in copied}
    ctx.options.update(scale_value=values["scale"], seed=output[4], offset=output[5], numels=output[6])


@gradient("npu_fusion_attention", _save_fusion)
def _fusion_gradient(ctx: Any, dy: torch.Tensor, *others: Any) -> tuple[Any, ...]:
    query, key, value, pse, mask, attention, highest, total, softmax = ctx.saved_tensors
    tensors = {"softmax_max": highest, "softmax_sum": total, "softmax_in": softmax, "attention_in": attention}
    dquery, dkey, dvalue, dpse, _ = torch.ops.npu.npu_fusion_attention_grad(
        query, key, value, dy, ctx.head_num, ctx.input_layout, pse=pse, atten_mask=mask, **tensors, **ctx.options
    )
    return (dquery, dkey, dvalue, None, None, None if pse is None else dpse, *(None,) * (ctx.count - 6))


@operator(f"npu_fused_infer_attention_score({_INFER}) -> (Tensor, Tensor)")
def _infer(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, **options: Any) -> tuple[Any, Any]:
    return _inference("npu_fused_infer_attention_score", query, key, value, options)


@operator(f"npu_fused_infer_attention_score.out({_INFER}{_OUT}")
def _infer_out(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, **options: Any) -> tuple[Any, Any]:
    return _into(_infer, query, key, value, options)


@operator(f"npu_fused_infer_attention_score_v2({_INFER_V2}) -> (Tensor, Tensor)")
def _infer_v2(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, **options: Any) -> tuple[Any, Any]:
    names = {
        "actual_seq_qlen": "actual_seq_lengths",
        "actual_seq_kvlen": "actual_seq_lengths_kv",
        "num_query_heads": "num_heads",
        "softmax_scale": "scale",
        "return_softmax_lse": "softmax_lse_flag",
    }
    renamed = {names.get(name, name): value for name, value in options.items()}
    return _inference("npu_fused_infer_attention_score_v2", query, key, value, renamed)


@operator(f"npu_fused_infer_attention_score_v2.out({_INFER_V2}{_OUT}")
def _infer_v2_out(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, **options: Any) -> tuple[Any, Any]:
    return _into(_infer_v2, query, key, value, options)


def _into(
    compute: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, options: dict[str, Any]
) -> tuple[Any, Any]:
    """Compute an operator, and copy its two results to the tensors of the option `out`."""
    attention, lse = options.pop("out")
    options.pop("workspace", None)
    for tensor, result in zip((attention, lse), compute(query, key, value, **options)):
        if result.numel():
            tensor.copy_(result.view_as(tensor))
    return attention, lse


@operator(f"_npu_fused_infer_attention_score_get_max_workspace({_INFER}) -> Tensor")
def _infer_workspace(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, **options: Any) -> torch.Tensor:
    return query.new_empty(1, dtype=torch.uint8)


@operator(f"_npu_fused_infer_attention_score_v2_get_max_workspace({_INFER_V2}) -> Tensor")
def _infer_v2_workspace(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, **options: Any) -> torch.Tensor:
    return query.new_empty(1, dtype=torch.uint8)


#: Options of the operators for inference that the fake handles, or may ignore because they only choose a kernel.
_COMPUTED = frozenset(
    (
        *("pse_shift", "atten_mask", "actual_seq_lengths", "actual_seq_lengths_kv", "block_table", "num_heads"),
        *("scale", "pre_tokens", "next_tokens", "input_layout", "num_key_value_heads", "sparse_mode", "block_size"),
        *("inner_precise", "softmax_lse_flag", "query_rope", "key_rope"),
    )
)


def _inference(
    name: str, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, options: dict[str, Any]
) -> tuple[Any, Any]:
    refuse(name, **{option: value for option, value in options.items() if option not in _COMPUTED})
    get = options.get
    heads, layout = get("num_heads", 1), get("input_layout", "BSH")
    key_heads = get("num_key_value_heads", 0) or heads
    layout, _, output_layout = layout.partition("_")
    if get("query_rope") is not None:
        query, key = _with_rope(query, get("query_rope"), heads), _with_rope(key, get("key_rope"), key_heads)
    lengths, key_lengths = get("actual_seq_lengths"), get("actual_seq_lengths_kv")
    queries = _split(query, layout, heads, lengths)
    table = get("block_table")
    if table is not None:
        if key_lengths is None:
            raise RuntimeError(f"{name} with a block_table needs the lengths of the keys")
        keys = [_paged(key, row, int(length), key_heads) for row, length in zip(table, key_lengths)]
        values = [_paged(value, row, int(length), key_heads) for row, length in zip(table, key_lengths)]
    else:
        ends = key_lengths if layout in ("TND", "NTD") else None
        keys, values = _split(key, layout, key_heads, ends), _split(value, layout, key_heads, ends)
        if ends is None and key_lengths is not None:
            cut = [int(length) for length in key_lengths] * (len(keys) if len(key_lengths) == 1 else 1)
            keys = [each[:, :length] for each, length in zip(keys, cut)]
            values = [each[:, :length] for each, length in zip(values, cut)]
    settings = _Settings(
        heads,
        layout,
        get("scale", 1.0),
        get("atten_mask"),
        get("pse_shift"),
        get("sparse_mode", 0),
        get("pre_tokens", _ALL),
        get("next_tokens", _ALL),
    )
    outputs, sums = [], []
    for index, (one_query, one_key, one_value) in enumerate(zip(queries, keys, values)):
        weights, highest, total = _softmax(one_query, one_key, settings, index)
        outputs.append(weights @ _for_heads(one_value, one_query).float())
        sums.append(highest + total.log())
    result = _join(outputs, output_layout or layout, query)
    if not get("softmax_lse_flag", False):
        return result, query.new_empty(0, dtype=torch.float32)
    like = query.new_empty(query.shape[0] if layout == "TND" else 0, dtype=torch.float32)
    return result, _join(sums, "TND" if layout in ("TND", "NTD") else "BNSD", like)


def _with_rope(tensor: torch.Tensor, rope: torch.Tensor, heads: int) -> torch.Tensor:
    """Append the part with rotary embedding to each head of queries or keys."""
    if tensor.dim() != 3 or tensor.shape[-1] == rope.shape[-1] or tensor.shape[1] == heads:
        return torch.cat((tensor, rope), -1)
    joined = torch.cat((tensor.unflatten(-1, (heads, -1)), rope.unflatten(-1, (heads, -1))), -1)
    return joined.flatten(-2)


def _paged(cache: torch.Tensor, blocks: torch.Tensor, length: int, heads: int) -> torch.Tensor:
    """Return the first `length` tokens of a sequence from a paged cache, of shape (heads, tokens, size of a head).

    cache: of shape (blocks, tokens, H), (blocks, heads, tokens, size of a head), or (blocks, heads, size of a head /
    16, tokens, 16). blocks: the numbers of the sequence's blocks.
    """
    if cache.dim() == 3:
        used = cache[blocks[: -(-length // cache.shape[1])].long()].unflatten(-1, (heads, -1)).transpose(1, 2)
    elif cache.dim() == 4:
        used = cache[blocks[: -(-length // cache.shape[2])].long()]
    else:
        used = cache[blocks[: -(-length // cache.shape[3])].long()].transpose(2, 3).flatten(3)
    return used.transpose(0, 1).flatten(1, 2)[:, :length]
