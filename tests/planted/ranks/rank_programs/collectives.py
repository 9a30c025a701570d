"""Collectives with gradients, written by hand as in Megatron; all do nothing on a group of one rank."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist


def size(group: Any) -> int:
    return dist.get_world_size(group) if dist.is_initialized() else 1


def place(group: Any) -> int:
    return dist.get_rank(group) if dist.is_initialized() else 0


def summed(x: torch.Tensor, group: Any = None) -> torch.Tensor:
    """Return the sum over the ranks in new memory."""
    if size(group) == 1:
        return x
    x = x.contiguous().clone()
    dist.all_reduce(x, group=group)
    return x


def gathered(x: torch.Tensor, axis: int, group: Any = None) -> torch.Tensor:
    """Return the concatenated parts of all ranks."""
    if size(group) == 1:
        return x
    parts = [torch.empty_like(x, memory_format=torch.contiguous_format) for _ in range(size(group))]
    dist.all_gather(parts, x.contiguous(), group=group)
    return torch.cat(parts, axis)


def scattered(x: torch.Tensor, group: Any = None) -> torch.Tensor:
    """Return this rank's part, along the first axis, of the sum over the ranks."""
    if size(group) == 1:
        return x
    x = x.contiguous()
    out = x.new_empty(x.shape[0] // size(group), *x.shape[1:])
    dist.reduce_scatter_tensor(out, x, group=group)
    return out


def exchanged(x: torch.Tensor, sends: list[int] | None = None, receives: list[int] | None = None) -> torch.Tensor:
    """Send a part of the first axis to each rank, and return the received ones."""
    if size(None) == 1:
        return x
    x = x.contiguous()
    out = x.new_empty(sum(receives) if receives is not None else x.shape[0], *x.shape[1:])
    dist.all_to_all_single(out, x, receives, sends)
    return out


class Copy(torch.autograd.Function):
    """Pass forward; sum gradients over the ranks backward."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: Any, skip: bool) -> torch.Tensor:
        ctx.group, ctx.skip = group, skip
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        if ctx.skip:
            return grad, None, None
        return summed(grad, ctx.group), None, None  # the sum of gradients of a column-parallel layer


class Sum(torch.autograd.Function):
    """Sum over the ranks forward; pass gradients backward."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: Any) -> torch.Tensor:
        return summed(x, group)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        return grad, None


class Gather(torch.autograd.Function):
    """Concatenate parts of the first axis; backward sum and scatter, or only cut out this rank's part."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: Any, cut: bool) -> torch.Tensor:
        ctx.group, ctx.cut = group, cut
        return gathered(x, 0, group)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        if ctx.cut:
            return grad.chunk(size(ctx.group))[place(ctx.group)], None, None
        return scattered(grad, ctx.group), None, None


class Scatter(torch.autograd.Function):
    """Sum over the ranks and keep this rank's part of the first axis; backward concatenate."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, group: Any) -> torch.Tensor:
        ctx.group = group
        return scattered(x, group)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        return gathered(grad, 0, ctx.group), None


class Exchange(torch.autograd.Function):
    """Send rows to their ranks; backward send the gradients back."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, sends: Any, receives: Any) -> torch.Tensor:
        ctx.splits = sends, receives
        return exchanged(x, sends, receives)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        sends, receives = ctx.splits
        return exchanged(grad, receives, sends), None, None


class Shift(torch.autograd.Function):
    """Send to a neighbour in the ring and receive from the other one; backward the other way round."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, by: int) -> torch.Tensor:
        ctx.by = by
        return shifted(x, by)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        return shifted(grad, -ctx.by), None


def shifted(x: torch.Tensor, by: int) -> torch.Tensor:
    """Return the tensor of the rank that is `by` places before this one."""
    if size(None) == 1:
        return x
    world, me = size(None), place(None)
    x = x.contiguous()
    out = torch.empty_like(x)
    jobs = [
        dist.P2POp(dist.isend, x, (me + by) % world),
        dist.P2POp(dist.irecv, out, (me - by) % world),
    ]
    for work in dist.batch_isend_irecv(jobs):
        work.wait()
    return out


def average_gradients(parameters: Any, group: Any = None) -> None:
    """Average the gradients over the ranks."""
    count = size(group)
    for parameter in parameters:
        if parameter.grad is not None and count > 1:
            dist.all_reduce(parameter.grad, group=group)
            parameter.grad /= count
