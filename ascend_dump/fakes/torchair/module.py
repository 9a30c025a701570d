"""A fake of torchair, PyTorch's graph mode on Ascend. It needs neither torch_npu nor a device.

    with ascend_dump.fakes.install("torchair") as npu:
        import torchair
        config = torchair.CompilerConfig()
        config.dump_config.enable_dump = True
        model = torch.compile(model, backend=torchair.get_npu_backend(compiler_config=config))

CompilerConfig checks and converts its options as torchair 2.13 does. PyTorch computes the graphs, forward and
backward, on the CPU, and all operators are reported to the simulated device under the names that torchair gives them.
As with torchair, options are read when the first graph is built, and GE is initialised once in a process.

Differences from torchair:

- No operator is decomposed by torchair's rules, none is fused, and none is renamed after the graph is built.
  Views remain operators, as in torchair with `experimental_config.enable_view_optimize = False`.
  An ATen operator without an entry in `_lowering` becomes one GE operator, named after the ATen operator.
  (assumption torchair.names_stay)
- An overwritten output (`Npu.trample`) changes the dump, not the inputs of later operators.
- `dump_step` is checked in linear time; the real regular expression takes seconds for 16 digits and a wrong letter.
- The aclgraph modes capture no graph. So both values of `data_dump_stage` save the same tensors. `super_kernel`,
  gears, export, AOE, `inference.cache_compile` and scopes other than `data_dump` do not exist.
- The import replaces no signal handler, no logger class and no filter of warnings. Of the warnings of
  `get_npu_backend`, only those of the mode reduce-overhead are given.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Mapping
from types import ModuleType
from typing import TYPE_CHECKING, Any, Callable, Optional

from ascend_dump.fakes.torchair._compile import check_support
from ascend_dump.fakes.torchair._config import CompilerConfig
from ascend_dump.fakes.torchair._engine import TorchairEngine
from ascend_dump.fakes.torchair._scope import make_scope, register

if TYPE_CHECKING:
    from ascend_dump.fakes.device.npu import Npu

__all__ = ["modules", "patches"]

_ACLGRAPH = ("reduce-overhead", "npugraph_ex")


def modules(npu: Npu) -> Mapping[str, ModuleType]:
    """Return the modules of torchair. They use the device `npu`."""
    engine = TorchairEngine(npu)
    top = ModuleType("torchair")
    backend = make_backend_function(engine)
    packages = [ModuleType(f"torchair.{name}") for name in ("configs", "core", "_ge_concrete_graph")]
    configs = ModuleType("torchair.configs.compiler_config")
    for package in (top, *packages):
        package.__path__ = []
    for module in (top, configs):
        module.CompilerConfig = CompilerConfig  # type: ignore[attr-defined]  # a module made here
    for module in (top, engine.compiler):
        module.get_npu_backend = backend  # type: ignore[attr-defined]  # as above
    parts = [top, *packages, configs, engine.compiler, engine.backend, engine.native, engine.converter, make_scope()]
    return {module.__name__: module for module in parts}


@contextlib.contextmanager
def patches(npu: Npu, modules: Mapping[str, ModuleType]) -> Iterator[None]:
    """End the session of GE when the installation ends."""
    try:
        yield
    finally:
        modules["torchair.core._torchair"].FinalizeGraphEngine()


def make_backend_function(engine: TorchairEngine) -> Callable[..., Any]:
    """Return the function `get_npu_backend` for one engine."""

    def get_npu_backend(
        *, compiler_config: Optional[CompilerConfig] = None, custom_decompositions: Mapping[Any, Any] = {}
    ) -> Callable[..., Any]:
        """Return a backend for torch.compile. `compiler_config` is read when a graph is built."""
        config = CompilerConfig() if compiler_config is None else compiler_config
        check_support(config)
        register()
        return functools.partial(_compile, engine, compiler_config=config, decompositions=custom_decompositions)

    # Python's error for wrong arguments contains the qualified name.
    get_npu_backend.__qualname__ = "get_npu_backend"
    return get_npu_backend


def _compile(
    engine: TorchairEngine,
    module: Any,
    example_inputs: Any,
    *,
    compiler_config: CompilerConfig,
    decompositions: Mapping[Any, Any],
    **keywords: Any,
) -> Any:
    from torch._dynamo.backends.common import aot_autograd

    engine.compiler._process_kwargs_options(compiler_config, keywords)
    compiler = functools.partial(_compile_graph, engine, compiler_config)
    return aot_autograd(fw_compiler=compiler, decompositions=dict(decompositions) or None)(module, example_inputs)


def _compile_graph(engine: TorchairEngine, config: CompilerConfig, module: Any, example_inputs: Any) -> Any:
    """Return the function that runs one graph of AOTAutograd: the graph of inference, forward or backward."""
    from torch._functorch.aot_autograd import make_boxed_func

    from ascend_dump.fakes.torchair._eager import NpyDumper, TensorSaver
    from ascend_dump.fakes.torchair._graph import ConcreteGraph, GraphRunner

    runner: GraphRunner
    if config.debug.fx_summary.enabled and config.debug.fx_summary.skip_compile and config.mode.value not in _ACLGRAPH:
        runner = GraphRunner(module)
    elif config.debug.data_dump.enabled:
        runner = NpyDumper(engine, config, module)
    elif config.mode.value in _ACLGRAPH:
        engine.next_graph()
        options = config.as_dict()[1]
        dumps = options.get("aclgraph.enableDump") == "1"
        runner = TensorSaver(engine, options["aclgraph.dumpPath"], module) if dumps else GraphRunner(module)
    else:
        runner = ConcreteGraph(engine, config, module)
        if config.debug.run_eagerly:
            runner = GraphRunner(module)
    return make_boxed_func(runner)
