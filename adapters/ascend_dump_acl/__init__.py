"""Dumps of offline models (`.om`) that run through pyACL, by CANN's own dump service.

CANN's settings apply to the models that are loaded after them, and it counts the steps: one per
execution of a model. There are two ways, and the capture chooses by the return codes of acl:

    acl.init()                                            acl is initialised: the block switches the dump
    with capture(framework="acl", path="dumps") as cap:   on and off
        model, ret = acl.mdl.load_from_file("net.om")
        acl.mdl.execute(model, inputs, outputs)

    with capture(framework="acl", path="dumps") as cap:   acl is not initialised: pass it the file that the
        acl.init(cap.config)                              capture has written
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable

from ascend_dump.adapter import Adapter, Begin, DumpRequest, Problem, RunDirectory

if TYPE_CHECKING:
    from ascend_dump_acl._session import AclSession

__all__ = ["OPTIONS", "AclAdapter"]

#: What `DumpRequest.options` may contain in addition to the keys of the dump JSON.
OPTIONS = {
    "graph": "GE's graph as text (ge_proto_*_Build.txt): patterns in layers and watch are expanded with it",
    "status_check": "True: the model was converted with --status_check=1",
}


class AclAdapter(Adapter):
    name = "acl"
    framework = "acl"
    # A user of the device wants the operators on the device, not those on the host.
    priority = 5
    process_hooks = ("acl",)
    only_from_the_start = "CANN dumps only models that are loaded after the dump was set"

    def accepts(self, target: Any) -> bool:
        # A model id is accepted so that check can tell why it comes too late.
        return target is None or type(target) is int

    def check(self, request: DumpRequest, target: Any, run: RunDirectory) -> list[Problem]:
        from ascend_dump_acl._check import check

        return check(request, target, run)

    def start(self, request: DumpRequest, target: Any, run: RunDirectory) -> AclSession:
        from ascend_dump_acl._session import AclSession

        return AclSession(request, run)

    def counts_steps(self, target: Any) -> bool:
        return True

    def launch(self, begin: Begin) -> Callable[[], str]:
        from ascend_dump_acl._launcher import launch

        return launch(begin)
