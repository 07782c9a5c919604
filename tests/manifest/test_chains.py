import pytest
from hypothesis import given
from hypothesis import strategies as st

from splitlearn.manifest.chains import EXAMPLES, FAMILIES, Chain, chain_of, links, remembers


def test_every_family_has_an_example_with_and_where_it_may_without_a_stage() -> None:
    chains = [chain_of(name) for name in EXAMPLES]
    assert None not in chains
    assert {chain.family for chain in chains if chain} == set(FAMILIES)
    assert {chain.stage for chain in chains if chain} == {"", "zstd"}


def test_a_number_stands_where_the_family_has_one() -> None:
    assert chain_of("svd-0.6") == Chain("svd-", 0.6, "")
    assert chain_of("transform-b24") == Chain("transform-b", 24.0, "")
    assert chain_of("topk-1+zstd") == Chain("topk-", 1.0, "zstd")
    assert chain_of("lowrank-1024+zstd") == Chain("lowrank-", 1024.0, "zstd")
    assert chain_of("int4-g64") == Chain("int4-g64", None, "")


@pytest.mark.parametrize(
    "name",
    [
        *("", "zstd", "+zstd", "int8+", "int8+zstd+zstd", "zstd+int8", "INT8", "int8 + zstd"),
        *("int3", "int4-g32", "int4-g", "hadamard-int8", "hadamard-", "int8\n", "int4-0.5"),
        *(
            "svd-",
            "svd-0",
            "svd-1.1",
            "svd-0.60",
            "svd-.6",
            "svd-6e-1",
            "svd-00.6",
            "svd-0.6.",
            "svd--1",
        ),
        *("lowrank-", "lowrank-0", "lowrank-4.5", "lowrank-04", "lowrank-1025", "lowrank-1e2"),
        *("svd-0.00001", "topk-0.0001", "svd-\u0661", "transform-e1", "transform-e0", "transform-"),
        *("transform-e0.13+zstd", "transform-b24+zstd", "transform-b0", "transform-b100000"),
    ],
)
def test_what_is_no_chain_is_none(name: str) -> None:
    assert chain_of(name) is None


@given(st.floats(0.001, 0.999).map(lambda share: f"{share:.4f}".rstrip("0")))
def test_a_number_has_one_spelling(written: str) -> None:
    if float(written) < 0.001:
        return
    chain = chain_of(f"svd-{written}")
    assert chain is not None
    assert chain.number == float(written)
    assert chain_of(f"svd-{written}0") is None


@given(st.text(max_size=20))
def test_any_other_text_is_none_or_a_chain(text: str) -> None:
    chain = chain_of(text)
    assert chain is None or chain.family in FAMILIES


def test_only_low_rank_factors_remember() -> None:
    assert {name for name in EXAMPLES if remembers(name)} == {"lowrank-32", "lowrank-32+zstd"}
    assert not remembers("lowrank")


def test_only_codecs_of_changes_need_to_be_told_which_sample_is_which() -> None:
    found = {name for name in EXAMPLES if links(name)}
    assert found == {name for name in EXAMPLES if name.startswith("delta-")}
    assert len(found) == 6
    assert not links("delta-int8")
    assert not any(remembers(name) for name in found)
