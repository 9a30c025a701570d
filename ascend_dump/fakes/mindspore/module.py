"""A fake of the module `mindspore`, for training scripts like those in MindSpore's document about Dump.

    with ascend_dump.fakes.install("mindspore") as npu:
        import mindspore as ms
        from mindspore import nn

Networks are computed with numpy. MINDSPORE_DUMP_CONFIG is read at the same times, and refused with the same messages,
as by MindSpore 2.10.0. The dump of a network on the CPU is that of MindSpore 2.10.0, except for timestamps.
`set_device("Ascend")` selects the simulated device, and `set_context(jit_level=…)` the way in which it runs graphs. O0
and O1 write the tree of the document's chapter "Dump in Ascend O0/O1 Mode". O2 writes nothing, as in MindSpore since
2.6. The environment variable ASCEND_DUMP_FAKE_MINDSPORE_VERSION, which is read at the installation, sets an older
version. Below 2.6, O2 writes the layout of the chapter "Dump in Ascend O2 Mode".

Differences from MindSpore:

- `construct` is executed, not compiled. So it prints in every step, and Python's branches and loops make no subgraphs.
  Operators run in the order of the program; MindSpore runs optimizer steps between backward operators.
- As in MindSpore, equal operators of a graph share the scope of their backward operators. MindSpore sometimes treats
  an operator of a layer, and the same operator from a function of `ops`, as different.
- If a cell runs an operator after it called another cell with the same operator (`self.inner(x) + 1`), each operator
  has the scope of its own cell. In MindSpore both have the scope of the inner cell.
- The gradient of a function under `jit` in PyNative mode dumps only the forward graph.
- Flatten and Reshape copy nothing in MindSpore, which may then dump a tensor with its earlier shape. The fake does not.
- In `.ir` and execution order, numbers of operators have no gaps. MindSpore also counts operators that it removes
  later. The operators of an optimizer are numbered by parameter, in MindSpore by execution.
- All outputs of BatchNorm are computed. MindSpore's kernel for the CPU leaves some unset.
- `use_nesterov` of Momentum, and NaN in ReLU, Maximum and Minimum, follow the documents. MindSpore's kernels for the
  CPU ignore `use_nesterov`, and lose the NaN.
- Random initial values differ from MindSpore's. Biases without `bias_init` are zeros.
- The `.pb` file has operators, inputs and full names, but no attributes and types.
- If an argument is a tuple, its tensors are inputs of operators. MindSpore makes constants of them.
- CrossEntropyLoss, slices, and operators that these modules do not list run fewer kernels than in MindSpore, with
  fewer constant inputs.
- A graph whose dump failed can run again. MindSpore refuses its later runs; if a parameter could not be written, it
  ends the process.
- After a configuration was refused late, the files that describe a graph may be written for one graph more than in
  MindSpore. MindSpore also cannot run a graph that was refused after an operator ran in PyNative mode.
- There is no communication: `init` reads rank and size from RANK_ID and RANK_SIZE. Collective operators do not exist.
- The alerts about a missing `e2e_dump_settings` do not delay the program by a second each.
- On Ascend, task and stream are 0. A sampled tensor has the first elements, in one dimension. Data formats are not
  transformed, so `trans_flag` and `device_stat_precision_mode` have no effect. Statistics of the device are those that
  the host would compute. (assumption mindspore.sampling)
- Timestamps come from the clock of the simulated device.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
from collections.abc import Iterator, Mapping
from types import ModuleType
from typing import TYPE_CHECKING, Any, Callable

from ascend_dump.fakes.mindspore import _cell as cell
from ascend_dump.fakes.mindspore import _dataset as dataset
from ascend_dump.fakes.mindspore import _functions as functions
from ascend_dump.fakes.mindspore import _model as model
from ascend_dump.fakes.mindspore import _optimizers as optimizers
from ascend_dump.fakes.mindspore import _types as types
from ascend_dump.fakes.mindspore._layers import LAYERS
from ascend_dump.fakes.mindspore._process import current, start_process
from ascend_dump.fakes.mindspore._state import GRAPH_MODE, PYNATIVE_MODE
from ascend_dump.native.mindspore.runtime import parse_version

if TYPE_CHECKING:
    from ascend_dump.fakes._importing import Fill
    from ascend_dump.fakes.device.npu import Npu
    from ascend_dump.fakes.mindspore._process import MindSporeProcess

__all__ = ["modules", "patches"]

_DEVICES = ("CPU", "GPU", "Ascend")
_CONTEXT = (
    *("mode", "device_target", "device_id", "jit_level", "reserve_class_name_in_scope", "save_graphs"),
    *("save_graphs_path", "max_device_memory", "pynative_synchronize", "deterministic", "ascend_config"),
)
#: Settings that exist on some devices only. On other devices MindSpore warns, even if a program only reads them.
_DEVICES_OF = {"ascend_config": ["Ascend"], "max_device_memory": ["Ascend", "GPU"]}
#: Names of functions in `mindspore.ops`.
_OPS = (
    *("add", "sub", "mul", "div", "exp", "log", "sqrt", "square", "neg", "tanh", "sigmoid", "relu"),
    *("gelu", "maximum", "minimum", "equal", "softmax", "log_softmax", "matmul", "bias_add", "reshape", "flatten"),
    *("transpose", "cast", "concat", "cat", "mean", "amax", "amin", "argmax", "assign", "assign_add", "depend"),
    *("stop_gradient", "zeros", "ones", "zeros_like", "ones_like", "arange", "cross_entropy", "shape", "size"),
)
#: Primitives without arguments: name in `mindspore.ops` -> operator type.
_PRIMITIVES = {
    **{name: name for name in ("Add", "Sub", "Mul", "Div", "Pow", "Exp", "Log", "Sqrt", "Square", "Neg", "Abs")},
    **{name: name for name in ("ReLU", "Sigmoid", "Tanh", "GeLU", "Equal", "Maximum", "Minimum", "Flatten")},
}
_USAGE = " For detailed usage of 'set_context', please refer to the Mindspore official website."
_NO_LAUNCHER = (
    "Maybe you are trying to call 'mindspore.communication.init()' without using 'mpirun', which will make MindSpore "
    "load several environment variables and check their validation. Please use 'mpirun' to launch this process to fix "
    "this issue, or refer to this link if you want to run distributed training using 'msrun'"
)


def modules(npu: Npu) -> Mapping[str, Fill]:
    """Return the functions that fill the modules of MindSpore. The modules use the device `npu`.

    `import mindspore` imports, and so fills, all of them.
    """
    process = start_process(npu)
    content = _content(process)

    def fill(module: ModuleType) -> None:
        vars(module).update(content.get(module.__name__, {}))
        for name in _NAMES:
            if name.rpartition(".")[0] == module.__name__:
                importlib.import_module(name)
        module.__getattr__ = functools.partial(_missing, module)  # type: ignore[method-assign]  # PEP 562

    return dict.fromkeys(_NAMES, fill)


@contextlib.contextmanager
def patches(npu: Npu, modules: Mapping[str, Any]) -> Iterator[None]:
    """End MindSpore's process when the installation ends."""
    process = current()
    try:
        yield
    finally:
        process.close()


