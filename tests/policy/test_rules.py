"""Policy files: the committed ones are readable, and whatever they do not name is refused."""

import itertools
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from splitlearn.errors import ManifestError, RefusedError
from splitlearn.manifest.chains import EXAMPLES, links
from splitlearn.policy import (
    STEP_KINDS,
    Direction,
    Facts,
    Guard,
    Leakage,
    Ledger,
    Policy,
    Rule,
    load,
    parse,
)
from splitlearn.roles import MAY_SEND, Kind, Role
from splitlearn.wire.limits import MAX_FRAME_BYTES
from tests.door import POLICIES

DEMO = load(POLICIES / "demo.toml")
SHIPPED = ("strict", "standard", "research", "demo", "compute", "compute-direct")
GOOD = """
name = "small"
[[rules]]
id = "run"
direction = "out"
peer = "compute"
kinds = ["offer", "finish"]
max_message_bytes = 100
max_run_bytes = 250
[[rules]]
id = "activation"
direction = "out"
peer = "compute"
kinds = ["activation"]
codecs = ["int8+zstd"]
dtypes = ["U8"]
max_rows = 40
max_columns = 8
max_examples = 4
max_length = 12
max_message_bytes = 1_000
max_run_bytes = 10_000
"""
ALLOWED = Facts(
    direction="out",
    peer=Role.COMPUTE,
    kind=Kind.ACTIVATION,
    codec="int8+zstd",
    dtypes=frozenset({"U8"}),
    rows=40,
    columns=8,
    examples=4,
    longest=12,
    wire_bytes=1_000,
)


def written(folder: Path, text: str) -> Path:
    path = folder / "policy.toml"
    path.write_text(text)
    return path


def small(folder: Path) -> Policy:
    return load(written(folder, GOOD))


def refusal(policy: Policy, facts: Facts, *, spent: dict[str, int] | None = None) -> RefusedError:
    with pytest.raises(RefusedError) as caught:
        Ledger(policy, spent=spent or {}).judge(facts)
    return caught.value


@pytest.mark.parametrize("name", SHIPPED)
def test_the_committed_policies_load_and_bear_their_file_names(name: str) -> None:
    policy = load(POLICIES / f"{name}.toml")
    assert policy.name == name
    assert all(rule.max_message_bytes <= MAX_FRAME_BYTES for rule in policy.rules)


@pytest.mark.parametrize("name", SHIPPED)
def test_every_rule_of_the_committed_policies_stands_under_a_comment_or_beside_one(
    name: str,
) -> None:
    text = (POLICIES / f"{name}.toml").read_text()
    assert text.startswith("#")
    assert text.count("#") >= text.count("[[rules]]")


def leaves(name: str, kind: Kind) -> Rule | None:
    return load(POLICIES / f"{name}.toml").rule_for(kind, direction="out", peer=Role.COMPUTE)


@pytest.mark.parametrize(
    ("name", "gradient", "trains_bottom"),
    [
        ("strict", False, False),
        ("standard", True, False),
        ("research", True, True),
        ("demo", True, True),
    ],
)
def test_a_trusted_partys_policy_says_what_may_train(
    name: str, gradient: bool, trains_bottom: bool
) -> None:
    policy = load(POLICIES / f"{name}.toml")
    into = policy.rule_for(Kind.INPUT_GRADIENT, direction="in", peer=Role.COMPUTE)
    weights = policy.rule_for(Kind.WEIGHTS, direction="in", peer=Role.COMPUTE)
    assert leaves(name, Kind.ACTIVATION) is not None
    assert (leaves(name, Kind.GRADIENT) is not None) is gradient
    assert (weights is not None) is gradient
    assert (into is not None) is trains_bottom


def test_under_standard_gradients_leave_narrow_and_coded_only() -> None:
    rule = leaves("standard", Kind.GRADIENT)
    assert rule is not None
    assert rule.max_columns == 64
    assert not [codec for codec in rule.codecs if codec.startswith("identity")]


SPLIT = {(Role.TRUSTED, Role.COMPUTE), (Role.COMPUTE, Role.TRUSTED)}


def test_research_allows_every_kind_codec_and_frame_that_there_is() -> None:
    policy = load(POLICIES / "research.toml")
    for kind, pairs in MAY_SEND.items():
        for sender, receiver in pairs & SPLIT:
            out = sender is Role.TRUSTED
            rule = policy.rule_for(
                kind, direction="out" if out else "in", peer=receiver if out else sender
            )
            assert rule is not None, (kind, sender)
            if kind in STEP_KINDS:
                gradient = kind in {Kind.GRADIENT, Kind.INPUT_GRADIENT}
                names = [name for name in EXAMPLES if not (gradient and links(name))]
                assert all(rule.allows(name) for name in names)
                assert rule.max_message_bytes == MAX_FRAME_BYTES


