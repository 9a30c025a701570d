"""Faults planted into the programs of `compare_programs`, each with the result that a comparison must give."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, Optional

import torch
from ascend_dump_torch import _stack
from compare_programs import STEPS, Program, dump
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch_helpers import asked_by_the_user

import ascend_dump
from ascend_dump import Comparison

__all__ = ["KINDS", "Fault", "Site", "Watch", "judged", "plant", "plant_value", "sites"]


class Site(NamedTuple):
    """An execution of an operator: the n-th of its type in its step, and its name in a dump."""

    step: int
    op_type: str
    nth: int
    op_name: str = ""
    phase: str = ""
    constants: tuple[int, ...] = ()


class Fault(NamedTuple):
    """The planted fault, and the correct results.

    names, modules  operators, or modules, one of which the first origin has to be in; both empty: no origin is right
    kinds           the kinds of origin that are right
    verdicts        the verdicts that are right
    """

    program: str
    kind: str
    what: str
    actual: Path
    step: int = 0
    names: frozenset[str] = frozenset()
    modules: frozenset[str] = frozenset()
    kinds: frozenset[str] = frozenset()
    verdicts: frozenset[str] = frozenset({"different", "structure"})


class NotVisible(Exception):
    """The fault that was drawn has no effect here: another one must be drawn."""


def judged(fault: Fault, found: Comparison) -> str:
    """Empty if the result of the comparison is correct, otherwise a description of the result."""
    said = f"{found.verdict} {[(one.kind, one.step, one.op_name, one.module) for one in found.origins[:3]]}"
    if found.verdict not in fault.verdicts:
        return said
    if not fault.names and not fault.modules:
        return "" if not found.origins else said
    if not found.origins:
        return said
    first = found.origins[0]
    in_place = first.op_name in fault.names or (first.module or "") in fault.modules
    return "" if in_place and first.step == fault.step and first.kind in fault.kinds else said


class Watch(TorchDispatchMode):
    """A dispatch mode below that of the capture: counts operators as a dump does, and notes what can be altered."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[Site] = []
        self._step, self._counts = -1, Counter[str]()

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # a wrapper around the method would stand between the frames that are looked at

    @contextmanager
    def under(self, model: nn.Module) -> Iterator[None]:
        def called(module: Any, args: Any) -> None:
            _stack.remove(self)  # it may lie above the adapter's mode, which comes and goes
            _stack.insert(self)
            self._step += 1
            self._counts.clear()

        handle = model.register_forward_pre_hook(called)
        try:
            yield
        finally:
            handle.remove()
            _stack.remove(self)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not asked_by_the_user() or self._step < 0 or _is_traced([args, kwargs or {}]):
            return func(*args, **(kwargs or {}))
        name = func._schema.name
        site = Site(self._step, name, self._counts[name])
        self._counts[name] += 1
        return self.call(site, func, list(args), dict(kwargs or {}))

    def call(self, site: Site, func: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
        out = func(*args, **kwargs)
        constants = tuple(place for place, value in enumerate(args) if type(value) is float and abs(value) > 1e-6)
        given = [one for one in _tensors([args, kwargs]) if one.numel()]
        written = func._schema.is_mutable
        shared = {one.untyped_storage().data_ptr() for one in given}
        made = [one for one in _tensors([out]) if one.is_floating_point() and one.numel() > 1]
        if made and (written or not any(one.untyped_storage().data_ptr() in shared for one in made)):
            self.found.append(site._replace(constants=constants))
        return out


def _is_traced(values: Any) -> bool:
    """Return True if nothing is computed, because a compiler only traces the operator."""
    fake = torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE)
    return fake is not None or any(isinstance(one, FakeTensor) for one in _tensors(values))


Effect = Callable[[Any, list[Any], dict[str, Any]], Any]


