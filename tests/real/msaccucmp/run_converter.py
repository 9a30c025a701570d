"""Run the real msaccucmp converter on many files in one process.

usage: run_converter.py JOBS.json    [{"file": ..., "out": ..., "format": ..., "shape": ..., "type": ...}, ...]

Its native parser (libascend_dump_parser.so) comes only with CANN. Where it is missing, the one
method that calls it is replaced by the same thing in Python: DumpData as JSON with enumerations as
numbers and 64-bit integers as text. Everything else is the real code. Prints a JSON list of exit codes.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import struct
import sys
import traceback
from importlib.util import find_spec
from pathlib import Path


def main() -> None:
    root = Path(find_spec("msprobe").submodule_search_locations[0]) / "msaccucmp"
    sys.path.insert(0, str(root))
    sys.modules["torch"] = None  # seconds to import, and used for .pt only
    from cmp_utils.constant.compare_error import CompareError
    from conversion.shape_format_conversion import FormatConversionMain
    from dump_parse.big_dump_data import BigDumpDataParser
    from dump_parse.dump_data_parser import DumpDataParser

    replace_parser(BigDumpDataParser)
    codes = []
    for job in json.loads(Path(sys.argv[1]).read_text()):
        arguments = argparse.Namespace(
            dump_path=job["file"],
            output_path=job["out"],
            dump_version=2,
            output_file_type=job.get("type", "npy"),
            format=job.get("format"),
            shape=job.get("shape"),
            input=None,
            output=None,
            custom_script_path=None,
        )
        log = io.StringIO()
        with contextlib.redirect_stdout(log):
            try:
                if job.get("format"):
                    code = FormatConversionMain(arguments).convert_format()
                else:
                    code = DumpDataParser(arguments).parse_dump_data()
            except CompareError as error:
                code = error.code
            except Exception:
                code = -1
                traceback.print_exc(file=sys.stderr)
        codes.append(code)
    print(json.dumps(codes))


def replace_parser(parser) -> None:
    try:
        parser("").find_shared_library("libascend_dump_parser.so", "../../../adump/lib64")
        return
    except OSError:
        pass
    from google.protobuf.json_format import MessageToDict

    from ascend_dump.native.cann.messages import messages

    def parse(self) -> None:
        with open(self.dump_file_path, "rb") as file:
            header = file.read(struct.unpack("<Q", file.read(8))[0])
        message = messages().dump_data.FromString(header)
        found = MessageToDict(message, preserving_proto_field_name=True)
        # Our definitions hold texts as bytes.
        for name in ("version", "op_name", "dfx_message"):
            if name in found:
                found[name] = getattr(message, name).decode()
        for pair, attr in zip(found.get("attr", []), message.attr):
            pair["name"], pair["value"] = attr.name.decode(), attr.value.decode()
        for tensor, output in zip(found.get("output", []), message.output):
            if "original_op" in tensor:
                tensor["original_op"]["name"] = output.original_op.name.decode()
        self.dump_json_data = found

    parser._parse_dump_to_json = parse


if __name__ == "__main__":
    os.umask(0o077)
    main()
