"""Names with parameters: text to value to canonical text."""

import math
import re

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from attnbench.bench.core.errors import SelectionError
from attnbench.bench.core.spec import Spec, bytes_of, parse_selection, parse_value, value_text


def texts(selection):
    return [str(spec) for spec in parse_selection(selection)]


@pytest.mark.parametrize(
    ("selection", "expected"),
    [
        ("rela", ["rela"]),
        (" rela , softmax ", ["rela", "softmax"]),
        ("rela,rela", ["rela"]),
        ("local[ window = 64 ]", ["local[window=64]"]),
        ("local[window=64K,block=2M]", ["local[block=2097152,window=65536]"]),
        ("entmax[alpha=1.25,1.5,learned]", ["entmax[alpha=1.25]", "entmax[alpha=1.5]", "entmax[alpha=learned]"]),
        ("x[n=8..64,3]", ["x[n=8]", "x[n=16]", "x[n=32]", "x[n=64]", "x[n=3]"]),
        ("x[b=1,2,a=3,4]", ["x[a=3,b=1]", "x[a=4,b=1]", "x[a=3,b=2]", "x[a=4,b=2]"]),
        ("x[b=2,a=1],x[a=1,b=2]", ["x[a=1,b=2]"]),
        ("x[flag=TRUE,other=None]", ["x[flag=true,other=none]"]),
        ("mine.py:Mine[dim=64], ../a/b.py:make", ["mine.py:Mine[dim=64]", "../a/b.py:make"]),
        ("gate+local[window=8,16]", ["gate+local[window=8]", "gate+local[window=16]"]),
        ("gate[by=head] + sink+mine.py:Mine", ["gate[by=head]+sink+mine.py:Mine"]),
        ("delta//delta:2 // gate+softmax", ["delta:3//gate+softmax"]),
        ("softmax//softmax,softmax:4", ["softmax"]),
        ("a//b//a//b", ["a//b"]),
        ("mine.py:Mine:2//package:Mine", ["mine.py:Mine:2//package:Mine"]),
        ("x[n=1,2]//y", ["x[n=1]//y", "x[n=2]//y"]),
        ("x[r=1e+3]", ["x[r=1000.0]"]),
    ],
)
def test_a_selection_names_these_specs(selection, expected):
    assert texts(selection) == expected


@pytest.mark.parametrize(
    "text", ["rela{}", "rela[a=x{}]", "rela[a{}=x]", "mi{}ne.py:Name", "gate{}+rela", "rela,{}rela"]
)
def test_letters_that_look_like_others_or_show_nothing_name_nothing(text):
    for letter in ("\ufe0f", "\u0430", "\u202e", "\n", "\t", "\x1b", "\u3164", "é", "\x7f", "\ud800"):
        with pytest.raises(SelectionError, match="printable ASCII") as refused:
            parse_selection(text.format(letter))
        assert str(refused.value).isascii() and str(refused.value).isprintable()


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("64", 64),
        ("-3", -3),
        ("1.5k", 1536),
        ("1.0", 1.0),
        (".5", 0.5),
        ("3e-3", 0.003),
        ("1.2345k", 1264.128),
        ("true", True),
        ("none", None),
        ("learned", "learned"),
        ("1e400", "1e400"),
    ],
)
def test_values_have_these_types(text, value):
    found = parse_value(text)
    assert found == value and type(found) is type(value)