def _missing(module: ModuleType, name: str) -> Any:
    members = ", ".join(sorted(member for member in vars(module) if not member.startswith("_")))
    raise AttributeError(f"the fake {module.__name__} has no {name!r}; it has {members}")


def _content(process: MindSporeProcess) -> dict[str, Mapping[str, Any]]:
    """Return the content of the modules, without their submodules."""
    return {
        "mindspore": _top(process),
        "mindspore.context": _context(process),
        "mindspore.common": {"Parameter": types.Parameter, "Tensor": types.Tensor, "set_seed": types.set_seed},
        "mindspore.common.initializer": _initializers(),
        "mindspore.common.dtype": types.DTYPES,
        "mindspore.nn": {
            "Cell": cell.Cell,
            "SequentialCell": cell.SequentialCell,
            "CellList": cell.CellList,
            **LAYERS,
            **optimizers.OPTIMIZERS,
            **optimizers.CELLS,
            "Accuracy": model.Accuracy,
        },
        "mindspore.ops": _ops(),
        "mindspore.train": {"Model": model.Model, "Accuracy": model.Accuracy, **model.CALLBACKS},
        "mindspore.train.callback": model.CALLBACKS,
        "mindspore.dataset": {
            "GeneratorDataset": dataset.GeneratorDataset,
            "NumpySlicesDataset": dataset.NumpySlicesDataset,
        },
        "mindspore.communication": _communication(process),
        "mindspore.communication.management": _communication(process),
        "mindspore.mint.distributed": _distributed(process),
        "mindspore.hal.device": {"is_initialized": _is_initialized(process)},
        "mindspore.tools": {"set_dump": cell.set_dump},
        "mindspore._c_expression": _runtime_controls(process),
        # The module moved in MindSpore 2.10.
        _API[(parse_version(process.version) or _MOVED) < _MOVED]: {
            executor.__name__: executor for executor in process.executors
        },
    }


