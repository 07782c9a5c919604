import msgspec
import pytest

from splitlearn.errors import WireError
from splitlearn.roles import Kind
from splitlearn.wire import frames
from splitlearn.wire.bridges import Bridge
from splitlearn.wire.messages import Detail, Hops, Neighbour, spelt
from tests.wire.test_messages import EXAMPLES, OFFER, fields_of, raw_frame

BRIDGE = EXAMPLES[Kind.BRIDGE]
assert isinstance(BRIDGE, Bridge)


def test_gradients_come_back_where_layers_train() -> None:
    trains = [
        msgspec.structs.replace(BRIDGE, mode=mode).trains for mode in ("features", "lora", "full")
    ]
    assert trains == [False, True, True]


def test_no_salt_is_in_a_repr() -> None:
    neighbour = Neighbour("farm", "b" * 32, "e" * 64)
    for said in (repr(BRIDGE), repr(neighbour), repr(Hops(neighbour, None))):
        assert "e" * 64 not in said
        assert "b" * 32 in said


@pytest.mark.parametrize("purpose", ["generate", "measure"])
def test_a_hop_is_of_a_run_to_train_or_evaluate_only(purpose: str) -> None:
    fields = fields_of(BRIDGE)
    fields[4] = purpose
    with pytest.raises(WireError):
        frames.decode(raw_frame(Kind.BRIDGE, fields))


def offered(*hops: Neighbour | None) -> bytes:
    offer = msgspec.structs.replace(OFFER, detail=Detail(hops=Hops(*hops)))
    return frames.encode(Kind.OFFER, seq=1, meta=offer)


def test_an_offer_names_neighbours_and_reads_back() -> None:
    first, last = Neighbour("a", "b" * 32, "e" * 64), Neighbour("z-9", "c" * 32, "f" * 64)
    for hops in ((first, None), (None, last), (first, last)):
        frame = frames.decode(offered(*hops))
        assert frame.meta.detail.hops == Hops(*hops)  # type: ignore[attr-defined]


def test_an_offer_without_neighbours_is_spelt_as_it_was_before_there_were_any() -> None:
    fields = spelt(msgspec.structs.replace(OFFER, detail=Detail(repeats=True)))
    assert isinstance(fields, tuple)
    assert fields[-1] == (None, None, True, ())


@pytest.mark.parametrize("party", ["farm.example:7443", "127.0.0.1", "Farm", "", "a" * 43])
def test_a_neighbour_is_a_name_and_never_an_address(party: str) -> None:
    hops = Hops(Neighbour("farm", "b" * 32, "e" * 64), None)
    fields = fields_of(msgspec.structs.replace(OFFER, detail=Detail(hops=hops)))
    assert fields[-1][6][0][0] == "farm"
    fields[-1][6][0][0] = party
    with pytest.raises(WireError, match="is not a legal Offer"):
        frames.decode(raw_frame(Kind.OFFER, fields))
