"""The served page: who gets what, tensors in slices, and everything that is refused."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Optional

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from report_pages import many_pairs, write_training

import ascend_dump
from ascend_dump import ConfigError
from ascend_dump.report.page import PageContent, PageRow
from ascend_dump.report.serving import PageServer, parse_slice, tensor_parts


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PageServer]:
    root = tmp_path_factory.mktemp("dumps")
    dumps = write_training(root / "actual", fault=(1, 1)), write_training(root / "reference")
    with PageServer(ascend_dump.compare(*dumps).to_page()) as made:
        thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield made
        made.shutdown()
        thread.join()


def ask(
    server: PageServer, path: Optional[str] = None, *, method: str = "GET", **headers: str
) -> tuple[int, dict[str, str], bytes]:
    """Status, headers and body of an answer; the path is that behind the token."""
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=60)
    place = f"/{server.token}/" if path is None else path
    connection.putrequest(method, place, skip_host="Host" in headers)
    for name, value in headers.items():
        connection.putheader(name.replace("_", "-"), value)
    connection.endheaders()
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    return answer.status, dict(answer.getheaders()), body


def tensor(server: PageServer, row: int, query: str = "") -> tuple[int, dict[str, Any]]:
    """Status, and what all lines of the answer say together."""
    status, _, body = ask(server, f"/{server.token}/tensor/{row}{query}")
    found: dict[str, Any] = {}
    for line in body.splitlines():
        found.update(json.loads(line))
    return status, found


class TestWhoGetsWhat:
    def test_the_page_for_who_has_the_token(self, server: PageServer) -> None:
        status, headers, body = ask(server)
        assert status == 200
        assert body.decode() == server.built.html
        assert headers["Cache-Control"] == "no-store"
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["Referrer-Policy"] == "no-referrer"
        assert "connect-src 'self'" in server.built.html
        assert "Python" not in headers["Server"]

    @pytest.mark.parametrize("path", ["/", "/x/", "/../", "//", "/tensor/0", "/%74/", "/%fc/", "*"])
    def test_nothing_without_it(self, server: PageServer, path: str) -> None:
        status, _, body = ask(server, path)
        assert status == 404
        assert json.loads(body) == {"error": "Not Found"}

    def test_nothing_for_a_part_of_it(self, server: PageServer) -> None:
        for path in (f"/{server.token[:-1]}/", f"/{server.token}x/", f"/{server.token}", f"/{server.token.lower()}/"):
            assert (ask(server, path)[0] == 200) == (path.strip("/") == server.token)

    def test_two_servers_have_two_tokens(self, server: PageServer) -> None:
        with PageServer(PageContent("t", (), "equal", "s")) as other:
            assert other.token != server.token
            assert len(other.token) >= 32
            assert other.server_address[0] == "127.0.0.1"

    @pytest.mark.parametrize(
        "host", ["evil.example", "evil.example:{port}", "127.0.0.1", "127.0.0.1:1", "", "[::1]:{port}"]
    )
    def test_a_name_of_another_site_is_refused(self, server: PageServer, host: str) -> None:
        assert ask(server, Host=host.format(port=server.server_port))[0] == 421
        assert ask(server, Host=f"localhost:{server.server_port}")[0] == 200

    @pytest.mark.parametrize("site", ["cross-site", "same-site"])
    def test_a_page_of_another_site_is_refused(self, server: PageServer, site: str) -> None:
        assert ask(server, Sec_Fetch_Site=site)[0] == 403
        assert ask(server, Sec_Fetch_Site="same-origin")[0] == 200

    @pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "TRACE", "CONNECT", "X"])
    def test_nothing_can_be_changed(self, server: PageServer, method: str) -> None:
        assert ask(server, method=method)[0] == 501

    def test_head_has_no_body(self, server: PageServer) -> None:
        status, _, body = ask(server, method="HEAD")
        assert (status, body) == (200, b"")

    @pytest.mark.parametrize(
        "place",
        [
            "tensor/",
            "tensor/999999",
            "tensor/-1",
            "tensor/0/",
            "tensor/0x1",
            "tensor/1e3",
            "tensor/%30",
            "tensor/%D9%A3",
            "tensor/9999999999999999999999",
            "tensor/../../../../etc/passwd",
            "../tensor/0",
            "index.html",
            "tensor",
        ],
    )
    def test_only_numbers_of_rows_lead_anywhere(self, server: PageServer, place: str) -> None:
        assert ask(server, f"/{server.token}/{place}")[0] == 404

    def test_a_port_that_is_taken(self, server: PageServer) -> None:
        with pytest.raises(ConfigError, match="cannot listen on"):
            PageServer(PageContent("t", (), "equal", "s"), server.server_port)


class TestTensors:
    def test_both_sides_and_their_difference(self, server: PageServer) -> None:
        row = next(at for at, one in enumerate(server.built.rows) if one.state == "different")
        status, found = tensor(server, row)
        assert status == 200
        assert sum(found["values"]["actual"]["counts"]) == sum(found["values"]["reference"]["counts"]) == 192
        assert found["heat"]["what"] == "|actual − reference|"
        actual, reference = server.built.rows[row].actual, server.built.rows[row].reference
        assert actual is not None
        assert reference is not None
        assert found["heat"]["high"] == np.abs(actual.numpy().astype(float) - reference.numpy()).max()

    def test_a_slice_of_one_side(self, server: PageServer) -> None:
        status, found = tensor(server, 0, "?side=reference&slice=1:3,%20::2")
        assert status == 200
        record = server.built.rows[0].reference
        assert record is not None
        part = record.numpy()[1:3, ::2]
        assert sum(found["values"]["reference"]["counts"]) == part.size
        assert found["note"] == f"float32{list(part.shape)}, {part.size} elements"
        assert found["heat"]["high"] == np.abs(part).max()

    @pytest.mark.parametrize(
        "query",
        ["?side=other", "?slice=x", "?slice=9999", "?slice=::0", "?slice=0,0,0,0", "?slice=...,...", "?slice=,"],
    )
    def test_what_is_no_slice_is_told(self, server: PageServer, query: str) -> None:
        status, found = tensor(server, 0, query)
        assert status == 400
        assert found["error"]

    def test_statistics_alone_have_no_tensor(self) -> None:
        with pytest.raises(ascend_dump.NotSupported):
            next(tensor_parts(next(many_pairs(4))))

    def test_of_a_large_tensor_a_first_look_comes_before_the_whole(self) -> None:
        array = np.random.default_rng(0).standard_normal((3 << 20, 1)).astype(np.float32)
        record: Any = type("Held", (), {"numpy": lambda self: array})()
        first, whole, heat = tensor_parts(PageRow(record, None))
        assert sum(first["values"]["actual"]["counts"]) == 1 << 20
        assert "histogram of 1048576 elements" in first["note"]
        assert sum(whole["values"]["actual"]["counts"]) == array.size
        assert heat["heat"]["what"] == "|value|"

    def test_many_at_once(self, server: PageServer) -> None:
        answers: list[int] = []
        threads = [threading.Thread(target=lambda at=at: answers.append(tensor(server, at)[0])) for at in range(24)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert answers == [200] * 24


_NUMBER = st.one_of(st.none(), st.integers(-9, 9))
_STEP = _NUMBER.filter(lambda one: one != 0)


@given(st.lists(st.one_of(st.integers(-9, 9), st.builds(slice, _NUMBER, _NUMBER, _STEP), st.just(...)), max_size=5))
def test_slices_come_back(parts: list[Any]) -> None:
    """Of what numpy takes: at most one ellipsis."""

    def text(part: Any) -> str:
        if part is ...:
            return "..."
        if isinstance(part, int):
            return str(part)
        return ":".join("" if one is None else str(one) for one in (part.start, part.stop, part.step))

    if parts.count(...) > 1:
        return
    assert parse_slice(", ".join(map(text, parts))) == tuple(parts)


@given(st.text(alphabet="0123456789:-., x[]()_", max_size=30))
def test_any_text_is_a_slice_or_an_error_of_ours(text: str) -> None:
    try:
        found = parse_slice(text)
    except ConfigError:
        return
    assert all(isinstance(part, (int, slice)) or part is ... for part in found)


def test_the_page_of_one_dump_is_served_too(tmp_path: Path) -> None:
    dump = ascend_dump.open(write_training(tmp_path / "dump", steps=1, ranks=1))
    with PageServer(PageContent("t", [PageRow(one, None) for one in dump], "nothing found", "s")) as made:
        thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        status, found = tensor(made, 2)
        made.shutdown()
        thread.join()
    assert status == 200
    assert "reference" not in found["values"]
