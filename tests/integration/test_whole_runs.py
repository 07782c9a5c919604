"""Whole runs of two processes that are killed, cut off, interrupted and kept waiting.

Whatever happens to a run, it ends with the numbers of one that nothing happened to: losses, scores,
weights and optimiser state of both parties, to the bit. The model has dropout, and it trains on both
sides of both cuts.
"""

import signal
import threading

import pytest

from tests.integration.conftest import Arrange
from tests.integration.organisations import DEADLINE_S, Organisations, records, under_way

# Longer than any pause between two tries to dial, and than a link may be silent.
CUT_S = 20.0

# A log that Ctrl-C hits in the middle of a record stops there, as after a crash.
ONE_AT_MOST = frozenset({0, 1})


def test_an_undisturbed_run_ends_with_clean_logs_and_writes_to_run_folders_only(
    undisturbed: Organisations,
) -> None:
    undisturbed.assert_ended_like(undisturbed, gaps={})


def test_a_compute_party_killed_mid_step_costs_time_and_nothing_else(
    arrange: Arrange, undisturbed: Organisations
) -> None:
    both = arrange()
    clinic, gpuhost = both.both()
    both.freeze_in_step(gpuhost, log=both.gpuhost_log, step=6)
    gpuhost.kill()
    assert gpuhost.wait() == -signal.SIGKILL
    again = both.gpuhost()
    both.finish(clinic, again)
    both.assert_ended_like(undisturbed, gaps={both.gpuhost_log: {1}})


def test_a_trusted_party_killed_mid_step_costs_time_and_nothing_else(
    arrange: Arrange, undisturbed: Organisations
) -> None:
    both = arrange()
    clinic, gpuhost = both.both()
    both.freeze_in_step(clinic, log=both.clinic_log, step=6)
    clinic.kill()
    assert clinic.wait() == -signal.SIGKILL
    again = both.clinic()
    both.finish(again, gpuhost)
    both.assert_ended_like(undisturbed, gaps={both.clinic_log: {1}})


@pytest.mark.parametrize("listens", ["compute", "trusted"])
def test_both_parties_killed_one_after_the_other_cost_time_and_nothing_else(
    listens: str, arrange: Arrange, undisturbed: Organisations
) -> None:
    both = arrange(listens=listens)
    clinic, gpuhost = both.both()
    both.freeze_in_step(gpuhost, log=both.gpuhost_log, step=5)
    gpuhost.kill()
    gpuhost = both.gpuhost()
    both.freeze_in_step(clinic, log=both.clinic_log, step=10)
    clinic.kill()
    clinic = both.clinic()
    both.finish(clinic, gpuhost)
    both.assert_ended_like(undisturbed, gaps={both.gpuhost_log: {1}, both.clinic_log: {1}})


def test_the_compute_party_may_dial_and_the_trusted_party_listen(
    arrange: Arrange, undisturbed: Organisations
) -> None:
    both = arrange(listens="trusted")
    clinic, gpuhost = both.both()
    both.finish(clinic, gpuhost)
    both.assert_ended_like(undisturbed, gaps={})


def test_a_link_cut_for_twenty_seconds_mid_step_is_mended_without_a_restart(
    arrange: Arrange, undisturbed: Organisations
) -> None:
    both = arrange()
    clinic, gpuhost = both.both()
    both.freeze_in_step(clinic, log=both.clinic_log, step=6)
    both.link.cut()
    clinic.kill(signal.SIGCONT)
    threading.Event().wait(CUT_S)
    assert under_way(both.clinic_log) is not None
    both.link.heal()
    both.finish(clinic, gpuhost)
    for log in (both.clinic_log, both.gpuhost_log):
        assert sum(record["type"] == "run.open" for record in records(log)) == 1
    both.assert_ended_like(undisturbed, gaps={})


def test_ctrl_c_at_the_trusted_party_leaves_a_run_that_goes_on(
    arrange: Arrange, undisturbed: Organisations
) -> None:
    both = arrange()
    clinic, gpuhost = both.both()
    both.freeze_in_step(clinic, log=both.clinic_log, step=6)
    clinic.kill(signal.SIGINT)
    clinic.kill(signal.SIGCONT)
    assert clinic.wait() == 130
    assert [line for line in clinic.said.splitlines() if "interrupt" in line] == [
        "interrupted; the same command goes on from the newest checkpoint"
    ]
    gpuhost.wait_for(lambda: "the run was interrupted here" in gpuhost.said, what="the reason")
    clinic = both.clinic()
    both.finish(clinic, gpuhost)
    both.assert_ended_like(undisturbed, gaps={both.clinic_log: ONE_AT_MOST})


def test_ctrl_c_at_the_compute_party_leaves_a_run_that_goes_on(
    arrange: Arrange, undisturbed: Organisations
) -> None:
    both = arrange()
    clinic, gpuhost = both.both()
    both.freeze_in_step(gpuhost, log=both.gpuhost_log, step=6)
    gpuhost.kill(signal.SIGINT)
    gpuhost.kill(signal.SIGCONT)
    assert gpuhost.wait() == 130
    assert [line for line in gpuhost.said.splitlines() if "interrupt" in line] == [
        "interrupted; start it again to go on"
    ]
    assert clinic.wait() == 4
    assert "the run was interrupted here" in clinic.said.splitlines()[-1]
    clinic, gpuhost = both.both()
    both.finish(clinic, gpuhost)
    both.assert_ended_like(undisturbed, gaps={both.gpuhost_log: ONE_AT_MOST})


def test_a_peer_that_falls_silent_ends_in_a_line_that_names_it_and_what_was_awaited(
    arrange: Arrange, undisturbed: Organisations
) -> None:
    both = arrange(deadline_s=3.0)
    clinic, gpuhost = both.both()
    both.freeze_in_step(clinic, log=both.clinic_log, step=6)
    both.link.stall()
    clinic.kill(signal.SIGCONT)
    assert clinic.wait(timeout_s=DEADLINE_S) == 5
    step = under_way(both.clinic_log)
    last = clinic.said.splitlines()[-1]
    assert "compute.gpuhost.fed.example sent nothing for 3 s" in last
    assert f"gradient of step {step} from" in last or f"awaited output of step {step} from" in last
    gpuhost.wait_for(lambda: "run not finished" in gpuhost.said, what="its own deadline")
    both.link.heal()
    clinic = both.clinic()
    both.finish(clinic, gpuhost)
    both.assert_ended_like(undisturbed, gaps={})
