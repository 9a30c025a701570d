"""The adapter for offline models (`.om`) that run through pyACL. CANN's own dump service writes them.

CANN's settings apply to models that are loaded after them. CANN counts the steps: each execution of a model is one.
There are two ways to switch the dump on. The return codes of acl show which one is possible:

    acl.init()                                            acl is initialised: the block switches the dump
    with capture(framework="acl", path="dumps") as cap:   on and off
        model, ret = acl.mdl.load_from_file("net.om")
        acl.mdl.execute(model, inputs, outputs)

    with capture(framework="acl", path="dumps") as cap:   acl is not initialised: the program passes the file
        acl.init(cap.config)                              that the capture has written to acl.init
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable

from ascend_dump.adapter import Adapter, Begin, DumpRequest, Problem, RunDirectory

if TYPE_CHECKING:
    from ascend_dump_acl._session import AclSession

__all__ = ["OPTIONS", "AclAdapter"]

#: The options of `DumpRequest.options` in addition to the keys of the dump JSON.
OPTIONS = {
    "graph": "GE's graph as text (ge_proto_*_Build.txt): patterns in layers and watch are expanded with it",
    "status_check": "True: the model was converted with --status_check=1",
}


class AclAdapter(Adapter):
    name = "acl"
    framework = "acl"
    # Higher than the priority of host adapters: whoever uses a device wants its operators, not those of the host.
    priority = 5
    process_hooks = ("acl",)
    only_from_the_start = "CANN dumps only models that are loaded after the dump was set"

    def accepts(self, target: Any) -> bool:
        # A model id is accepted, so that `check` can report that the model is already loaded.
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
