"""YAML text to a tree: what is read, what is refused, and where."""

from __future__ import annotations

import pytest

from finery.errors import InputError
from finery.language.nodes import parse
from finery.load import load


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "1:1: the file is empty; `finery init` writes a pipeline to begin with"),
        ("# only a comment\n", "1:1: the file is empty; `finery init` writes a pipeline to begin with"),
        ("a:\n\t- b", "2:1: a tab stands where YAML wants spaces; indent with spaces"),
        ("a: [1, 2\nb: 3", "2:2: a comma or ] is missing in the list or map opened on line 1"),
        ("a: 'x", "1:6: the quote opened on line 1 is never closed"),
        ("a: @x", "1:4: text cannot begin with @; put it in quotes"),
        ('a: "\\q"', "1:6: \\q is no escape; write \\\\ or use single quotes"),
        ("a: 1\n---\nb: 2", "2:1: a second document begins here; a file holds one pipeline: "
         "delete this `---` or split the file"),
        ("%YAML 1.1\n---\na: 1", "2:1: only YAML 1.2 is read; leave the %YAML line out"),
        ("a: *b", "1:4 a: *b refers to no anchor; &b must be written above it"),
        ("a: &b [*b]", "1:8 a.0: *b refers to what it stands in"),
        ("a: \x01", "1:4: the control character U+0001 is not allowed; delete it"),
        ("[" * 100, "1:66 " + ".".join(["0"] * 65) + ": is nested more than 64 deep"),
        ("a:\n  b: 1\n c: 2", "3:2: the indentation does not fit the list or map that begins on line 1; "
         "keys of one map stand in one column"),
    ],
)  # fmt: skip
def test_text_that_cannot_be_read_is_one_plain_sentence_with_its_place(bad, text, told):
    assert bad(text) == [told]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("name: !foo x", "1:7 name: the tag !foo is refused; a pipeline is plain data, leave the tag out"),
        ("name: !!timestamp 2020-01-01",
         "1:7 name: the tag !!timestamp is refused; a pipeline is plain data, leave the tag out"),
        ("seed: !!int x", "1:7 seed: is not what its tag !!int says"),
        ("{{ name }}: 1", "1:2: a map or a list cannot be a key; text that begins with { or [ must be quoted"),
        ("seed: " + "9" * 5000, "1:7 seed: has too many digits"),
        ("<<: 3", "1:1 <<: << merges maps: write <<: *name, where &name marks a map"),
    ],
)  # fmt: skip
def test_what_yaml_allows_and_a_pipeline_does_not(bad, text, told):
    assert told in bad(text)


def test_core_tags_anchors_and_merge_keys_are_read_as_yaml_has_them():
    root, problems = parse("a: &a {x: !!str 1, y: 2}\nb: {<<: *a, y: 3}\nc: [*a, !!float 2, ! 5]\n'<<': {z: 1}\n")
    assert not problems
    assert root is not None
    assert root.plain() == {
        "a": {"x": "1", "y": 2},
        "b": {"x": "1", "y": 3},
        "c": [{"x": "1", "y": 2}, 2.0, "5"],
        "<<": {"z": 1},
    }


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0x1F", 31), ("0o17", 15), ("+5", 5), ("-0", 0), (".5", 0.5), ("5.", 5.0), ("1E3", 1000.0), ("~", None),
        ("Null", None), ("TRUE", True), ("yes", "yes"), ("0b11", "0b11"), ("007", "007"), ("-012", "-012"),
        ("01.5", "01.5"), ("1e", "1e"), ("190:20:30", "190:20:30"), ("-.INF", float("-inf")), ("1e999", float("inf")),
        ("'1'", "1"), ('"~"', "~"), ("2001-12-14t21:59:43.10-05:00", "2001-12-14t21:59:43.10-05:00"),
    ],
)  # fmt: skip
def test_scalars_follow_the_core_schema(text, value):
    root, _ = parse(f"a: {text}")
    assert root is not None
    found = root.plain()["a"]
    assert found == value
    assert type(found) is type(value) or (isinstance(found, float) and isinstance(value, float))


def test_bytes_that_are_not_utf8_and_files_that_are_not_there(tmp_path):
    file = tmp_path / "x.yaml"
    file.write_bytes("name: x\ndescription: Schönheit\n".encode("latin-1"))
    with pytest.raises(InputError, match=r"x\.yaml:2: is not UTF-8 at byte 24; save it as UTF-8"):
        load(file)
    with pytest.raises(InputError, match="no such file"):
        load(tmp_path / "absent.yaml")
    with pytest.raises(InputError, match="is a folder"):
        load(tmp_path)
    file.write_bytes(b"#" * (1 << 20) + b"\n")
    with pytest.raises(InputError, match="larger than 1 MiB"):
        load(file)


def test_a_byte_order_mark_and_windows_line_ends_are_read(line, write):
    file = write(line)
    file.write_bytes(b"\xef\xbb\xbf" + line.replace("\n", "\r\n").encode())
    assert load(file).positions["name"] == (1, 1)
    assert load(file).positions["stages.sft"] == (8, 3)
