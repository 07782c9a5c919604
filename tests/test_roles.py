"""Who may say what: the tables are complete, and nothing that they don't name is allowed."""

import itertools

import pytest

from splitlearn.roles import CODES, KINDS, MAY_SEND, Kind, Role, may_send
from splitlearn.wire.frames import BEARS_TENSORS


def test_codes_are_the_published_ones() -> None:
    assert {kind.value: code for kind, code in CODES.items()} == {
        "offer": 1,
        "accept": 2,
        "weights": 3,
        "resume": 4,
        "ready": 5,
        "activation": 6,
        "output": 7,
        "gradient": 8,
        "input_gradient": 9,
        "checkpoint": 10,
        "saved": 11,
        "finish": 12,
        "closed": 13,
        "settle": 14,
        "settled": 15,
        "countersigned": 16,
        "round": 17,
        "enlist": 18,
        "ask": 19,
        "ids": 20,
        "enough": 21,
        "report": 22,
        "pairing": 23,
        "samples": 24,
        "want": 25,
        "norm": 26,
        "scale": 27,
        "bridge": 28,
    }


def test_each_code_stands_for_one_kind() -> None:
    assert {code: kind for kind, code in CODES.items()} == KINDS
    assert set(CODES) == set(Kind)


def test_every_kind_has_its_senders() -> None:
    assert set(MAY_SEND) == set(Kind)
    assert all(MAY_SEND.values())


@pytest.mark.parametrize("kind", Kind)
def test_nobody_but_the_named_pair_may_send(kind: Kind) -> None:
    split = {(Role.TRUSTED, Role.COMPUTE), (Role.COMPUTE, Role.TRUSTED)}
    split |= {(Role.COMPUTE, Role.COMPUTE)}
    streams = {(Role.GENERATOR, Role.DISCRIMINATOR), (Role.DISCRIMINATOR, Role.GENERATOR)}
    pairs = {(Role.ENCODER, Role.DECODER), (Role.DECODER, Role.ENCODER)}
    allowed = {
        pair
        for pair in itertools.product(Role, repeat=2)
        if may_send(kind, sender=pair[0], receiver=pair[1])
    }
    assert allowed == MAY_SEND[kind]
    assert allowed <= {*split, *streams, *pairs}
    # What carries numbers stays within its own pair: no float leaves a generator, no id a trusted party.
    if kind in BEARS_TENSORS:
        assert allowed <= split | pairs or kind is Kind.IDS


@pytest.mark.parametrize("kind", sorted(BEARS_TENSORS | {Kind.OFFER}))
def test_a_generator_sends_ids_and_is_sent_nothing_that_carries_numbers(kind: Kind) -> None:
    sends = may_send(kind, sender=Role.GENERATOR, receiver=Role.DISCRIMINATOR)
    assert sends is (kind is Kind.IDS)
    assert not any(may_send(kind, sender=role, receiver=Role.GENERATOR) for role in Role)


@pytest.mark.parametrize("kind", [Kind.ACTIVATION, Kind.GRADIENT, Kind.OFFER])
def test_compute_never_says_what_only_the_trusted_party_knows(kind: Kind) -> None:
    assert may_send(kind, sender=Role.TRUSTED, receiver=Role.COMPUTE)
    assert not may_send(kind, sender=Role.COMPUTE, receiver=Role.TRUSTED)


def test_what_compute_parties_say_to_each_other_holds_no_job_no_weights_and_no_gradient_of_the_loss() -> (
    None
):
    said = {kind for kind in Kind if may_send(kind, sender=Role.COMPUTE, receiver=Role.COMPUTE)}
    assert not said & {Kind.OFFER, Kind.WEIGHTS, Kind.OUTPUT, Kind.GRADIENT, Kind.CHECKPOINT}
    assert said & BEARS_TENSORS == {Kind.ACTIVATION, Kind.INPUT_GRADIENT}
