import torch

from splitlearn.engine.pair.plain import PlainPair
from splitlearn.translation.text import Special
from splitlearn.wire.messages import ScheduleSpec
from tests.pairs import corpora, decoder, encoder, terms


def test_it_learns_turned_sentences() -> None:
    wanted = terms()
    source, target = corpora(train=40)
    pair = PlainPair(encoder(wanted), decoder(), source, target, Special(2, 3, 0, 4))
    seen: list[object] = []
    losses = pair.train(
        batch=20,
        optimiser=wanted.optimiser,
        schedule=ScheduleSpec("inverse_sqrt", 4, 60),
        seed=0,
        observe=seen.append,
    )
    assert len(losses) == 60
    # From the level of chance, ln 40 = 3.7 and what smoothing and the length add, to below it.
    assert sum(losses[:5]) / 5 > 3.9
    assert sum(losses[-5:]) / 5 < 3.72
    assert all(torch.isfinite(torch.tensor(losses)))
    found = pair.translate(observe=seen.append, candidates=1)
    assert len(found) == len(pair.held_out) == 6
    assert all(reference.startswith("w") for reference, _ in found)
