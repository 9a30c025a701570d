"""acl's return codes carry their names."""

from __future__ import annotations

import pytest

from ascend_dump.native.cann.acl_codes import AclError, describe
from ascend_dump.native.cann.config import adump, parse


@pytest.mark.parametrize(
    ("code", "name"),
    [
        (0, "SUCCESS"),
        (100000, "INVALID_PARAM"),
        (100002, "REPEAT_INITIALIZE"),
        (100003, "INVALID_FILE"),
        (100006, "PARSE_FILE"),
        (100009, "INVALID_DUMP_CONFIG"),
        (100026, "UNSUPPORTED_DATA_TYPE"),
        (100037, "REPEAT_FINALIZE"),
        (100045, "DUMP_NOT_RUN"),
        (148046, "PROF_REPEAT_SUBSCRIBE"),
        (200006, "FEATURE_UNSUPPORTED"),
        (500001, "FAILURE"),
    ],
)
def test_names(code, name):
    assert AclError(code).name == name
    assert AclError[name] == code
    assert AclError.known(code) is AclError[name]


def test_no_code_has_two_names():
    assert len(AclError.__members__) == len({int(code) for code in AclError})


def test_codes_are_described():
    assert describe(0) == "0 ACL_SUCCESS"
    assert describe(100045) == "100045 ACL_ERROR_DUMP_NOT_RUN: call acl.mdl.init_dump first"
    assert describe(500003) == "500003 ACL_ERROR_RT_FAILURE"
    assert describe(7) == "7 (unknown to acl_base_rt.h)"
    assert AclError.known(7) is None


def test_the_verdicts_on_a_configuration_are_among_them():
    refused = parse.parse_text("{").refusal
    deep = parse.parse_text("[" * 11).refusal
    missing = parse.read_config("/nonexistent/acl.json").refusal
    assert refused is not None
    assert deep is not None
    assert missing is not None
    assert refused.acl_error == adump.judge({"dump": 1}).acl_error == AclError.INVALID_DUMP_CONFIG
    assert deep.acl_error == AclError.PARSE_FILE
    assert missing.acl_error == AclError.INVALID_FILE
    assert adump.judge({}).acl_error == AclError.SUCCESS
