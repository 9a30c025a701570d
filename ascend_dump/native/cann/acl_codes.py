"""Return codes of the acl interface.

Source: CANN's public header `acl/acl_base_rt.h`. pyACL returns them as plain ints.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Optional

__all__ = ["AclError", "describe"]


class AclError(IntEnum):
    """The return codes. A member has the name in the header without `ACL_ERROR_`; SUCCESS is 0.

    100xxx and 148xxx mean wrong use, 2xxxxx missing resources, 300000 missing storage, 5xxxxx failures inside CANN.
    """

    SUCCESS = 0

    INVALID_PARAM = 100000
    UNINITIALIZE = 100001
    REPEAT_INITIALIZE = 100002
    INVALID_FILE = 100003
    WRITE_FILE = 100004
    INVALID_FILE_SIZE = 100005
    PARSE_FILE = 100006
    FILE_MISSING_ATTR = 100007
    FILE_ATTR_INVALID = 100008
    INVALID_DUMP_CONFIG = 100009
    INVALID_PROFILING_CONFIG = 100010
    INVALID_MODEL_ID = 100011
    DESERIALIZE_MODEL = 100012
    PARSE_MODEL = 100013
    READ_MODEL_FAILURE = 100014
    MODEL_SIZE_INVALID = 100015
    MODEL_MISSING_ATTR = 100016
    MODEL_INPUT_NOT_MATCH = 100017
    MODEL_OUTPUT_NOT_MATCH = 100018
    MODEL_NOT_DYNAMIC = 100019
    OP_TYPE_NOT_MATCH = 100020
    OP_INPUT_NOT_MATCH = 100021
    OP_OUTPUT_NOT_MATCH = 100022
    OP_ATTR_NOT_MATCH = 100023
    OP_NOT_FOUND = 100024
    OP_LOAD_FAILED = 100025
    UNSUPPORTED_DATA_TYPE = 100026
    FORMAT_NOT_MATCH = 100027
    BIN_SELECTOR_NOT_REGISTERED = 100028
    KERNEL_NOT_FOUND = 100029
    BIN_SELECTOR_ALREADY_REGISTERED = 100030
    KERNEL_ALREADY_REGISTERED = 100031
    INVALID_QUEUE_ID = 100032
    REPEAT_SUBSCRIBE = 100033
    STREAM_NOT_SUBSCRIBE = 100034
    THREAD_NOT_SUBSCRIBE = 100035
    WAIT_CALLBACK_TIMEOUT = 100036
    REPEAT_FINALIZE = 100037
    NOT_STATIC_AIPP = 100038
    COMPILING_STUB_MODE = 100039
    GROUP_NOT_SET = 100040
    GROUP_NOT_CREATE = 100041
    PROF_ALREADY_RUN = 100042
    PROF_NOT_RUN = 100043
    DUMP_ALREADY_RUN = 100044
    DUMP_NOT_RUN = 100045
    PROF_REPEAT_SUBSCRIBE = 148046
    PROF_API_CONFLICT = 148047
    INVALID_MAX_OPQUEUE_NUM_CONFIG = 148048
    INVALID_OPP_PATH = 148049
    OP_UNSUPPORTED_DYNAMIC = 148050
    RELATIVE_RESOURCE_NOT_CLEARED = 148051
    UNSUPPORTED_JPEG = 148052
    INVALID_BUNDLE_MODEL_ID = 148053

    BAD_ALLOC = 200000
    API_NOT_SUPPORT = 200001
    INVALID_DEVICE = 200002
    MEMORY_ADDRESS_UNALIGNED = 200003
    RESOURCE_NOT_MATCH = 200004
    INVALID_RESOURCE_HANDLE = 200005
    FEATURE_UNSUPPORTED = 200006
    PROF_MODULES_UNSUPPORTED = 200007

    STORAGE_OVER_LIMIT = 300000

    INTERNAL_ERROR = 500000
    FAILURE = 500001
    GE_FAILURE = 500002
    RT_FAILURE = 500003
    DRV_FAILURE = 500004
    PROFILING_FAILURE = 500005

    @classmethod
    def known(cls, code: int) -> Optional[AclError]:
        """Return the member of a code; None if the header does not define the code."""
        return cls._value2member_map_.get(code)  # type: ignore[return-value]  # typed as Enum in general


#: Hints for the codes that calls of the dump interface return.
_FIXES = {
    AclError.INVALID_PARAM: "a path is missing, or the configuration differs from that of the first aclInit",
    AclError.UNINITIALIZE: "call acl.init first",
    AclError.REPEAT_INITIALIZE: "acl is initialised already; call acl.init once",
    AclError.INVALID_FILE: "the configuration is missing, is not a regular file or is larger than 10 MiB",
    AclError.PARSE_FILE: "the configuration is nested deeper than 10 levels, or is not JSON",
    AclError.INVALID_DUMP_CONFIG: "run `ascend-dump check` on the configuration",
    AclError.REPEAT_FINALIZE: "acl is finalised already; call acl.finalize once",
    AclError.DUMP_ALREADY_RUN: "a dump is on already; call acl.mdl.finalize_dump first",
    AclError.DUMP_NOT_RUN: "call acl.mdl.init_dump first",
}


def describe(code: int) -> str:
    """Return a code with its name, and a hint for codes of the dump interface: `100045 ACL_ERROR_DUMP_NOT_RUN: …`."""
    member = AclError.known(code)
    if member is None:
        return f"{code} (unknown to acl_base_rt.h)"
    if member is AclError.SUCCESS:
        return "0 ACL_SUCCESS"
    fix = _FIXES.get(member)
    return f"{code} ACL_ERROR_{member.name}" + (f": {fix}" if fix else "")
