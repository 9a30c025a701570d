from __future__ import annotations

import os

import places
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ascend_dump import CorruptDump, DumpNotFound, ReadError
from ascend_dump.native.cann.graph import (
    Node,
    OutputOrigin,
    build_graphs,
    find_computational,
    find_model_folders,
    graph_name,
    read_graph,
    why_no_dump,
)

DATA = places.DATA / "ge_proto"
TRAIN = DATA / "ge_proto_00000017_graph_1_Build.txt"
INIT = DATA / "ge_proto_00000009_graph_11_Build.txt"


def test_nodes_of_the_training_graph():
    nodes = list(read_graph(TRAIN))
    assert [node.name for node in nodes] == [
        "atomic_addr_clean0_71",
        "IteratorGetNext",
        "dense/kernel",
        "dense/MatMul",
        "dense/BiasAdd_Relu",
        "Node_Output",
    ]
    assert nodes[4] == Node(
        "dense/BiasAdd_Relu",
        "BiasAdd",
        ("dense/MatMul:0", "dense/bias:0"),
        "ge_default_20240613143502_1",
        4,
        1,
        ("dense/BiasAdd", "Relu"),
    )
    assert nodes[1].original_type == "IteratorGetNext"
    assert [node.name for node in nodes if why_no_dump(node)] == ["dense/kernel", "Node_Output"]


def test_operators_that_are_never_dumped_say_why():
    def reason(kind, **fields):
        found = why_no_dump(Node("x", kind, (), "g", **fields))
        return found and (found.reason, found.certain)

    assert reason("MatMulV2") is None
    assert "_no_task" in reason("MatMulV2", no_task=True)[0]
    assert reason("MatMulV2", no_task=True, dumped_without_task=True) is None
    for kind in ("If", "While", "For", "Case", "Data", "RefData", "Const", "StackPush", "StackPop"):
        assert reason(kind)[1] is True, kind
    for kind in ("Concat", "Split"):
        assert reason(kind)[1] is False, kind


def test_the_computational_graph_is_the_one_with_the_pipeline_or_the_users_operators(tmp_path):
    assert build_graphs(DATA) == [INIT, TRAIN]
    assert find_computational(build_graphs(DATA)) == [TRAIN]
    assert find_computational(build_graphs(DATA), ["truncated_normal"]) == [INIT]
    assert find_computational(build_graphs(DATA), ["dense/MatMul", "dense/kernel"]) == [TRAIN]
    assert find_computational(build_graphs(DATA), ["dense/MatMul", "nowhere"]) == []


def test_graph_files_are_told_from_their_neighbours(tmp_path):
    names = [
        "ge_proto_00292_Build.txt",
        "ge_proto_00000009_graph_11_Build.txt",
        "ge_proto_00000010_PreRunAfterBuild.txt",
        "ge_onnx_00000009_graph_11_Build.pbtxt",
        "ge_proto_Build.txt",
    ]
    for name in names:
        (tmp_path / name).write_text("")
    assert [path.name for path in build_graphs(tmp_path)] == [names[4], names[1], names[0]]
    assert find_computational(build_graphs(tmp_path)) == []


def test_the_graphs_name_is_the_directory_of_its_dump(tmp_path):
    assert graph_name(TRAIN) == "ge_default_20240613143502_1"
    folder = tmp_path / "20260101010101" / "0" / "ge_default_20240613143502_1"
    (folder / "1" / "0").mkdir(parents=True)
    (tmp_path / "20260101010101" / "0" / "ge_default_20240613143455_11").mkdir()
    assert find_model_folders(tmp_path, graph_name(TRAIN)) == [folder]
    assert find_model_folders(tmp_path, "ge.default/20240613143455 11") == [
        folder.parent / "ge_default_20240613143455_11"
    ]
    assert find_model_folders(tmp_path, "other") == []


def write(tmp_path, text):
    path = tmp_path / "ge_proto_00000001_graph_1_Build.txt"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_a_compact_text_reads_as_the_documents_print_it(tmp_path):
    text = (
        'graph { name: "ge_default_1" op { name: "atomic_addr_clean0_71" type: "AtomicAddrClean" '
        'attr { key: "_fe_imply_type" value { i: 6 } } attr { key: "_no_task" value { b: true } } id: 3 } }'
    )
    (node,) = read_graph(write(tmp_path, text))
    assert (node.name, node.type, node.no_task, node.id) == ("atomic_addr_clean0_71", "AtomicAddrClean", True, 3)
    assert graph_name(write(tmp_path, text)) == "ge_default_1"


def test_the_first_graph_with_a_name_names_the_model_and_nodes_know_their_own(tmp_path):
    sub = 'graph {\n  name: "sub"\n  op {\n    name: "b"\n  }\n}\n'
    text = 'name: "model"\n' + sub.replace('"sub"', '"main"').replace('"b"', '"a"') + sub
    path = write(tmp_path, text)
    assert [(node.graph, node.name) for node in read_graph(path)] == [("main", "a"), ("sub", "b")]
    assert graph_name(path) == "main"


def quote(text):
    out = ""
    for byte in text.encode():
        char = chr(byte)
        escaped = {'"': '\\"', "\\": "\\\\", "\n": "\\n"}.get(char)
        out += escaped or (char if 0x20 <= byte < 0x7F else f"\\{byte:03o}")
    return f'"{out}"'


def print_message(fields, indent, step, compact):
    pad, end = ("", " ") if compact else (" " * indent, "\n")
    out = ""
    for key, value in fields:
        if isinstance(value, list):
            body = print_message(value, indent + step, step, compact)
            out += f"{pad}{key} {{{end}{body}{pad}}}{end}"
        else:
            out += f"{pad}{key}: {value}{end}"
    return out