class Altered(Watch):
    """Replaces an operator by another computation."""

    def __init__(self, site: Site, effect: Effect) -> None:
        super().__init__()
        self._site, self._effect = site, effect
        self.done = False

    def call(self, site: Site, func: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
        if site[:3] != self._site[:3]:
            return func(*args, **kwargs)
        self.done = True
        return self._effect(func, args, kwargs)


def sites(program: Program, path: Path, **changes: Any) -> list[Site]:
    """Dump the program without a fault, and return the operators in which faults can be planted."""
    watch = Watch()
    dump(program, path, under=watch, **changes)
    names: dict[tuple[Any, ...], tuple[str, str]] = {}
    counts = Counter[tuple[Any, ...]]()
    last: Any = None
    for record in ascend_dump.open(path):
        if record.execution == last:
            continue
        last = record.execution
        key = (record.step, record.op_type)
        names[(*key, counts[key])] = (record.op_name, record.phase or "")
        counts[key] += 1
    passive = ("aten::empty", "aten::zeros", "aten::ones", "aten::bernoulli", "aten::lift_fresh", "aten::randn")
    return [
        site._replace(op_name=names[site[:3]][0], phase=names[site[:3]][1])
        for site in watch.found
        if site[:3] in names and not site.op_type.startswith(passive)
    ]


def _tensors(values: Any) -> Iterator[torch.Tensor]:
    for value in values.values() if isinstance(values, dict) else values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, (list, tuple, dict)):
            yield from _tensors(value)


def _visible(old: torch.Tensor, new: torch.Tensor) -> bool:
    """Return True if the two differ by more than implementations do: the 500th part, or 5 units in the last place."""
    share = max(2e-3, 10 * torch.finfo(old.dtype).eps / 2)
    old, new = old.double(), new.double()
    if not torch.isfinite(new).all():
        return bool(torch.isfinite(old).all())
    largest = (new - old).abs().max()
    return bool(largest > share * old.square().mean().sqrt() and largest > 1e-30)


