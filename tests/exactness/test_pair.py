"""Encoder and decoder at two parties are the two in one process, to the bit on the CPU in float32."""

from pathlib import Path

import msgspec
import pytest
import torch

from splitlearn.engine.pair.plain import PlainPair
from splitlearn.roles import Kind
from splitlearn.translation.text import Special
from splitlearn.wire.messages import Pairing
from tests.pairs import Meeting, corpora, decoder, encoder, terms


def unsplit(wanted: Pairing) -> tuple[list[float], PlainPair, list[tuple[str, str]]]:
    source, target = corpora()
    pair = PlainPair(encoder(wanted), decoder(), source, target, Special(2, 3, 0, 4))
    losses = pair.train(
        batch=5,
        optimiser=wanted.optimiser,
        schedule=wanted.schedule,
        seed=wanted.seed,
        observe=lambda _: None,
    )
    return losses, pair, pair.translate(observe=lambda _: None, candidates=2)


def same(one: torch.nn.Module, other: torch.nn.Module) -> bool:
    mine, theirs = one.state_dict(), other.state_dict()
    return all(torch.equal(mine[name], theirs[name]) for name in mine)


@pytest.mark.parametrize("trains", [True, False])
def test_losses_weights_and_translations_are_those_of_one_process(
    tmp_path: Path, trains: bool
) -> None:
    wanted = terms(trains=trains)
    losses, plain, translations = unsplit(wanted)
    meeting = Meeting(tmp_path)
    meeting.serve()
    engine = meeting.decode(wanted)
    engine.train()
    found = engine.translate()
    engine.finish()
    meeting.close()
    assert not meeting.failures
    assert engine.losses == losses
    assert len(set(losses)) == 10
    assert same(meeting.halves[-1], plain.encoder)
    assert same(engine.run.decoder, plain.decoder)
    assert found == translations
    # Rows of adapters that stand still came once: 22 samples in common and 6 held out, 10 steps of 5.
    wants, gradients = engine.sent[Kind.WANT], engine.sent[Kind.GRADIENT]
    assert (gradients > 0) is trains
    assert wants > 0


def test_no_key_decides_a_number_so_a_seed_is_the_same_run_in_any_folder(tmp_path: Path) -> None:
    found = []
    for key in ("7", "8"):
        meeting = Meeting(tmp_path / key)
        meeting.serve()
        engine = meeting.decode(msgspec.structs.replace(terms(), naming=key * 64))
        engine.train()
        found.append((engine.losses, engine.translate()))
        engine.finish()
        meeting.close()
        assert not meeting.failures
    assert found[0] == found[1]