def description(origin):
    """The description of an output, with its origin among other attributes."""
    attrs = [("dtype", "DT_FLOAT"), ("attr", [("key", quote("layout {")), ("value", [("s", quote("}"))])])]
    told = {"_datadump_origin_name": ("s", quote(origin.name)), "_fx_tensor_name": ("s", quote(origin.fx))}
    told["_datadump_origin_output_index"] = ("i", origin.output)
    return attrs + [("attr", [("key", quote(key)), ("value", [value])]) for key, value in told.items()]


def print_graph(nodes, step, compact):
    fields = [("name", quote("g"))]
    for node in nodes:
        op = [("name", quote(node.name)), ("type", quote(node.type))]
        op += [("input", quote(name)) for name in node.inputs]
        op += [("attr", [("key", quote("_json")), ("value", [("s", quote('{"a": {"b": "}"}}'))])])]
        if node.original_names:
            names = [("s", quote(name)) for name in node.original_names]
            value = [("list", [*names, ("val_type", "VT_LIST_STRING")])]
            op.append(("attr", [("key", quote("_datadump_original_op_names")), ("value", value)]))
        if node.no_task:
            op.append(("attr", [("key", quote("_no_task")), ("value", [("b", "true")])]))
        op += [("id", node.id), ("stream_id", node.stream_id)]
        op.append(("input_desc", [("dtype", "DT_FLOAT"), ("shape", [("dim", 2), ("dim", 3)]), ("empty", [])]))
        op += [("output_desc", description(origin)) for origin in node.origins]
        fields.append(("op", op))
    return print_message([("graph", fields)], 0, step, compact)


names = st.text(st.characters(blacklist_categories=["Cs"]), max_size=12)
nodes = st.builds(
    Node,
    name=names,
    type=names,
    inputs=st.lists(names, max_size=3).map(tuple),
    graph=st.just("g"),
    id=st.integers(0, 2**40),
    stream_id=st.integers(-1, 2**31),
    original_names=st.lists(names, max_size=3).map(tuple),
    original_type=st.just(""),
    no_task=st.booleans(),
    dumped_without_task=st.just(False),
    origins=st.lists(st.builds(OutputOrigin, names, st.integers(0, 99), names), max_size=2)
    .map(tuple)
    .map(lambda found: found if any(one != OutputOrigin() for one in found) else ()),
)


@given(st.lists(nodes, max_size=4), st.sampled_from([2, 0, 3]), st.booleans())
def test_any_graph_is_read_back_however_it_is_laid_out(tmp_path_factory, found, step, compact):
    path = write(tmp_path_factory.getbasetemp(), print_graph(found, step, compact))
    assert list(read_graph(path)) == found


def test_an_output_with_lines_of_both_layouts_has_its_origin(tmp_path):
    text = """graph {
  op {
    name: "a"
    output_desc {
      attr {
        key: "_datadump_origin_name"
        value {
          s: "conv1"
        }
      }
      attr { key: "_datadump_origin_output_index" value { i: 3 } }
    }
  }
}
"""
    (node,) = read_graph(write(tmp_path, text))
    assert node.origins == (OutputOrigin("conv1", 3),)


def test_a_message_that_ends_elsewhere_than_it_begins_is_followed(tmp_path):
    text = """graph {
  op {
    name: "a"
    attr {
      key: "other"
      value {
        list {
        s: "x"
    }
    }
    }
    output_desc {
      shape { dim: 1 }
    }
    type: "T"
  }
}
"""
    (node,) = read_graph(write(tmp_path, text))
    assert (node.name, node.type) == ("a", "T")


@pytest.mark.parametrize(
    ("text", "given_before"),
    [
        ("", 0),
        ("}\n", 0),
        ("{ 1\n", 0),
        ("\x00\x01\x02", 0),
        ("GIF89a: [1]\n...: 3", 0),
        ('{"json": 1}', 0),
        ('graph {\n  op {\n    name: "a"\n  }\n  op {\n    name: "b"\n', 1),
        ('graph {\n  op {\n    name: "a"\n  }\n}\n}\n', 1),
        ("graph {\n" * 1000, 0),
    ],
)
def test_what_is_no_graph_is_corrupt_after_the_operators_before(tmp_path, text, given_before):
    found = []

    def collect():
        for node in read_graph(write(tmp_path, text)):
            found.append(node)

    with pytest.raises(CorruptDump) as caught:
        collect()
    assert caught.value.offset is not None
    assert len(found) == given_before


def test_what_cannot_be_opened_is_a_read_error(tmp_path):
    with pytest.raises(DumpNotFound):
        list(read_graph(tmp_path / "none.txt"))
    with pytest.raises(ReadError):
        list(read_graph(tmp_path))
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ReadError, match="regular"):
        graph_name(tmp_path / "pipe")


@settings(max_examples=200)
@given(st.data())
def test_a_mutated_graph_gives_nodes_or_a_typed_error(tmp_path_factory, data):
    text = bytearray(TRAIN.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(text) - 1))
        text[at : at + data.draw(st.integers(0, 30))] = data.draw(
            st.one_of(st.binary(max_size=8), st.sampled_from([b"{", b"}", b'"', b"\n", b" }\n", b"{\n"]))
        )
    path = write(tmp_path_factory.getbasetemp(), bytes(text))
    try:
        found = list(read_graph(path))
    except CorruptDump:
        return
    assert all(isinstance(node, Node) for node in found)


def test_a_hostile_text_that_never_ends_a_message_takes_no_more_than_its_length(tmp_path):
    # Each of these begins a search for an end that is nowhere; the searches are limited, not repeated.
    path = write(tmp_path, b"graph {\n" + b" a {\n" * 200_000)
    with pytest.raises(CorruptDump, match="cut off"):
        list(read_graph(path))