def _output(draw: random.Random, alter: Callable[[torch.Tensor], torch.Tensor]) -> Effect:
    """One of the tensors that an operator makes is another one, in the same memory."""

    def effect(func: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
        out = func(*args, **kwargs)
        made = [one for one in _tensors([out]) if one.is_floating_point() and one.numel() > 1]
        written = draw.choice(made).data
        new = alter(written.clone())
        if not _visible(written, new):
            raise NotVisible
        written.copy_(new)
        return out

    return effect


def _not_written(func: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
    before = [one.clone() for one in _tensors([args[0]])]
    out = func(*args, **kwargs)
    if not any(_visible(old, one) for old, one in zip(before, _tensors([args[0]]))):
        raise NotVisible
    for old, one in zip(before, _tensors([args[0]])):
        one.data.copy_(old)
    return out


def _other_constant(draw: random.Random, place: int) -> Effect:
    def effect(func: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
        old = [one.clone() for one in _tensors([args, kwargs])]
        expected = [one.clone() for one in _tensors([func(*args, **kwargs)])]
        for before, one in zip(old, _tensors([args, kwargs])):
            one.data.copy_(before)
        value = args[place]
        args[place] = draw.choice([value * 1.5, value * 0.5, value * 3, value + 0.1])
        out = func(*args, **kwargs)
        if not any(_visible(a, b) for a, b in zip(expected, _tensors([out])) if a.is_floating_point()):
            raise NotVisible
        return out

    return effect


# --- what is done to values ---------------------------------------------------------------------------------------


def _nonfinite(draw: random.Random, x: torch.Tensor) -> torch.Tensor:
    x.view(-1)[draw.randrange(x.numel())] = draw.choice([float("nan"), float("inf"), float("-inf")])
    return x


def _sign(draw: random.Random, x: torch.Tensor) -> torch.Tensor:
    if x.dim() > 1 and draw.random() < 0.5:
        x[draw.randrange(x.shape[0])] *= -1
        return x
    return -x


def _layout(draw: random.Random, x: torch.Tensor) -> torch.Tensor:
    """The memory read with its axes in another order."""
    if x.dim() < 2 or sorted(x.shape)[-2] < 2:
        raise NotVisible
    first, last = draw.choice([(0, -1), (-2, -1), (0, 1)])
    return x.transpose(first, last).reshape(x.shape)


def _channels(draw: random.Random, x: torch.Tensor) -> torch.Tensor:
    axis = draw.randrange(x.dim()) if x.dim() else 0
    if not x.dim() or x.shape[axis] < 2:
        raise NotVisible
    a, b = draw.sample(range(x.shape[axis]), 2)
    order = list(range(x.shape[axis]))
    order[a], order[b] = b, a
    return x.index_select(axis, torch.tensor(order))


def _value(draw: random.Random, x: torch.Tensor) -> torch.Tensor:
    how = draw.choice(["element", "scale", "noise", "zeros", "shift"])
    rms = x.double().square().mean().sqrt().item()
    if how == "element":
        x.view(-1)[draw.randrange(x.numel())] += draw.choice([-0.1, 0.1]) * rms
    elif how == "scale":
        x *= draw.choice([0.9, 1.02, 2])
    elif how == "noise":
        x += 0.02 * rms * torch.randn(x.shape, generator=torch.Generator().manual_seed(draw.randrange(1000))).to(x)
    elif how == "zeros":
        x[: max(1, x.shape[0] // 4)] = 0
    else:
        x += 0.03 * rms
    return x


# --- kinds of faults: each gives a dump with one, or raises NotVisible -----------------------------------------------

_Planter = Callable[[Program, list[Site], random.Random, Path], Fault]
_PARAMETER = frozenset({"parameter"})
_COMPUTE = frozenset({"compute"})


def _in_parameter(
    program: Program, kind: str, path: Path, draw: random.Random, alter: Callable[[Any, Any], Any]
) -> Fault:
    names = [name for name, one in program.build().named_parameters() if one.numel() > 1]
    chosen = draw.choice(names)

    def change(model: nn.Module) -> None:
        parameter = model.get_parameter(chosen)
        new = alter(draw, parameter.data.clone())
        used = new[0] if "Embedding" in type(model.get_submodule(chosen.rpartition(".")[0])).__name__ else new
        if not _visible(parameter.data, new) or not used.numel():
            raise NotVisible
        parameter.data.copy_(new)

    dump(program, path, change=change)
    # An attention reads the weight of its last layer itself.
    module = chosen.rpartition(".")[0].removesuffix(".out_proj")
    return Fault(program.name, kind, f"{kind} of {chosen}", path, modules=frozenset({module}), kinds=_PARAMETER)


def _in_operator(
    program: Program, kind: str, path: Path, site: Site, effect: Effect, kinds: frozenset[str] = _COMPUTE
) -> Fault:
    under = Altered(site, effect)
    dump(program, path, under=under)
    if not under.done:
        raise AssertionError(f"{site} did not run again in {program.name}")
    what = f"{kind} in {site.op_name} ({site.op_type}, {site.phase})"
    return Fault(program.name, kind, what, path, site.step, frozenset({site.op_name}), kinds=kinds)


def _of(kind: str, alter: Callable[[random.Random, Any], Any], parameters: float) -> _Planter:
    def plant_it(program: Program, known: list[Site], draw: random.Random, path: Path) -> Fault:
        if draw.random() < parameters:
            return _in_parameter(program, kind, path, draw, alter)
        return _in_operator(program, kind, path, draw.choice(known), _output(draw, lambda x: alter(draw, x)))

    return plant_it


def _input(program: Program, known: list[Site], draw: random.Random, path: Path) -> Fault:
    place = draw.randrange(len(program.batch(1)))
    given: list[torch.Tensor] = []

    def data(batch: list[torch.Tensor]) -> None:
        old = batch[place]
        if old.is_floating_point():
            new = draw.choice([_value, _channels, _sign])(draw, old.clone())
            if not _visible(old, new):
                raise NotVisible
            batch[place] = new
        else:
            batch[place] = old.roll(1, 0) if draw.random() < 0.5 else old.flip(-1)
            if torch.equal(batch[place], old):
                raise NotVisible
        given.append(batch[place])

    dump(program, path, data=data)
    first = next(
        record.op_name
        for record in ascend_dump.open(path).select(step=0, io="input")
        if record.shape == tuple(given[0].shape) and (record.numpy() == given[0].numpy()).all()
    )
    what = f"tensor {place} of the batch"
    return Fault(program.name, "input", what, path, names=frozenset({first}), kinds=frozenset({"input"}))


def _constant(program: Program, known: list[Site], draw: random.Random, path: Path) -> Fault:
    having = [site for site in known if site.constants]
    site = draw.choice(having)
    return _in_operator(program, "constant", path, site, _other_constant(draw, draw.choice(site.constants)))


def _dtype(program: Program, known: list[Site], draw: random.Random, path: Path) -> Fault:
    """A module computes in another type, or one operator rounds to a coarser one."""
    narrow = next(program.build().parameters()).dtype != torch.float32
    coarse = torch.float8_e4m3fn if narrow else torch.bfloat16
    if draw.random() < 0.5 or narrow:
        effect = _rounded(coarse)
        return _in_operator(program, "dtype", path, draw.choice(known), effect)
    names = [name for name, one in program.build().named_modules() if isinstance(one, (nn.Linear, nn.Conv2d))]
    chosen = draw.choice(names)
    lower = draw.choice([torch.bfloat16, torch.float64])

    def change(model: nn.Module) -> None:
        module = model.get_submodule(chosen).to(lower)
        module.register_forward_pre_hook(lambda module, args: tuple(one.to(lower) for one in args))
        module.register_forward_hook(lambda module, args, output: output.float())

    dump(program, path, change=change)
    what = f"{chosen} in {lower}"
    return Fault(
        program.name,
        "dtype",
        what,
        path,
        modules=frozenset({chosen}),
        kinds=frozenset({"structure", "parameter"}),
        verdicts=frozenset({"structure", "different"}),
    )


def _rounded(dtype: torch.dtype) -> Effect:
    def effect(func: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
        out = func(*args, **kwargs)
        changed = False
        for one in _tensors([out]):
            if one.is_floating_point() and one.numel() > 3:
                new = one.to(dtype).to(one.dtype)
                changed |= bool(torch.isfinite(new).all() and ((new != one).double().mean() > 0.5))
                one.data.copy_(new)
        if not changed:
            raise NotVisible
        return out

    return effect


def _modules(program: Program, types: tuple[type, ...]) -> list[str]:
    return [name for name, one in program.build().named_modules() if isinstance(one, types)]


_SAME_SHAPE = (nn.GELU, nn.SiLU, nn.ReLU, nn.LeakyReLU, nn.Tanh, nn.ELU, nn.LayerNorm, nn.RMSNorm, nn.GroupNorm)
_SAME_SHAPE = (*_SAME_SHAPE, nn.BatchNorm2d, nn.Dropout)


def _replaced(program: Program, kind: str, path: Path, chosen: str, new: Callable[[nn.Module], nn.Module]) -> Fault:
    def change(model: nn.Module) -> None:
        parent, _, name = chosen.rpartition(".")
        setattr(model.get_submodule(parent), name, new(model.get_submodule(chosen)))

    dump(program, path, change=change)
    return Fault(
        program.name,
        kind,
        f"{kind}: {chosen}",
        path,
        modules=frozenset({chosen}),
        kinds=frozenset({"structure", "compute"}),
    )


def _dropped(program: Program, known: list[Site], draw: random.Random, path: Path) -> Fault:
    choices = _modules(program, _SAME_SHAPE)
    if not choices:
        raise NotVisible
    fault = _replaced(program, "dropped operators", path, draw.choice(choices), lambda module: nn.Identity())
    # The line that calls the module may be wrong too.
    return fault._replace(modules=fault.modules | {name.rpartition(".")[0] for name in fault.modules})


class _Then(nn.Module):
    def __init__(self, module: nn.Module, then: Callable[[Any], Any]) -> None:
        super().__init__()
        self.inner, self.then = module, then

    def forward(self, *args: Any) -> Any:
        return self.then(self.inner(*args))


def _extra(program: Program, known: list[Site], draw: random.Random, path: Path) -> Fault:
    """An additional operator after a module; in half of the cases it does not change the values."""
    chosen = draw.choice(_modules(program, (nn.Linear, nn.Conv2d, nn.Embedding)))
    harmless = draw.random() < 0.4
    then: Callable[[Any], Any] = draw.choice([lambda x: x * 1.1, lambda x: x.clamp(-0.1, 0.1), torch.sin])
    if harmless:
        then = draw.choice([lambda x: [x, x.abs().sum()][0], lambda x: x.clone(), lambda x: x * 1.0])

    def change(model: nn.Module) -> None:
        model.get_submodule(chosen).register_forward_hook(lambda module, args, output: then(output))

    dump(program, path, change=change)
    what = f"operators after {chosen}{', harmless' if harmless else ''}"
    fault = Fault(program.name, "extra operators", what, path, kinds=frozenset({"structure"}))
    if harmless:
        return fault._replace(verdicts=frozenset({"unmatched"}))
    # A hook runs when the module has been left already.
    return fault._replace(modules=frozenset({chosen, chosen.rpartition(".")[0]}))


def _renamed(program: Program, known: list[Site], draw: random.Random, path: Path) -> Fault:
    """All modules have other names; half of them have a wrong parameter too."""
    faulty = draw.random() < 0.5
    names = [name for name, one in program.build().named_parameters() if one.numel() > 1]
    chosen = draw.choice(names)

    def change(model: nn.Module) -> None:
        if faulty:
            parameter = model.get_parameter(chosen)
            new = _value(draw, parameter.data.clone())
            if not _visible(parameter.data, new):
                raise NotVisible
            parameter.data.copy_(new)
        for module in list(model.modules()):
            if isinstance(module, (nn.Sequential, nn.ModuleList)):
                continue
            for name, child in list(module.named_children()):
                delattr(module, name)
                module.add_module(f"{name}_renamed", child)
        # Code asks for the old names.
        for module in model.modules():
            for name, child in list(module.named_children()):
                if name.endswith("_renamed"):
                    module.__dict__[name[: -len("_renamed")]] = child

    dump(program, path, change=change)
    fault = Fault(program.name, "renamed modules", f"and {chosen} wrong" if faulty else "and all equal", path)
    if not faulty:
        return fault._replace(verdicts=frozenset({"equal"}))
    module = ".".join(
        level if level.isdigit() else f"{level}_renamed"
        for level in chosen.rpartition(".")[0].removesuffix(".out_proj").split(".")
    )
    return fault._replace(modules=frozenset({module}), kinds=_PARAMETER)


def _mask(program: Program, known: list[Site], draw: random.Random, path: Path) -> Fault:
    """One dropout draws with another seed."""
    count = sum(isinstance(one, nn.Dropout) for one in program.build().modules())
    if not count:
        raise NotVisible
    site = Site(draw.randrange(STEPS), "aten::bernoulli_", draw.randrange(count))
    generator = torch.Generator().manual_seed(draw.randrange(1000))

    def effect(func: Any, args: list[Any], kwargs: dict[str, Any]) -> Any:
        torch.empty_like(args[0])
        func(*args, **kwargs)
        return func(*args, generator=generator)

    reference = [one for one in ascend_dump.open(path.parent / "reference") if one.op_type == site.op_type]
    names = [one.op_name for one in reference if one.io == "output" and one.step == site.step]
    return _in_operator(
        program,
        "random mask",
        path,
        site._replace(op_name=names[site.nth]),
        effect,
        frozenset({"random"}),
    )


def _stale(program: Program, known: list[Site], draw: random.Random, path: Path) -> Fault:
    """An operator that writes in place does not write."""
    written = [site for site in known if site.op_type.endswith("_") and "zero" not in site.op_type]
    return _in_operator(program, "stale buffer", path, draw.choice(written), _not_written)


_PLANTERS: dict[str, _Planter] = {
    "parameter": lambda program, known, draw, path: _in_parameter(program, "parameter", path, draw, _value),
    "value": _of("value", _value, 0),
    "input": _input,
    "constant": _constant,
    "nan": _of("nan", _nonfinite, 0.2),
    "dtype": _dtype,
    "sign": _of("sign", _sign, 0.4),
    "layout": _of("layout", _layout, 0.4),
    "permuted channel": _of("permuted channel", _channels, 0.5),
    "dropped operators": _dropped,
    "extra operators": _extra,
    "renamed modules": _renamed,
    "random mask": _mask,
    "stale buffer": _stale,
}
KINDS = tuple(_PLANTERS)


def plant_value(
    program: Program, seed: int, known: list[Site], directory: Path, **changes: Any
) -> Optional[tuple[Site, Path]]:
    """A dump of the program, changed like that, in which one operator gives another value; None where none is seen."""
    draw = random.Random(f"{program.name} {seed}")
    for attempt in range(20):
        site, path = draw.choice(known), directory / f"{program.name}-{seed}-{attempt}"
        try:
            dump(program, path, under=Altered(site, _output(draw, lambda x: _value(draw, x))), **changes)
        except NotVisible:
            continue
        return site, path
    return None


def plant(program: Program, kind: str, seed: int, known: list[Site], directory: Path) -> Optional[Fault]:
    """A dump of the program with one fault of a kind; None where this kind of fault does not fit the program."""
    draw = random.Random(f"{program.name} {kind} {seed}")
    for attempt in range(20):
        path = directory / f"{program.name}-{kind.replace(' ', '-')}-{seed}-{attempt}"
        try:
            return _PLANTERS[kind](program, known, draw, path)
        except (NotVisible, IndexError):
            continue
    return None
