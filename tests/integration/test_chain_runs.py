"""Whole runs of three processes by the real commands: a chain of two compute parties.

Whoever is killed, the run ends with the numbers of one that nothing happened to: losses, scores,
weights and optimiser state of all parties, to the bit.
"""

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from transformers import AutoTokenizer
from typer.testing import CliRunner

import splitlearn
from parties import cli
from tests.integration.chains import PARTIES, Arranged, Chain, arranged, run_undisturbed
from tests.integration.organisations import (
    STEPS,
    Interpreter,
    Template,
    freeze_in_step,
    records,
)


@pytest.fixture(scope="module")
def undisturbed(
    inputs: Path, home: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Chain]:
    """A whole run that nobody disturbs, evaluated and exported, each command an interpreter."""
    with Interpreter(home) as starter:
        folder = tmp_path_factory.mktemp("chain")
        with run_undisturbed(Chain(folder, inputs=inputs, starter=starter)) as chain:
            yield chain


@pytest.fixture
def arrange(tmp_path: Path, inputs: Path, template: Template) -> Iterator[Arranged]:
    with arranged(tmp_path, inputs=inputs, starter=template) as make:
        yield make


def audited(*arguments: object) -> dict[str, object]:
    done = CliRunner().invoke(cli.app, ["audit", *map(str, arguments), "--json"])
    assert done.exit_code == 0, done.output
    found: dict[str, object] = json.loads(done.output)
    return found


def assert_ended_like(chain: Chain, other: Chain) -> None:
    assert chain.metrics()["losses"] == other.metrics()["losses"]
    assert chain.metrics()["scores"] == other.metrics()["scores"]
    places = ["clinic/run", *(f"{party}/runs/clinic-ward" for party in PARTIES)]
    for place in places:
        for name in ("weights.safetensors", "optimiser.safetensors"):
            last = Path(place) / "checkpoints" / str(STEPS) / name
            assert (chain.folder / last).read_bytes() == (other.folder / last).read_bytes(), last
    for ours, theirs in chain.logs.values():
        audited("verify", ours)
        audited("verify", theirs)


def test_the_logs_of_each_party_verify_and_agree_with_the_clinics(undisturbed: Chain) -> None:
    assert_ended_like(undisturbed, undisturbed)
    for ours, theirs in undisturbed.logs.values():
        assert audited("reconcile", ours, theirs)["conversations"] == 3
        opened = [record for record in records(ours) if record["type"] == "run.open"]
        assert [record["purpose"] for record in opened] == ["train", "evaluate", "evaluate"]
        spans = {tuple(record["cut"]) for record in opened}  # type: ignore[arg-type]
        assert spans == {
            (1, 2) if theirs.is_relative_to(undisturbed.folder / "gpuhost") else (2, 3)
        }


def test_a_party_learns_of_no_other(undisturbed: Chain) -> None:
    for _, theirs in undisturbed.logs.values():
        told = (theirs / "log" / "000000.jsonl").read_text()
        others = set(PARTIES) - {theirs.relative_to(undisturbed.folder).parts[0]}
        assert not any(other in told for other in others)


def test_what_is_exported_scores_as_the_chain_does(undisturbed: Chain, inputs: Path) -> None:
    model = splitlearn.load_merged(undisturbed.folder / "model")
    tokenizer = AutoTokenizer.from_pretrained(undisturbed.folder / "model")
    rows = [json.loads(line) for line in (inputs / "evaluate.jsonl").read_text().splitlines()]
    right = 0
    for row in rows:
        with torch.no_grad():
            logits = model(**tokenizer(row["text"], return_tensors="pt")).logits
        right += model.config.id2label[int(logits.argmax())] == row["label"]
    scores = undisturbed.metrics()["scores"]
    assert isinstance(scores, dict)
    assert right / len(rows) == pytest.approx(scores["accuracy"])


@pytest.mark.parametrize("killed", PARTIES)
def test_a_compute_party_killed_mid_step_costs_time_and_nothing_else(
    killed: str, arrange: Arranged, undisturbed: Chain
) -> None:
    chain = arrange()
    hosts = {party: chain.host(party) for party in PARTIES}
    clinic = chain.clinic()
    freeze_in_step(hosts[killed], log=chain.logs[killed][1], step=6)
    hosts[killed].kill()
    assert hosts[killed].wait() == -signal.SIGKILL
    hosts[killed] = chain.host(killed)
    for process in (clinic, *hosts.values()):
        assert process.wait() == 0, clinic.said + "".join(host.said for host in hosts.values())
    assert_ended_like(chain, undisturbed)
    for ours, _ in chain.logs.values():
        assert sum(record["type"] == "run.open" for record in records(ours)) == 2


def test_the_trusted_party_killed_mid_step_costs_time_and_nothing_else(
    arrange: Arranged, undisturbed: Chain
) -> None:
    chain = arrange()
    hosts = [chain.host(party) for party in PARTIES]
    clinic = chain.clinic()
    freeze_in_step(clinic, log=chain.logs["gpuhost"][0], step=6)
    clinic.kill()
    assert clinic.wait() == -signal.SIGKILL
    clinic = chain.clinic()
    for process in (clinic, *hosts):
        assert process.wait() == 0, clinic.said + "".join(host.said for host in hosts)
    assert_ended_like(chain, undisturbed)


def test_a_party_that_dials_is_rolled_back_with_the_others(
    arrange: Arranged, undisturbed: Chain
) -> None:
    chain = arrange(farm_listens=False)
    gpuhost = chain.host("gpuhost")
    clinic, farm = chain.clinic(), chain.host("farm")
    freeze_in_step(gpuhost, log=chain.logs["gpuhost"][1], step=6)
    gpuhost.kill()
    assert gpuhost.wait() == -signal.SIGKILL
    gpuhost = chain.host("gpuhost")
    for process in (clinic, gpuhost, farm):
        assert process.wait() == 0, clinic.said + gpuhost.said + farm.said
    assert_ended_like(chain, undisturbed)
