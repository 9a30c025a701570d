from __future__ import annotations

import fnmatch
import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ascend_dump import ConfigError
from ascend_dump.adapter import text_matcher


@pytest.mark.parametrize(
    ("pattern", "name", "expected"),
    [
        ("*conv1*", "layer.conv1.weight", True),
        ("conv1", "layer.conv1", False),
        ("Conv*", "conv1", False),
        ("layer[12]", "layer2", True),
        ("layer[!12]", "layer2", False),
        ("a[b", "a[b", True),
        ("a\n*", "a\nb", True),
        ("re:conv[12]$", "layer.conv2", True),
        ("re:^conv", "layer.conv2", False),
    ],
)
def test_a_glob_matches_the_whole_name_and_an_expression_is_searched(pattern, name, expected):
    assert text_matcher(pattern)(name) is expected


def test_an_expression_that_does_not_compile_is_refused_with_its_text():
    with pytest.raises(ConfigError, match=r"re:\(") as caught:
        text_matcher("re:(")
    assert caught.value.code == "AD103"


@example("a[z-a]", "a")
@given(st.text("[]!-^az&~|*?", max_size=10), st.text("[]!-^az", max_size=6))
def test_any_glob_matches_or_is_a_configuration_error(glob, name):
    # A backward range such as [z-a] is an error or empty: fnmatch reads it since Python 3.10.6.
    try:
        matches = text_matcher(glob)
    except ConfigError:
        backward = re.search(r"([^\]])-([^\]])", glob)
        assert backward
    else:
        assert matches(name) is fnmatch.fnmatchcase(name, glob)