_MOVED = (2, 10)
_API = ("mindspore.graph.api", "mindspore.common.api")
_NAMES = (
    *("mindspore", "mindspore.context", "mindspore.common", "mindspore.common.initializer", "mindspore.common.dtype"),
    *("mindspore.nn", "mindspore.ops", "mindspore.train", "mindspore.train.callback", "mindspore.dataset"),
    *("mindspore.communication", "mindspore.communication.management", "mindspore.mint"),
    *("mindspore.mint.distributed", "mindspore.hal", "mindspore.hal.device", "mindspore.tools"),
    *("mindspore._c_expression", "mindspore.graph", *_API),
)


def _top(process: MindSporeProcess) -> dict[str, Any]:
    return {
        "__version__": process.version,
        "GRAPH_MODE": GRAPH_MODE,
        "PYNATIVE_MODE": PYNATIVE_MODE,
        **types.DTYPES,
        "Tensor": types.Tensor,
        "Parameter": types.Parameter,
        "ParameterTuple": types.ParameterTuple,
        "tensor": types.Tensor,
        "set_seed": types.set_seed,
        "Model": model.Model,
        "jit": cell.jit,
        "grad": cell.grad,
        "value_and_grad": cell.value_and_grad,
        "set_dump": cell.set_dump,
        "from_numpy": types.Tensor.from_numpy,
        "DatasetHelper": dataset.DatasetHelper,
        "data_sink": dataset.data_sink,
        **_context(process),
        "set_device": _set_device(process),
    }


def _context(process: MindSporeProcess) -> dict[str, Any]:
    def is_for_device(name: str) -> bool:
        device = process.context["device_target"]
        if device in _DEVICES_OF.get(name, _DEVICES):
            return True
        process.log(
            "WARNING",
            f"For 'context.set_context', when set the argument '{name}', the argument 'device_target' only supports "
            f"devices in '{_DEVICES_OF[name]}', but got '{device}', ignore it.",
        )
        return False

    def set_context(**settings: Any) -> None:
        jit_config = settings.pop("jit_config", None) or {}
        for name, value in {**settings, **jit_config}.items():
            if name not in _CONTEXT:
                raise ValueError(f"For 'context.set_context', the keyword argument {name} is not recognized!{_USAGE}")
            if name == "device_target" and value not in _DEVICES:
                targets = [*_DEVICES, "Davinci"]
                raise ValueError(
                    f"For 'context.set_context', the argument 'device_target' must be one of {targets}, "
                    f"but got {value}."
                )
            if is_for_device(name):
                process.context[name] = value

    def get_context(attr_key: str) -> Any:
        if attr_key not in _CONTEXT:
            raise ValueError(
                f"For 'context.get_context', the argument {attr_key} is not recognized!"
                + _USAGE.replace("set_context", "get_context")
            )
        is_for_device(attr_key)
        return process.context.get(attr_key)

    return {
        "set_context": set_context,
        "get_context": get_context,
        "GRAPH_MODE": GRAPH_MODE,
        "PYNATIVE_MODE": PYNATIVE_MODE,
    }


def _set_device(process: MindSporeProcess) -> Callable[..., None]:
    def set_device(device_target: str, device_id: Any = None) -> None:
        if device_target not in _DEVICES:
            raise ValueError(f"The argument 'device_target' must be one of {list(_DEVICES)}, but got {device_target}.")
        if process.initialized - {device_target}:
            raise RuntimeError("The 'mindspore.set_device' can not be modified after the runtime is initialized.")
        process.context["device_target"] = device_target
        if device_id is not None:
            process.context["device_id"] = device_id

    return set_device


