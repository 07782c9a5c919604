import pytest

from splitlearn.errors import SessionError
from splitlearn.roles import Kind, Role
from splitlearn.session import NEXT, State, StreamSession
from splitlearn.session.legal import check_number, next_state


@pytest.mark.parametrize(("seq", "what"), [(3, "repeats"), (5, "runs ahead of")])
def test_only_the_next_number_is_taken(seq: int, what: str) -> None:
    check_number(4, kind=Kind.READY, expected=4, peer=Role.COMPUTE, view=lambda: "ours")
    with pytest.raises(SessionError, match=f"message {seq} .ready. {what} .* expected number 4"):
        check_number(seq, kind=Kind.READY, expected=4, peer=Role.COMPUTE, view=lambda: "ours")


def step(state: State, kind: Kind, sender: Role, receiver: Role) -> State:
    return next_state(
        NEXT,
        state=state,
        kind=kind,
        sender=sender,
        receiver=receiver,
        by=sender,
        view=lambda: "ours",
    )


def test_the_table_leads_on_for_whoever_may_say_it() -> None:
    assert step(State.IDLE, Kind.OFFER, Role.TRUSTED, Role.COMPUTE) is State.OFFERED
    with pytest.raises(SessionError, match="a compute party may not send offer"):
        step(State.IDLE, Kind.OFFER, Role.COMPUTE, Role.TRUSTED)
    with pytest.raises(SessionError, match="while ours; expected accept by compute"):
        step(State.OFFERED, Kind.OFFER, Role.TRUSTED, Role.COMPUTE)
    with pytest.raises(SessionError, match="expected nothing"):
        step(State.CLOSED, Kind.OFFER, Role.TRUSTED, Role.COMPUTE)


def test_what_crosses_a_settlement_falls_to_the_next_and_the_last_one_covers_all() -> None:
    session = StreamSession(me=Role.DISCRIMINATOR, peer=Role.GENERATOR, next_out=6)
    assert (session.owed(3), session.owed(5), session.owed(9)) == (3, 5, 5)
    session.reported = True
    assert session.owed(3) == 5
