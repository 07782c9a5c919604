"""A run as its engine has it."""

from splitlearn.engine.trusted.run import IN_FLIGHT
from splitlearn.manifest.tables import ScheduleTable
from splitlearn.split.cut import Cut
from tests.chains import chain_run
from tests.rig import trusted_run
from tests.tiny import tiny_model


def test_the_hops_of_a_run_are_its_parties_in_the_order_of_their_layers() -> None:
    alone = trusted_run(tiny_model("bert"), cut=Cut(1, 3), total=2)
    assert [(hop.offer.cut.first, hop.offer.cut.last) for hop in alone.hops] == [(1, 3)]
    several = chain_run(tiny_model("bert"), cut=Cut(1, 3), starts=(2,), total=2)
    assert [(h.offer.cut.first, h.offer.cut.last) for h in several.hops] == [(1, 2), (2, 3)]


def test_the_secret_behind_pseudonyms_is_in_no_text() -> None:
    run = trusted_run(tiny_model("bert"), cut=Cut(1, 3), total=2)
    assert "linking" not in repr(run)


def test_a_job_that_says_nothing_has_the_engines_window() -> None:
    assert ScheduleTable().in_flight == IN_FLIGHT
