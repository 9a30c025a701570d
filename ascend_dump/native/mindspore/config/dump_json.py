"""Read a dump JSON like MindSpore's parser, with the same order of checks and the same messages.

The order of checks: the block `e2e_dump_settings`, then the presence of the keys of `common_dump_settings`, then their
values. MindSpore reports only the first error; `DumpJsonReading.refusals` also has the later ones. Unknown keys, and
text after the JSON object, are ignored.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from typing import Any, Optional, Union

from ascend_dump.native.mindspore.config._json_error import syntax_error
from ascend_dump.native.mindspore.config._parser import Parser
from ascend_dump.native.mindspore.config.settings import DumpJsonReading, DumpJsonSettings, Refusal
from ascend_dump.native.mindspore.runtime import Runtime
from ascend_dump.storage.files import FileTooLarge, NotRegularFile, read_small

__all__ = ["CONFIG_VARIABLE", "read_file", "read_text"]

CONFIG_VARIABLE = "MINDSPORE_DUMP_CONFIG"

#: Maximum size of a file in bytes; MindSpore itself has no limit.
_MOST_BYTES = 10 * 1024 * 1024


def read_file(
    path: str, *, runtime: Optional[Runtime] = None, env: Optional[Mapping[str, str]] = None
) -> DumpJsonReading:
    """Read the file that MINDSPORE_DUMP_CONFIG names. path: not empty, because an empty variable means no dump."""
    if not os.path.exists(path):
        return _refused("Get dump config file failed")
    if os.path.isdir(path):
        return _refused(f"Invalid json file name:{os.path.realpath(path)}")
    suffix = os.path.splitext(path)[1]
    if suffix != ".json":
        return _refused(f"[DataDump] dump config file suffix only supports json! But got:{suffix}")
    try:
        text = read_small(path, _MOST_BYTES)
    except (NotRegularFile, FileTooLarge):
        return _refused(f"Invalid json file name:{path}")
    except OSError:
        return _refused(f"Open file failed, file: {path}")
    return read_text(text, runtime=runtime, env=env)


def read_text(
    text: bytes, *, runtime: Optional[Runtime] = None, env: Optional[Mapping[str, str]] = None
) -> DumpJsonReading:
    """Read the content of a dump JSON.

    runtime: by default Ascend with O0 or O1. env: by default the environment of this process
    """
    try:
        value = _decode(text)
    except _NumberOverflow as error:
        return _refused(f"Parse dump json failed, error:[json.exception.out_of_range.406] number overflow {error}")
    except ValueError as error:
        return _refused(f"Parse dump json failed, error:[json.exception.parse_error.101] parse error {error}")
    return Parser(value, runtime or Runtime(), os.environ if env is None else env).read()


class _NumberOverflow(ValueError):
    """A number that does not fit into a double."""


def _refused(message: str) -> DumpJsonReading:
    return DumpJsonReading(DumpJsonSettings(), (Refusal(message),))


def _decode(data: bytes) -> Any:
    if data.startswith(b"\xef\xbb\xbf"):
        data = data[3:]
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        # MindSpore does not read the text after the JSON object, so bytes that are not UTF-8 are allowed there.
        text = data[: error.start].decode("utf-8")
    begin = len(text) - len(text.lstrip(" \t\r\n"))
    if begin == len(text) or text[begin] == "\0":
        reason = "attempting to parse an empty input; check that your input string or stream contains the expected JSON"
        raise ValueError(f"at line 1, column 1: {reason}")
    decoder = json.JSONDecoder(parse_constant=_no_constant, parse_float=_number, parse_int=_integer)
    try:
        return decoder.raw_decode(text, begin)[0]
    except json.JSONDecodeError as error:
        raise ValueError(syntax_error(text, error)) from None
    except RecursionError:
        raise ValueError("at line 1, column 1: it is nested too deep") from None


def _no_constant(name: str) -> Any:
    raise json.JSONDecodeError(f"{name} is not JSON", name, 0)


def _number(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise _NumberOverflow(f"parsing '{text[:40]}'")
    return value


def _integer(text: str) -> Union[int, float]:
    # nlohmann::json converts an integer of more than 64 bits to a double. Doing the same also avoids Python's slow
    # conversion of very long integers.
    value = int(text) if len(text) <= 20 else 2**64
    return value if -(2**63) <= value < 2**64 else _number(text)
