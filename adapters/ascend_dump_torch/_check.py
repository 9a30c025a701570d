"""Report the settings of a request that the PyTorch adapter does not support, or that have no effect."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Callable

from ascend_dump.adapter import DumpRequest, Problem, did_you_mean

__all__ = ["check", "compiled_problem"]


_ENDS = ("wrong", "recorded", "symptom", "end")
_VALUES: tuple[tuple[str, Callable[[Any], bool], str], ...] = (
    ("rehash", lambda value: isinstance(value, bool), "True or False"),
    ("stack", lambda value: isinstance(value, bool), "True or False"),
    ("steps_after_origin", lambda value: type(value) is int and value >= 0, "a number of steps, 0 or more"),
    ("outline", lambda value: isinstance(value, str) and bool(value), "the path of a directory"),
    ("outline_wait", lambda value: type(value) in (int, float) and 0 <= value <= 60, "0 to 60 seconds"),
    ("outline_until", lambda value: value in _ENDS, f"one of {', '.join(map(repr, _ENDS))}"),
    ("outline_reports_all", lambda value: type(value) is bool, "True or False"),
    ("outline_from_start", lambda value: type(value) is bool, "True or False"),
    ("step", lambda value: value == "optimizer", "'optimizer'; without it each call of the model is a step"),
    ("spread", lambda value: type(value) is bool, "True or False"),
    ("skip_warmup", lambda value: type(value) is bool, "True or False"),
    ("buffer_bytes", lambda value: type(value) is int and value > 0, "a positive number of bytes"),
)

#: For each scene that only the NPU's own dump has: what to do instead.
_SCENES_OF_THE_NPU = {
    "watch": "capture everything and look for storages that change between records (record.attrs['storage'])",
    "exception": "capture everything: the dump has what ran before an exception, with the last operator at the end",
}


def check(request: DumpRequest, target: Any, options: Mapping[str, str], *, launched: bool) -> list[Problem]:
    """Return the problems of settings that the adapter refuses or ignores.

    options   the names of the known options, with their descriptions
    launched  True if the capture is started by the launcher, and not by the program
    """
    problems = [
        *_options(request, options),
        *_options_without_effect(request, target, launched=launched),
        *_scene_and_level(request),
        *_spread(request),
        *_settings_without_effect(request),
    ]
    if target is not None:
        # Imported here, because a launcher has no target and checks without loading PyTorch.
        from ascend_dump.adapter.pytorch.calls import is_compiled

        if is_compiled(target):
            problems.append(compiled_problem())
    return problems


def _options(request: DumpRequest, options: Mapping[str, str]) -> Iterator[Problem]:
    for name in request.options:
        if name not in options and name != "debug":
            # The options of the outline are not suggested, because only `triage --run` sets them.
            names = [key for key in options if not key.startswith("outline")]
            message = f"the torch adapter has no option {name!r}"
            topic = "`ascend-dump help options` explains them"
            hint = f"{did_you_mean(name, names)}known: {', '.join(names)}; {topic}"
            yield Problem("AD210", "error", message, hint, f"options.{name}")
    for name, fits, expected in _VALUES:
        if name in request.options and not fits(request.options[name]):
            message = f"options[{name!r}] is {request.options[name]!r}, which the torch adapter cannot use"
            yield Problem("AD210", "error", message, f"give {expected}", f"options.{name}")


def _options_without_effect(request: DumpRequest, target: Any, *, launched: bool) -> Iterator[Problem]:
    if "steps_after_origin" in request.options and request.scene != "overflow":
        yield _no_effect(
            "options['steps_after_origin'] changes nothing without scene='overflow'",
            "leave it out, or select steps with steps=",
            "options.steps_after_origin",
        )
    if request.options.get("skip_warmup") and target is None and not launched:
        yield _no_effect(
            "options['skip_warmup'] changes nothing if the program calls `step()` itself",
            "capture the model, or the whole program with `ascend-dump run`",
            "options.skip_warmup",
        )
    if "outline" in request.options and not launched:
        yield _no_effect(
            "options['outline'] changes nothing in a capture that the program makes itself",
            "leave it out; `ascend-dump triage --run` sets it",
            "options.outline",
        )


def _scene_and_level(request: DumpRequest) -> Iterator[Problem]:
    if request.scene in _SCENES_OF_THE_NPU:
        message = f"scene={request.scene!r} is a feature of the NPU's own dump, which this adapter does not use"
        yield Problem("AD203", "error", message, _SCENES_OF_THE_NPU[request.scene], "scene")
    if request.level == "module":
        of_operators = {
            "scene": request.scene is not None,
            **{name: name in request.options for name in ("graft", "stack")},
        }
        for name, is_set in of_operators.items():
            if is_set:
                message = f"level='module' records modules, but {name}= applies to operators"
                yield Problem("AD203", "error", message, "leave one of them out", name)
    elif request.level != "all":
        yield _no_effect(
            f"level={request.level!r} changes nothing: PyTorch on the host has the levels 'all' and 'module'",
            "leave it out",
            "level",
        )


def _spread(request: DumpRequest) -> Iterator[Problem]:
    """Yield the problems of `options["spread"]`.

    Records of later steps may refer to tensors of an earlier step, so single steps can be removed only if a dump has no
    tensors.
    """
    if request.options.get("spread") is not True:
        return
    needed = (
        ("keep", (request.keep or 0) >= 2, "keep= says how many steps stay, 2 or more", "give keep=500"),
        ("data", request.data == "stats", "tensors can be kept only of the last steps", "give data='stats'"),
        ("scene", request.scene is None, "a scene decides by itself which steps it records", "leave scene= out"),
    )
    for name, is_there, why, hint in needed:
        if not is_there:
            message = f"options['spread'] is not possible with {name}={getattr(request, name)!r}: {why}"
            yield Problem("AD210", "error", message, hint, "options.spread")


def _settings_without_effect(request: DumpRequest) -> Iterator[Problem]:
    if request.quant:
        yield _no_effect("quant=True changes nothing: the host records what it runs", "leave it out", "quant")
    if request.models:
        yield _no_effect("models= changes nothing: the target is the model", "pass the model as target", "models")
    if request.stats and request.data == "tensor":
        yield _no_effect("stats= changes nothing with data='tensor'", "use data='stats' or data='full'", "stats")


def _no_effect(message: str, hint: str, setting: str) -> Problem:
    return Problem("AD211", "silent", message, hint, setting)


def compiled_problem() -> Problem:
    """Return the problem that explains how compiled code is recorded, or why it cannot be recorded."""
    from ascend_dump_torch._framework_settings import can_force_eager

    if can_force_eager():
        return Problem(
            "AD212",
            "warning",
            "the model is compiled; selected steps run it eagerly, operator by operator",
            "compare results with the compiled model outside the block if the difference matters",
            "target",
        )
    return Problem(
        "AD212",
        "error",
        "the model is compiled, and only PyTorch 2.6 and later can run it eagerly for a while",
        "capture the model before torch.compile is applied",
        "target",
    )
