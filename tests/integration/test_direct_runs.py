"""Whole runs of three processes by the real commands: two compute parties of which one sends to the other.

Whoever is killed, the run ends with the numbers of one that nothing happened to: losses, scores, weights and
optimiser state of all parties, to the bit.
"""

import signal
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.integration.chains import PARTIES, Arranged, Chain, arranged, run_undisturbed
from tests.integration.organisations import Template, freeze_in_step, records
from tests.integration.test_chain_runs import assert_ended_like, audited


@pytest.fixture(scope="module")
def undisturbed(
    inputs: Path, template: Template, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Chain]:
    """A whole run that nobody disturbs, evaluated and exported."""
    folder = tmp_path_factory.mktemp("direct")
    with run_undisturbed(Chain(folder, inputs=inputs, starter=template, direct=True)) as chain:
        yield chain


@pytest.fixture
def arrange(tmp_path: Path, inputs: Path, template: Template) -> Iterator[Arranged]:
    with arranged(tmp_path, inputs=inputs, starter=template) as make:
        yield partial(make, direct=True)


def assert_the_hop_is_clean(chain: Chain, *, conversations: int) -> None:
    for log in chain.hop:
        audited("verify", log)
    found = audited("reconcile", *chain.hop)
    assert found["conversations"] == conversations
    for ours, theirs in chain.logs.values():
        audited("reconcile", ours, theirs)


def test_the_logs_of_the_hop_verify_and_agree(undisturbed: Chain) -> None:
    assert_ended_like(undisturbed, undisturbed)
    assert_the_hop_is_clean(undisturbed, conversations=3)
    for log in undisturbed.hop:
        opened = [record for record in records(log) if record["type"] == "run.open"]
        assert [record["purpose"] for record in opened] == ["train", "evaluate", "evaluate"]
        assert {record["layer"] for record in opened} == {2}
    for _, theirs in undisturbed.logs.values():
        assert any(record["type"] == "hop.head" for record in records(theirs))


@pytest.mark.parametrize("killed", [*PARTIES, "clinic"])
def test_whoever_is_killed_mid_step_costs_time_and_nothing_else(
    killed: str, arrange: Arranged, undisturbed: Chain
) -> None:
    chain = arrange()
    parties = {party: chain.host(party) for party in PARTIES}
    parties["clinic"] = chain.clinic()
    log = chain.logs["gpuhost"][0] if killed == "clinic" else chain.hop[killed == "farm"]
    freeze_in_step(parties[killed], log=log, step=6)
    parties[killed].kill()
    assert parties[killed].wait() == -signal.SIGKILL
    parties[killed] = chain.clinic() if killed == "clinic" else chain.host(killed)
    for process in parties.values():
        assert process.wait() == 0, "\n".join(p.said for p in parties.values())
    assert_ended_like(chain, undisturbed)
    assert_the_hop_is_clean(chain, conversations=2)


def test_a_party_without_the_neighbour_that_is_offered_refuses_the_run(arrange: Arranged) -> None:
    chain = arrange()
    settings = chain.folder / "farm.toml"
    text = settings.read_text()
    settings.write_text(text.partition("[[neighbour]]")[0])
    hosts = [chain.host(party) for party in PARTIES]
    clinic = chain.clinic()
    assert clinic.wait() == 4
    assert "the offer names gpuhost as our neighbour, and our settings have no" in clinic.said
    for host in hosts:
        host.kill()