def test_what_the_shipped_policies_watch_beyond_their_rules() -> None:
    assert load(POLICIES / "strict.toml").leakage == Leakage(
        max_token_recovery=0.5, max_label_auc=0.7
    )
    for name in ("strict", "standard"):
        assert load(POLICIES / f"{name}.toml").guard == Guard(label_correlation=0.9)
    for name in (
        "research",
        "demo",
        "compute",
        "compute-direct",
        "generator",
        "discriminator",
        "encoder",
        "decoder",
    ):
        policy = load(POLICIES / f"{name}.toml")
        assert (policy.leakage, policy.guard) == (None, None)


def test_two_parties_under_the_committed_policies_can_hold_a_whole_conversation() -> None:
    """What one may send the other takes, for every kind of message there is."""
    policies = {
        Role.TRUSTED: DEMO,
        **{
            role: load(POLICIES / f"{role}.toml")
            for role in {role for pairs in MAY_SEND.values() for pair in pairs for role in pair}
            - {Role.TRUSTED}
        },
    }
    beside = load(POLICIES / "compute-direct.toml")
    for kind, pairs in MAY_SEND.items():
        for sender, receiver in pairs:
            mine, theirs = policies[sender], policies[receiver]
            if sender is receiver:  # neighbours of a direct chain, which no other policy lets speak
                assert mine.rule_for(kind, direction="out", peer=receiver) is None
                mine = theirs = beside
            out = mine.rule_for(kind, direction="out", peer=receiver)
            into = theirs.rule_for(kind, direction="in", peer=sender)
            assert out is not None, (kind, sender)
            assert into is not None, (kind, sender)
            assert set(out.codecs) == set(into.codecs)


@pytest.mark.parametrize(
    ("kind", "direction", "peer"),
    [
        (kind, direction, peer)
        for kind, direction, peer in itertools.product(Kind, ("in", "out"), Role)
        if DEMO.rule_for(kind, direction=direction, peer=peer) is None
    ],
)
def test_what_no_rule_names_is_refused(kind: Kind, direction: Direction, peer: Role) -> None:
    error = refusal(DEMO, Facts(direction=direction, peer=peer, kind=kind))
    assert error.rule == "no-rule"


def test_a_compute_party_with_neighbours_says_to_its_trusted_party_what_any_other_does() -> None:
    plain, beside = (load(POLICIES / f"{name}.toml") for name in ("compute", "compute-direct"))
    assert tuple(rule for rule in beside.rules if rule.peer is Role.TRUSTED) == plain.rules


def test_an_empty_policy_refuses_everything(tmp_path: Path) -> None:
    policy = load(written(tmp_path, 'name = "nothing"\nrules = []\n'))
    for kind in Kind:
        assert refusal(policy, replace(ALLOWED, kind=kind)).rule == "no-rule"


def test_a_message_exactly_at_its_limits_passes(tmp_path: Path) -> None:
    assert Ledger(small(tmp_path), spent={}).judge(ALLOWED).id == "activation"


@pytest.mark.parametrize(
    ("change", "limit"),
    [
        ({"rows": 41}, "max_rows"),
        ({"columns": 9}, "max_columns"),
        ({"examples": 5}, "max_examples"),
        ({"longest": 13}, "max_length"),
        ({"wire_bytes": 1_001}, "max_message_bytes"),
        ({"codec": "identity"}, "codecs"),
        ({"dtypes": frozenset({"U8", "I64"})}, "dtypes"),
    ],
    ids=lambda value: value if isinstance(value, str) else next(iter(value)),
)
def test_one_over_a_limit_is_refused_by_its_name(
    tmp_path: Path, change: dict[str, object], limit: str
) -> None:
    error = refusal(small(tmp_path), replace(ALLOWED, **change))  # type: ignore[arg-type]
    assert error.rule == f"activation.{limit}"
    assert "small" in str(error)


def test_all_that_is_wrong_with_a_message_is_told_where_it_is_asked_for(tmp_path: Path) -> None:
    policy = small(tmp_path)
    ledger = Ledger(policy, spent={})
    wrong = replace(ALLOWED, codec="identity", dtypes=frozenset({"F32"}), columns=9, longest=13)
    found = [fault.rule for fault in ledger.faults(wrong, rule=policy.rules[1])]
    limits = ("codecs", "dtypes", "max_columns", "max_length")
    assert found == [f"activation.{limit}" for limit in limits]
    assert refusal(policy, wrong).rule == found[0]
    assert list(ledger.faults(ALLOWED, rule=policy.rules[1])) == []


