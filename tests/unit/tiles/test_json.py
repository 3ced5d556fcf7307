"""JSON of files from anywhere: what is read is what Python's parser reads, what is no JSON of ours is refused."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiles.files import MAX_NESTING, read_json

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
)
TEXTS = st.text(alphabet=st.sampled_from('"\\[]{}0123456789-é\n'), max_size=40)
"""Texts with what would be brackets, digits and ends of texts outside of them."""
DATA = st.recursive(
    SCALARS | TEXTS, lambda inner: st.lists(inner) | st.dictionaries(TEXTS, inner, max_size=3), max_leaves=12
)


@given(DATA, st.booleans())
def test_json_is_read_as_python_reads_it(data, is_ascii):
    text = json.dumps(data, ensure_ascii=is_ascii)
    found = read_json(text.encode())
    assert found == data
    assert json.dumps(found, ensure_ascii=is_ascii) == text  # True is no 1


@pytest.mark.parametrize("text", ["0." + "1" * 30, '"' + "9" * 30 + '"', "[18446744073709551615]"])
def test_long_digits_that_are_no_long_integer_are_read(text):
    assert read_json(text.encode()) == json.loads(text)


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("1" * 21, "21 digits"),
        ("[1,-" + "1" * 20 + "]", "21 digits"),
        ("9" * 5000, "5000 digits"),
        ('{"a":1,"a":2}', "twice"),
        ("NaN", "no number"),
        ("[" * (MAX_NESTING + 1) + "]" * (MAX_NESTING + 1), "nest"),
        ('["\\"", ' + "[" * MAX_NESTING + "]" * MAX_NESTING + "]", "nest"),
        ('["', "Unterminated"),
    ],
)
def test_what_is_no_json_of_ours_is_refused(text, match):
    with pytest.raises(ValueError, match=match):
        read_json(text.encode())
