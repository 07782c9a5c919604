from splitlearn.audit.entries import Party
from splitlearn.audit.opening import RunOpen
from splitlearn.audit.records import decode, encode
from splitlearn.roles import Role
from splitlearn.wire.messages import Round
from tests.door import offer

POLICY = '{"name":"p","rules":[]}'
ROUND = Round("tongues", "c" * 32, "b" * 64, "a" * 64, 3, 30_522, "d" * 64, 32, 128, 0.15, 1, 640)


def opened(terms: object, *, vocabulary: int | None = None) -> RunOpen:
    return RunOpen.of(
        terms,  # type: ignore[arg-type]
        software="splitlearn test",
        me=Party(id="spiffe://a/party/b/role/trusted", role=Role.TRUSTED),
        peer=Party(id="spiffe://a/party/c/role/compute", role=Role.COMPUTE),
        binding="e" * 64,
        log_key="key",
        policy_text=POLICY,
        vocabulary=vocabulary,
    )


def test_a_cut_model_is_told_by_its_cut_and_a_stream_by_its_round() -> None:
    cut, stream = opened(offer(), vocabulary=7), opened(ROUND)
    assert (cut.mode, cut.cut, cut.vocabulary) == ("full", (1, 2), 7)
    assert (stream.mode, stream.round, stream.vocabulary) == ("ids", 3, 30_522)
    assert stream.codecs == {"ids": "ids-15"}
    line, other = encode(cut), encode(stream)
    assert b"vocabulary_digest" not in line
    assert b"bottlenecks" not in other
    assert (decode(line[:-1]), decode(other[:-1])) == (cut, stream)


def test_no_salt_stands_in_a_record() -> None:
    for terms in (offer(), ROUND):
        assert terms.salt not in encode(opened(terms)).decode()
