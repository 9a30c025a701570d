"""Facts about torch_npu's dump interface (init_dump, set_dump, finalize_dump): return codes, and files of kernels."""

import json
import re
import sys
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, Callable

import torch

from ascend_dump.native.cann.dump_file import read_header
from ascend_dump.native.cann.names import eager_name, parse_name
from ascend_dump.selftest.program import ask_each
from ascend_dump.selftest.programs.kernel_dumps import KernelDumps

torch_npu: Any = import_module("torch_npu")
#: Operators on a square matrix. The key is "API.kernel", as expected in their files on 910B (from the sources of
#: torch_npu's op-plugin and of CANN's operators).
OPERATORS: dict[str, Callable[[Any], Any]] = {
    "aclnnAbs.AbsAiCore": torch.abs,
    "aclnnAdd.AddAiCore": lambda x: x.add_(x),
    "aclnnAmax.ReduceMaxAiCore": lambda x: x.amax(-1),
    "aclnnArgMax.ArgMaxV2AiCore": lambda x: x.argmax(-1),
    "aclnnCast.CastAiCore": lambda x: x.half(),
    "aclnnCat.ConcatD": lambda x: torch.cat([x, x]),
    "aclnnClamp.ClipByValueV2AiCore": lambda x: x.clamp(0, 1),
    "aclnnCumsum.CumsumAiCore": lambda x: x.cumsum(0),
    "aclnnDiv.RealDivAiCore": lambda x: x / x,
    "aclnnEqTensor.EqualAiCore": lambda x: x == x,
    "aclnnExp.ExpAiCore": torch.exp,
    "aclnnGelu.Gelu": torch.nn.functional.gelu,
    "aclnnInplaceCopy.TensorMoveAiCore": torch.clone,
    "aclnnInplaceMul.MulAiCore": lambda x: x.mul_(x),
    "aclnnLayerNormWithImplMode.LayerNormV3WithImplMode": lambda x: torch.nn.functional.layer_norm(x, x.shape[-1:]),
    "aclnnMean.ReduceMeanAiCore": lambda x: x.mean(-1),
    "aclnnLog.LogAiCore": torch.log,
    "aclnnLogSoftmax.LogSoftmaxAiCore": lambda x: x.log_softmax(-1),
    "aclnnMaximum.MaximumAiCore": lambda x: torch.maximum(x, x),
    "aclnnNeg.NegAiCore": torch.neg,
    "aclnnReduceSum.ReduceSumOpAiCore": lambda x: x.sum(-1),
    "aclnnRelu.Relu": torch.relu,
    "aclnnSigmoid.SigmoidAiCore": torch.sigmoid,
    "aclnnSilu.SiluAiCore": torch.nn.functional.silu,
    "aclnnSoftmax.SoftmaxAiCore": lambda x: x.softmax(-1),
    "aclnnSqrt.SqrtAiCore": torch.sqrt,
    "aclnnTanh.Tanh": torch.tanh,
    "aclnnTril.Tril": torch.tril,
}
CODE = re.compile(r"error code is (\d{6})\b")


def code_of(call: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function, and return 0. If it raises an error, return acl's code in the message, else the first line."""
    try:
        call(*arguments)
    except (RuntimeError, AssertionError) as error:
        match = CODE.search(str(error))
        return int(match[1]) if match else str(error).partition("\n")[0]
    return 0


def ask(directory: Path) -> dict[str, Any]:
    """Return all facts. Those of calls in a fixed order come first; `probes_interface.py` explains each of them."""
    facts: dict[str, Any] = {}
    torch_npu.npu.init_dump()
    facts["waiting_interface"] = not torch_npu.npu.is_initialized()
    torch_npu.npu.finalize_dump()
    torch.ones(4).npu().cpu()
    interface = KernelDumps(torch_npu, directory)
    utils = interface.utils
    good = interface.config("good")
    facts["set_dump_first"] = code_of(utils.set_dump, good)
    facts["checked_interface"] = isinstance(facts["set_dump_first"], int) and facts["set_dump_first"] != 0
    utils.init_dump()
    facts["init_dump_twice"] = code_of(utils.init_dump)
    facts["missing_file"] = code_of(utils.set_dump, str(directory / "missing.json"))
    facts["deep_file"] = code_of(utils.set_dump, interface.text("deep", '{"a":' * 11 + "1" + "}" * 11))
    facts["refused_file"] = code_of(utils.set_dump, interface.config("refused", dump_mode="everything"))
    facts["empty_file"] = code_of(utils.set_dump, interface.text("empty", ""))
    facts["set_after_refusal"] = code_of(utils.set_dump, good)
    utils.finalize_dump()
    facts["begin_again"] = bool(interface.files_of("again"))
    interface.dump(interface.config("first"), interface.config("second"))
    facts["set_again"] = {name: interface.has_files(name) for name in ("first", "second")}
    interface.dump(interface.config("kept"), interface.text("nothing", '{"dump": {}}'))
    facts["nothing_asked"] = interface.has_files("kept")
    items = [{"model_name": "none", "layer": ["none"]}]
    facts["single_operators"] = bool(interface.files_of("single", dump_step="7", dump_list=items))
    facts["kernel_level"] = {
        level: bool(interface.files_of(f"level_{level}", dump_level=level)) for level in ("op", "kernel")
    }
    questions = (empty_operator, sides_of_modes, generated_names, called_apis)
    asked = {question.__name__: partial(question, interface) for question in questions}
    return {**facts, **ask_each(directory, asked)}


def empty_operator(interface: KernelDumps) -> dict[str, bool]:
    """Return True if a kernel wrote files: "empty" on a tensor without elements, "other" on one with one element."""
    return {
        name: bool(interface.files_of(f"of_{name}", launch=partial(add_one, size)))
        for name, size in (("empty", 0), ("other", 1))
    }


def add_one(size: int) -> None:
    """Add 1 to a tensor of this number of elements."""
    (torch.ones(size).npu() + 1).cpu()


def sides_of_modes(interface: KernelDumps) -> dict[str, list[str]]:
    """Return the sides that the files have ("input", "output", "input+output"), by the mode of the dump."""
    sides_by_mode = {}
    for mode in ("input", "output"):
        headers = [read_header(path) for path in interface.files_of(f"mode_{mode}", dump_mode=mode)]
        sides_by_mode[mode] = sorted({"+".join(sorted({tensor.io for tensor in header.tensors})) for header in headers})
    return sides_by_mode


def generated_names(interface: KernelDumps) -> list[str]:
    """Return the file names of an operator whose API CANN's build generates: it has no source in the repositories."""
    x = torch.ones(4).npu()
    files = interface.files_of("generated", launch=lambda: torch._foreach_abs([x])[0].cpu())
    return [path.name for path in files]


def called_apis(interface: KernelDumps) -> dict[str, dict[str, list[str]]]:
    """Return the names of APIs and of kernels in the files of each operator, by the key of `OPERATORS`."""
    written_names = {}
    for name, operator in OPERATORS.items():
        x = torch.rand(64, 64).npu()
        files = interface.files_of(name, launch=partial(operator, x))
        parsed = [eager_name(each) for path in files if (each := parse_name(path.name)) is not None]
        names = [each for each in parsed if each is not None]
        kernels = {each.kernel for each in names if each.kernel is not None}
        written_names[name] = {"api": sorted({each.api for each in names}), "kernel": sorted(kernels)}
    return written_names


if __name__ == "__main__":
    directory = Path(sys.argv[3])
    (directory / "truth.json").write_text(json.dumps({"facts": ask(directory)}))