def test_examples_bear_pseudonyms_only_where_a_rule_says_so(tmp_path: Path) -> None:
    linked = replace(ALLOWED, linked=True)
    unsaid = small(tmp_path)
    assert refusal(unsaid, linked).rule == "activation.linkable"
    for said, allowed in (("true", True), ("false", False)):
        text = GOOD.replace('dtypes = ["U8"]', f'dtypes = ["U8"]\nlinkable = {said}')
        policy = load(written(tmp_path, text))
        assert policy.digest != unsaid.digest
        assert parse(policy.canonical) == policy
        if allowed:
            Ledger(policy, spent={}).judge(linked)
        else:
            assert refusal(policy, linked).rule == "activation.linkable"
    names = [n for n in SHIPPED for r in load(POLICIES / f"{n}.toml").rules if r.linkable is True]
    assert names == ["research"]


def test_texts_are_gone_on_with_only_where_a_rule_says_so(tmp_path: Path) -> None:
    generated = replace(ALLOWED, generated=True)
    unsaid = small(tmp_path)
    assert refusal(unsaid, generated).rule == "activation.generating"
    text = GOOD.replace('dtypes = ["U8"]', 'dtypes = ["U8"]\ngenerating = true')
    policy = load(written(tmp_path, text))
    assert policy.digest != unsaid.digest
    Ledger(policy, spent={}).judge(generated)
    names = [n for n in SHIPPED for r in load(POLICIES / f"{n}.toml").rules if r.generating is True]
    assert sorted(names) == ["compute", "compute-direct", "research"]


def test_a_rule_without_dtypes_lets_no_tensor_pass(tmp_path: Path) -> None:
    facts = Facts(
        direction="out", peer=Role.COMPUTE, kind=Kind.OFFER, dtypes=frozenset({"F32"}), wire_bytes=9
    )
    assert refusal(small(tmp_path), facts).rule == "run.dtypes"


def test_doors_that_take_at_once_take_no_more_than_there_is(tmp_path: Path) -> None:
    facts = Facts(direction="out", peer=Role.COMPUTE, kind=Kind.OFFER, wire_bytes=10)
    ledger = Ledger(small(tmp_path), spent={})
    refused: list[RefusedError] = []

    def door() -> None:
        try:
            while True:
                ledger.take(facts)
        except RefusedError as error:
            refused.append(error)

    with ThreadPoolExecutor(4) as doors:
        for _ in range(4):
            doors.submit(door)
    assert {error.rule for error in refused} == {"run.max_run_bytes"}
    assert len(refused) == 4
    assert ledger._spent["run"] == 250


def test_a_runs_bytes_are_counted_rule_by_rule_and_over_restarts(tmp_path: Path) -> None:
    policy = small(tmp_path)
    facts = Facts(direction="out", peer=Role.COMPUTE, kind=Kind.OFFER, wire_bytes=100)
    ledger = Ledger(policy, spent={"activation": 9_000})
    for _ in range(2):
        ledger.charge(ledger.judge(facts), wire_bytes=100)
    with pytest.raises(RefusedError, match="300 is over max_run_bytes = 250") as caught:
        ledger.judge(facts)
    assert caught.value.rule == "run.max_run_bytes"
    assert ledger.judge(ALLOWED).id == "activation"
    assert refusal(policy, ALLOWED, spent={"activation": 9_001}).rule == "activation.max_run_bytes"


def test_a_digest_does_not_depend_on_comments_or_layout_and_does_on_every_limit(
    tmp_path: Path,
) -> None:
    policy = small(tmp_path)
    assert (
        load(written(tmp_path, "# hello\n" + GOOD.replace("1_000", "1000"))).digest == policy.digest
    )
    assert load(written(tmp_path, GOOD.replace("= 250", "= 251"))).digest != policy.digest


def test_a_policy_from_before_there_were_more_tables_keeps_its_digest(tmp_path: Path) -> None:
    policy = small(tmp_path)
    assert policy.digest == "a5a08ee7be41df80775106fa464b2bddbdbeaf909f079d336f4e7a46abfbd77c"
    assert b"guard" not in policy.canonical
    assert b"leakage" not in policy.canonical


