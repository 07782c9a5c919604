from splitlearn.engine.streams.rounds import Learner, Source
from tests.streaming import Digester, Numbers, terms


def test_what_stands_in_for_models_in_tests_is_what_the_engines_ask_for() -> None:
    source: Source = Numbers(1)
    learner: Learner = Digester()
    batch, _ = source.step()
    assert learner.train(batch).tokens == sum(batch.lengths)
    assert terms(steps=3).steps == 3
