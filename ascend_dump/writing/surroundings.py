"""Record the surroundings of a program that may change its results.

These are environment variables, versions of packages, of CANN and of the driver, and the git commit. Of the environment
variables only those in `_VARIABLES` are recorded, because others may contain secrets.
"""

from __future__ import annotations

import functools
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Optional

from ascend_dump.storage.files import read_small
from ascend_dump.storage.installed import installed_versions

__all__ = ["loaded_versions", "surroundings"]

#: Environment variables that may change results, or the order in which terms are added.
_VARIABLES = (
    *("ASCEND_LAUNCH_BLOCKING", "ATB_MATMUL_SHUFFLE_K_ENABLE", "CLOSE_MATMUL_K_SHIFT", "COMBINED_ENABLE"),
    *("CUBLAS_WORKSPACE_CONFIG", "CUDA_LAUNCH_BLOCKING", "CUDA_VISIBLE_DEVICES", "ASCEND_RT_VISIBLE_DEVICES"),
    *("FLASH_ATTENTION_DETERMINISTIC", "HCCL_ALGO", "HCCL_DETERMINISTIC", "HCCL_OP_EXPANSION_MODE"),
    *("INF_NAN_MODE_ENABLE", "INF_NAN_MODE_FORCE_DISABLE", "LCCL_DETERMINISTIC", "MKL_CBWR", "MKL_DYNAMIC"),
    *("MKL_NUM_THREADS", "NCCL_ALGO", "NCCL_PROTO", "NVIDIA_TF32_OVERRIDE", "OMP_NUM_THREADS"),
    *("ONEDNN_DEFAULT_FPMATH_MODE", "PYTHONHASHSEED", "TASK_QUEUE_ENABLE", "TF_CUDNN_DETERMINISTIC"),
    *("TF_DETERMINISTIC_OPS", "TF_ENABLE_ONEDNN_OPTS", "TORCHDYNAMO_DISABLE", "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE"),
    *("TORCH_COMPILE_DISABLE", "VLLM_BATCH_INVARIANT", "XLA_FLAGS"),
)
#: Packages that compute results, or that decide what is computed.
_PACKAGES = (
    *("accelerate", "apex", "deepspeed", "diffusers", "flash_attn", "lightning", "megatron", "mindspeed", "mindspore"),
    *("numpy", "peft", "sglang", "tensorflow", "timm", "torch_npu", "torchair", "transformers", "triton", "trl"),
    *("verl", "vllm", "vllm_ascend"),
)
#: Maximum number of characters recorded of a variable or version.
_LONGEST = 300
_COMMIT = re.compile(r"[0-9a-f]{40}")
#: Maximum number of bytes read of a file of git (HEAD, a reference, or packed-refs).
_LARGEST = 1 << 20


def surroundings() -> dict[str, str]:
    """Return the environment variables by name, and under "git commit" the commit of the program, if it is known."""
    found = {name: os.environ[name][:_LONGEST] for name in _VARIABLES if name in os.environ}
    commit = _commit_of(Path(sys.argv[0] if getattr(sys, "argv", None) else ".").absolute().parent)
    return found if commit is None else {**found, "git commit": commit}


def loaded_versions() -> dict[str, str]:
    """Return the versions of packages that the process has imported so far, and those of CANN and the driver."""
    versions = {}
    for name in _PACKAGES:
        version = getattr(sys.modules.get(name), "__version__", None)
        if isinstance(version, str):
            versions[name] = version[:_LONGEST]
    return {**versions, **installed_versions()}


# It is read once per process, which has imported the program as it was at the beginning.
@functools.lru_cache(4)
def _commit_of(directory: Path) -> Optional[str]:
    """Return the commit that is checked out in the git working tree around a directory; None if there is none.

    It is read from the files of git, so git need not be installed.
    """
    for above in (directory, *directory.parents):
        git = above / ".git"
        if git.exists():
            return next(_commits(git), None)
    return None


def _commits(git: Path) -> Iterator[str]:
    try:
        if git.is_file():  # in a linked working tree `.git` is a file that contains the path of the git directory
            git = git.parent / _text(git).partition(":")[2].strip()
        head = _text(git / "HEAD").strip()
        if not head.startswith("ref: "):
            yield from _COMMIT.findall(head)
            return
        name = head[len("ref: ") :]
        common = git / "commondir"
        shared = git / _text(common).strip() if common.is_file() else git
        for folder in (git, shared):
            if (folder / name).is_file():
                yield from _COMMIT.findall(_text(folder / name))
        for line in _text(shared / "packed-refs").splitlines():
            if line.endswith(f" {name}"):
                yield from _COMMIT.findall(line)
    except OSError:
        return


def _text(path: Path) -> str:
    return read_small(path, _LARGEST).decode(errors="replace")