@pytest.mark.parametrize(
    "table",
    [
        "[leakage]\nmax_token_recovery = 0.5",
        "[leakage]\nmax_label_auc = 0.7",
        "[guard]\nlabel_correlation = 0.9",
        '[guard]\nlabel_correlation = 0.9\naction = "deny"',
        "[guard]\nlabel_correlation = 0.9\nwindow = 64",
    ],
)
def test_each_table_and_key_counts_in_the_digest_and_reads_back(tmp_path: Path, table: str) -> None:
    policy = load(written(tmp_path, f"{GOOD}\n{table}\n"))
    other = load(
        written(tmp_path, f"{GOOD}\n{table.replace('= 0.', '= 0.5').replace('64', '65')}\n")
    )
    assert len({policy.digest, other.digest, small(tmp_path).digest}) == 3
    assert parse(policy.canonical) == policy


@pytest.mark.parametrize("name", SHIPPED)
def test_a_policy_reads_back_from_the_log(name: str) -> None:
    policy = load(POLICIES / f"{name}.toml")
    assert parse(policy.canonical) == policy
    assert parse(policy.canonical.decode()).digest == policy.digest


BROKEN = {
    "not TOML": ("name = ", "is not TOML"),
    "no rules": ('name = "a"', "missing required field `rules`"),
    "unknown key": (GOOD.replace("max_rows", "max_row"), "'max_row'.*did you mean 'max_rows'"),
    "unknown key above": (GOOD.replace("name =", "nome ="), "unknown key 'nome'.*'name'"),
    "far key": (GOOD.replace('id = "run"', 'id = "run"\nzzz = 1'), "unknown key 'zzz'.*allowed"),
    "unknown kind": (GOOD.replace('"finish"', '"labels"'), "labels"),
    "unknown role": (GOOD.replace('"compute"', '"anyone"'), "anyone"),
    "unknown direction": (GOOD.replace('"out"', '"both"'), "both"),
    "unknown dtype": (GOOD.replace('"U8"', '"STR"'), "STR"),
    "negative limit": (GOOD.replace("= 250", "= -1"), ">= 0"),
    "limit in words": (GOOD.replace("= 250", '= "250"'), "Expected `int`"),
    "an id twice": (GOOD.replace('"activation"\ndir', '"run"\ndir'), "two rules have the id"),
    "a kind twice": (GOOD.replace('"finish"', '"offer"'), "each kind once"),
    "no kinds": (GOOD.replace('["offer", "finish"]', "[]"), "at least one"),
    "unknown key of leakage": (
        GOOD + "[leakage]\nmax_auc = 0.5",
        "'max_auc' in leakage; did you mean 'max_label_auc'",
    ),
    "unknown key of guard": (
        GOOD + "[guard]\nlabels = 0.5",
        "'labels' in guard.*allowed are label",
    ),
    "a share over one": (GOOD + "[leakage]\nmax_label_auc = 1.5", "<= 1"),
    "a limit under guessing": (GOOD + "[guard]\nlabel_correlation = 0.5", "> 0.5"),
    "unknown action": (GOOD + '[guard]\nlabel_correlation = 0.9\naction = "stop"', "stop"),
    "a window too small": (GOOD + "[guard]\nlabel_correlation = 0.9\nwindow = 8", ">= 64"),
    "two rules on one kind": (
        GOOD.replace('"finish"]', '"finish", "activation"]').replace(
            "max_run_bytes = 250",
            'max_run_bytes = 250\ncodecs = ["a"]\ndtypes = ["U8"]\nmax_rows = 1\n'
            "max_columns = 1\nmax_examples = 1\nmax_length = 1",
        ),
        "both about activation",
    ),
    "a kind that never goes there": (GOOD.replace('"finish"', '"output"'), "no output goes out"),
    "an activation without limits": (
        GOOD.replace("max_columns = 8\n", "").replace('codecs = ["int8+zstd"]\n', ""),
        "also needs codecs, max_columns",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_file_with_a_mistake_gets_one_sentence_and_no_policy(tmp_path: Path, name: str) -> None:
    text, says = BROKEN[name]
    with pytest.raises(ManifestError, match=says) as caught:
        load(written(tmp_path, text))
    assert "policy.toml" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_not_there_or_endless_is_named(tmp_path: Path) -> None:
    with pytest.raises(ManifestError, match="cannot be read"):
        load(tmp_path / "none.toml")
    with pytest.raises(ManifestError, match="larger than"):
        load(written(tmp_path, GOOD + "#" * 2**20))


@given(text=st.text(max_size=200))
def test_no_text_in_a_log_makes_anything_but_a_policy_or_our_error(text: str) -> None:
    with pytest.raises(ManifestError):
        parse(text)
