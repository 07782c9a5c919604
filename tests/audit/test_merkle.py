"""The tree against Certificate Transparency's reference roots and RFC 9162's proof algorithms."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from splitlearn.audit.merkle import (
    EMPTY_ROOT,
    Tree,
    leaf_hash,
    root_of,
    verify_consistency,
    verify_inclusion,
)

# The eight entries and the roots over the first 1 to 8 of them in certificate-transparency's tests.
ENTRIES = [
    bytes.fromhex(text)
    for text in (
        "",
        "00",
        "10",
        "2021",
        "3031",
        "40414243",
        "5051525354555657",
        "606162636465666768696a6b6c6d6e6f",
    )
]
ROOTS = (
    "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d",
    "fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125",
    "aeb6bcfe274b70a14fb067a5e5578264db0fa9b51af5e0ba159158f329e06e77",
    "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
    "4e3bbb1f7b478dcfe71fb631631519a3bca12c9aefca1612bfce4c13a86264d4",
    "76e67dadbcdf1e10e1b74ddc608abd2f98dfb16fbce75277b5232a127f2087ef",
    "ddb89be403809e325750d3d263cd78929c2942b7942a34b77e122c9594a74c8c",
    "5dc9da79a70659a9ad559cb701ded9a2ab9d823aad2f4960cfe370eff4604328",
)
SIZES = range(1, 70)
LEAVES = [leaf_hash(bytes([index])) for index in range(max(SIZES))]
ROOT = {size: root_of(LEAVES[:size]) for size in SIZES}


def tree_of(size: int) -> Tree:
    """The tree over the first `size` of the same leaves."""
    tree = Tree()
    for index in range(size):
        tree.append(bytes([index]))
    return tree


FORGED = b"\x55" * 32


@pytest.mark.parametrize("size", range(1, 9))
def test_roots_are_those_of_certificate_transparency(size: int) -> None:
    tree = Tree()
    for entry in ENTRIES[:size]:
        tree.append(entry)
    assert tree.root().hex() == ROOTS[size - 1]
    assert root_of([leaf_hash(entry) for entry in ENTRIES[:size]]).hex() == ROOTS[size - 1]


def test_the_empty_tree_has_the_root_of_the_rfc() -> None:
    assert Tree().root() == root_of([]) == EMPTY_ROOT
    assert EMPTY_ROOT.hex().startswith("e3b0c44298fc1c14")


@pytest.mark.parametrize("size", SIZES)
def test_a_growing_tree_has_the_root_of_the_definition(size: int) -> None:
    tree = tree_of(size)
    assert (tree.size, tree.root()) == (size, ROOT[size])
    assert [tree.root_at(old) for old in range(size + 1)] == [
        EMPTY_ROOT,
        *(ROOT[old] for old in range(1, size + 1)),
    ]


@pytest.mark.parametrize("size", SIZES)
def test_every_leaf_has_a_proof_and_no_forged_one_passes(size: int) -> None:
    tree = tree_of(size)
    for index, leaf in enumerate(LEAVES[:size]):
        proof = tree.inclusion(index)

        def holds(
            leaf: bytes = leaf,
            index: int = index,
            size: int = size,
            proof: tuple[bytes, ...] = proof,
            root: bytes = ROOT[size],
        ) -> bool:
            return verify_inclusion(leaf, index=index, size=size, proof=proof, root=root)

        assert holds()
        assert not holds(leaf=FORGED)
        assert not holds(root=FORGED)
        assert not holds(index=size)
        assert not holds(index=-1)
        assert not holds(proof=(*proof, FORGED))
        for place in range(len(proof)):
            assert not holds(proof=(*proof[:place], FORGED, *proof[place + 1 :]))
            assert not holds(proof=(*proof[:place], *proof[place + 1 :]))
        if size > 1:
            assert not holds(index=(index + 1) % size)


@pytest.mark.parametrize("size", SIZES)
def test_every_beginning_has_a_proof_and_no_forged_one_passes(size: int) -> None:
    tree = tree_of(size)
    for old in range(1, size + 1):
        proof = tree.consistency(old)

        def holds(
            old: int = old,
            old_root: bytes = ROOT[old],
            size: int = size,
            new_root: bytes = ROOT[size],
            proof: tuple[bytes, ...] = proof,
        ) -> bool:
            return verify_consistency(
                old_size=old, old_root=old_root, new_size=size, new_root=new_root, proof=proof
            )

        assert holds()
        assert not holds(old_root=FORGED)
        assert not holds(new_root=FORGED)
        assert not holds(old=0)
        assert not holds(old=size + 1)
        assert not holds(proof=(*proof, FORGED))
        assert holds(proof=()) is (old == size)
        for place in range(len(proof)):
            assert not holds(proof=(*proof[:place], FORGED, *proof[place + 1 :]))
            assert not holds(proof=(*proof[:place], *proof[place + 1 :]))


@given(entries=st.lists(st.binary(max_size=40), min_size=1, max_size=40), data=st.data())
def test_a_tree_of_any_entries_proves_each_of_them(
    entries: list[bytes], data: st.DataObject
) -> None:
    index = data.draw(st.integers(0, len(entries) - 1))
    leaves = [leaf_hash(entry) for entry in entries]
    tree = Tree()
    for entry in entries:
        tree.append(entry)
    proof = tree.inclusion(index)
    assert verify_inclusion(
        leaves[index], index=index, size=len(leaves), proof=proof, root=root_of(leaves)
    )


def test_a_leaf_cannot_pass_for_a_node() -> None:
    left, right = leaf_hash(b"a"), leaf_hash(b"b")
    assert leaf_hash(b"\x01" + left + right) != root_of([left, right])
    assert leaf_hash(left + right) != root_of([left, right])