def _is_initialized(process: MindSporeProcess) -> Callable[[str], bool]:
    def is_initialized(device_target: str) -> bool:
        if device_target not in _DEVICES:
            raise ValueError(
                f"For 'hal.is_initialized', the argument 'device_target' must be one of {list(_DEVICES)}, "
                f"but got {device_target}."
            )
        return device_target in process.initialized

    return is_initialized


def _communication(process: MindSporeProcess) -> dict[str, Any]:
    def init(backend_name: Any = None) -> None:
        """Read rank and size from the launcher's variables, and initialise the device. This reads the dump JSON."""
        rank, size = os.environ.get("RANK_ID"), os.environ.get("RANK_SIZE") or os.environ.get("MS_WORKER_NUM")
        if rank is None and process.target == "CPU":
            raise RuntimeError(_NO_LAUNCHER)
        process.rank, process.size = int(rank or 0), int(size or 1)
        try:
            process.initialize_device()
        except RuntimeError:
            process.rank, process.size = None, 1
            raise

    # If `init` was not called, the process is rank 0 of 1.
    def get_rank(group: str = "") -> int:
        return process.rank_id

    def get_group_size(group: str = "") -> int:
        return process.size

    def release() -> None:
        process.rank, process.size = None, 1

    return {"init": init, "get_rank": get_rank, "get_group_size": get_group_size, "release": release}


def _distributed(process: MindSporeProcess) -> dict[str, Any]:
    functions = _communication(process)
    init = functions["init"]

    def init_process_group(backend: Any = None, *arguments: Any, **settings: Any) -> None:
        init()

    return {
        "init_process_group": init_process_group,
        "get_rank": functions["get_rank"],
        "get_world_size": functions["get_group_size"],
    }


def _runtime_controls(process: MindSporeProcess) -> dict[str, Any]:
    def without_effect(*_: Any) -> None:
        """Do nothing: these functions concern only dumps that the device itself writes."""

    return {
        "_set_init_iter": process.set_init_iter,
        "_dump_step": process.dump_step,
        "_dump_set_dynamic": without_effect,
        "_dump_start": without_effect,
        "_dump_stop": without_effect,
    }


def _initializers() -> dict[str, Any]:
    return {
        "initializer": types.initializer,
        "Zero": lambda: "zeros",
        "One": lambda: "ones",
        "Constant": lambda value: value,
        "Normal": lambda sigma=0.01, mean=0.0: types.draw("normal", sigma, mean),
        "TruncatedNormal": lambda sigma=0.01, mean=0.0, a=-2.0, b=2.0: types.draw("truncated", sigma, mean, a, b),
        "Uniform": lambda scale=0.07: types.draw("uniform", scale),
        "HeUniform": lambda *_, **__: "he_uniform",
        "XavierUniform": lambda *_: "xavier_uniform",
    }


def _ops() -> dict[str, Any]:
    def plain(op_type: str) -> Callable[[], cell.Primitive]:
        return lambda: cell.Primitive(op_type, lambda *inputs: functions.call(op_type, *inputs))

    def with_axis(op_type: str, function: Callable[..., Any]) -> Callable[..., cell.Primitive]:
        return lambda axis=-1: cell.Primitive(op_type, lambda x: function(x, axis))

    def matmul(transpose_a: bool = False, transpose_b: bool = False) -> cell.Primitive:
        return cell.Primitive("MatMul", lambda x, y: functions.matmul_kernel(x, y, transpose_a, transpose_b))

    return {
        **{name: getattr(functions, name) for name in _OPS},
        "pow": functions.power,
        "abs": functions.absolute,
        "sum": functions.total,
        **{name: plain(op_type) for name, op_type in _PRIMITIVES.items()},
        "MatMul": matmul,
        "BiasAdd": lambda: cell.Primitive("BiasAdd", functions.bias_add),
        "Cast": lambda: cell.Primitive("Cast", functions.cast),
        "Reshape": lambda: cell.Primitive("Reshape", functions.reshape),
        "Transpose": lambda: cell.Primitive("Transpose", functions.transpose),
        "Softmax": with_axis("Softmax", functions.softmax),
        "LogSoftmax": with_axis("LogSoftmax", functions.log_softmax),
        "Primitive": cell.Primitive,
        "grad": cell.grad,
        "value_and_grad": cell.value_and_grad,
    }
