"""What is read to label a kernel or a graph: any bytes at all are read, and give texts or nothing."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from safecache.upkeep import catalogue

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=300),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
TARGETS = VALUES | st.fixed_dictionaries({}, optional={"backend": VALUES | st.just("cuda"), "arch": VALUES})
FIELDS = st.fixed_dictionaries(
    {}, optional={"name": VALUES, "target": TARGETS, "triton_version": VALUES, "num_warps": VALUES}
)


def read(folder, content):
    paths = [folder / "__grp__k.json", folder / "k.json"]
    for path in paths:
        path.write_bytes(content)
    return catalogue.read_unverified_metadata(map(str, paths))


def check(metadata):
    texts = [metadata.name, metadata.gpu, metadata.triton, *(text for option in metadata.options for text in option)]
    assert metadata.name and all(isinstance(text, str) and len(text) <= 203 for text in texts)


@given(st.binary(max_size=400))
def test_any_bytes_are_metadata_or_none(tmp_path_factory, content):
    check(read(tmp_path_factory.getbasetemp(), content))


@given(FIELDS)
def test_any_fields_give_texts_that_are_not_long(tmp_path_factory, fields):
    check(read(tmp_path_factory.getbasetemp(), json.dumps(fields).encode()))


@given(st.lists(st.binary(max_size=60) | st.sampled_from([b"fused_", b"triton_", b"cpp_", b"_", b"\x8c4", b"f" * 52])))
def test_any_bytes_mention_only_names_and_keys(tmp_path_factory, parts):
    path = tmp_path_factory.getbasetemp() / "entry"
    path.write_bytes(b"".join(parts))
    assert all(
        name.isidentifier() and name.startswith(("triton_", "cpp_"))
        for name in catalogue.read_unverified_kernels([str(path)])
    )
    assert all(len(key) == 52 and key.isalnum() for key in catalogue.read_unverified_keys([str(path)]))