@pytest.mark.parametrize(
    ("selection", "message"),
    [
        (" , ", "expected a name"),
        ("[x=1]", "letters, digits"),
        ("rela linear", "did you mean 'rela,linear'?"),
        ("local(flange=64)", "did you mean 'local[flange=64]'?"),
        ("mine.py::Mine", "did you mean 'mine.py:Mine'?"),
        ("[rela]", "did you mean 'rela'?"),
        ("gate+", "a name on each side of `+`"),
        ("delta//", "a name on each side of `//`"),
        ("delta/softmax", "letters, digits"),
        ("delta:0//softmax", "1 to 1,000 layers"),
        ("delta:999//softmax:999", "at most 1,000 layers"),
        ("na me.py:M", "a FILE.py has no blank in its path: rename it, or link to it; names have commas between them"),
        ("rela mine.py:M", "names have commas between them"),
        ("local[window=64", "is not closed"),
        ("local]window=64[", "closes nothing"),
        ("local[[window=64]]", "a parameter name"),
        ("local[window=64]x", "not closed at the end"),
        ("local[64]", "`parameter=value`"),
        ("local[window=1,]", "`parameter=value`"),
        ("local[=1]", "a parameter name"),
        ("local[window=1,window=2]", "given twice"),
        ("local[window=9..3]", "a range such as"),
        ("local[window=0..3]", "a range such as"),
        ("local[window=1.5..3]", "a range such as"),
    ],
)
def test_a_wrong_selection_is_refused_with_what_was_expected(selection, message):
    with pytest.raises(SelectionError, match=re.escape(message)):
        parse_selection(selection)


def test_parse_takes_one_name_only():
    with pytest.raises(SelectionError, match="expected one name, got 2"):
        Spec.parse("local[window=1,2]")


def test_a_pattern_gives_each_layer_its_own_and_begins_again():
    spec = Spec.parse("gate+delta:2//softmax")
    assert [str(spec.at(layer)) for layer in range(4)] == ["gate+delta", "gate+delta", "softmax", "gate+delta"]
    assert spec.variants == [Spec("delta"), Spec("softmax")] and spec.all_wrappers == [Spec("gate")]
    assert Spec("rela").at(5) == Spec("rela") and Spec("rela").variants == [Spec("rela")]


names = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,8}", fullmatch=True)
words = st.from_regex(r"[A-Za-z_/=+.:-][A-Za-z0-9_/=+.:-]{0,8}", fullmatch=True)
strings = words.filter(lambda text: parse_value(text) == text and ".." not in text)
floats = st.floats(allow_nan=False, allow_infinity=False)
plain = st.builds(
    lambda name, values: Spec.of(name, **values),
    names,
    st.dictionaries(names, st.one_of(st.none(), st.booleans(), st.integers(-(10**12), 10**12), floats, strings)),
)


wrapped = st.builds(Spec.wrapped, st.lists(plain, max_size=2), plain)
specs = st.one_of(plain, wrapped, st.builds(Spec.pattern, st.lists(wrapped, min_size=1, max_size=4)))


def parameters_with_types(spec):
    parts = [*spec.variants, *spec.all_wrappers]
    return [(name, type(value), value) for part in parts for name, value in part.parameters]


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(specs)
def test_the_text_of_a_spec_is_read_back_as_that_spec(spec):
    back = Spec.parse(str(spec))
    assert back == spec and parameters_with_types(back) == parameters_with_types(spec)


@given(st.text(max_size=40))
def test_any_text_is_read_to_a_fixed_point_or_refused(text):
    try:
        found = parse_selection(text)
    except SelectionError:
        return
    assert parse_selection(",".join(map(str, found))) == found


@given(floats)
def test_a_float_keeps_every_bit(value):
    back = parse_value(value_text(value))
    assert isinstance(back, float) and back == value and math.copysign(1, back) == math.copysign(1, value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("s[a=1..1000000,b=1..1000000,c=1..1000000]", "at most 1,000 combinations of values, got 8,000"),
        (",".join(f"v{n}" for n in range(2_000)), "at most 1,000 names"),
        ("a" * 300, "a name of at most 120 characters, got 300"),
        (f"a[b={'9' * 4_000}]", "a number of at most 40 digits, got 4,000 of them"),
        ("a" * 200_000, "at most 100,000 characters, got 200,000"),
        (f"a[b={'1,' * 3_000}1]", "at most 1,000 combinations of values, got 3,001"),
    ],
)
def test_what_a_selection_expands_to_is_bounded_and_counted(text: str, words: str) -> None:
    with pytest.raises(SelectionError) as refused:
        parse_selection(text)
    assert words in str(refused.value)


@pytest.mark.parametrize("text", ["9" * 400 + "GB", "99999999TB", "0GB", "1e5GB", "-1GB", "inf"])
def test_a_size_that_no_machine_has_is_refused(text: str) -> None:
    with pytest.raises(SelectionError):
        bytes_of(text)
