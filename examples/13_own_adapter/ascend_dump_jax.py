"""An adapter for JAX: a captured function runs equation by equation, and each equation is recorded."""

from __future__ import annotations

import sys
from typing import Any, Callable

from ascend_dump.adapter import Adapter, DumpRequest, Problem, RunDirectory, Session


class Recordable:
    """A function of JAX arrays that a capture can record; otherwise a call of it is a call of the function."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self.recorder: Any = None

    def __call__(self, *arguments: Any) -> Any:
        if self.recorder is None or not self.recorder.begin_step():
            return self.function(*arguments)
        try:
            return self.run(*arguments)
        finally:
            self.recorder.end_step()

    def run(self, *arguments: Any) -> Any:
        """Run the equations of the function one after the other, as JAX does without `jit`."""
        import jax
        from jax.extend.core import Literal

        traced, shapes = jax.make_jaxpr(self.function, return_shape=True)(*arguments)
        values = dict(zip(traced.jaxpr.constvars, traced.consts))
        values.update(zip(traced.jaxpr.invars, jax.tree.leaves(arguments)))

        def read(variables: Any) -> list[Any]:
            return [variable.val if isinstance(variable, Literal) else values[variable] for variable in variables]

        for number, equation in enumerate(traced.jaxpr.eqns):
            op, inputs = equation.primitive, read(equation.invars)
            bound = op.get_bind_params(equation.params)
            functions, parameters = bound if isinstance(bound, tuple) else ((), bound)  # a tuple in older versions
            result = op.bind(*functions, *inputs, **parameters)
            outputs = result if op.multiple_results else [result]
            values.update(zip(equation.outvars, outputs))
            name = f"{op.name}_{number}"
            self.recorder.record(op.name, name=name, inputs=inputs, outputs=outputs, arguments=equation.params)
        return jax.tree.unflatten(jax.tree.structure(shapes), read(traced.jaxpr.outvars))


class JaxAdapter(Adapter):
    name = "jax"
    framework = "jax"

    def accepts(self, target: Any) -> bool:
        return isinstance(target, Recordable)

    def check(self, request: DumpRequest, target: Any, run: RunDirectory) -> list[Problem]:
        from ascend_dump.adapter import Recorder

        return Recorder.check(request)

    def start(self, request: DumpRequest, target: Any, run: RunDirectory) -> Session:
        from ascend_dump.adapter import Recorder

        def restore() -> None:
            target.recorder = None

        versions = {"jax": sys.modules["jax"].__version__}
        target.recorder = Recorder(request, run, model=target.function.__name__, restore=restore, versions=versions)
        return target.recorder
