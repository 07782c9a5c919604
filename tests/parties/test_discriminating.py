"""A hub and two generators over real channels, in one process: Flower's grid is threads here."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from transformers import AutoModel, AutoTokenizer

from parties import generator
from parties.discriminating import conduct
from splitlearn import audit
from splitlearn.audit import Payload, read_records
from splitlearn.coordination.local_grid import LocalGrid
from splitlearn.coordination.summon import GridSummon
from splitlearn.errors import ManifestError
from splitlearn.pretrain.permutation import new_key, write_key
from tests.tongues import Tongues, tongues

LANGUAGES = {"ana": "aa", "bo": "bb"}


def conducted(made: Tongues, *, processes: int = 0) -> dict[str, Any]:
    with LocalGrid(generator.app) as grid:
        for party, settings in made.generators.items():
            grid.join(party, settings=settings)
        conduct(made.job, GridSummon(grid), processes=processes)
    found: dict[str, Any] = json.loads((made.run / "metrics.json").read_text())
    return found


def events(made: Tongues) -> list[dict[str, Any]]:
    return [
        msgspec.json.decode(line) for line in (made.run / "events.jsonl").read_bytes().splitlines()
    ]


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> tuple[Tongues, dict[str, Any]]:
    made = tongues(tmp_path_factory.mktemp("tongues"), LANGUAGES, rounds=2)
    return made, conducted(made)


def test_two_rounds_leave_metrics_and_a_finished_run(done: tuple[Tongues, dict[str, Any]]) -> None:
    made, metrics = done
    assert metrics["steps"] == 16
    assert set(metrics["auc"]) == {"aa", "bb", "worst"}
    assert len(metrics["rounds"]) == 2
    assert {m["language"] for m in metrics["members"].values()} == {"aa", "bb"}
    assert sum(m["batches"] for m in metrics["members"].values()) == 16
    assert metrics["tokens_per_s"] > 0
    assert metrics["bytes_per_token"] > 1.0
    assert json.loads((made.run / "finished.json").read_text()) == {"step": 16, "rounds": 2}
    kinds = [event["event"] for event in events(made)]
    assert kinds[0] == "begin"
    assert kinds[-1] == "finished"
    assert {"joined", "steps", "scored", "kept", "round"} <= set(kinds)


def test_both_parties_logs_verify_and_reconcile(done: tuple[Tongues, dict[str, Any]]) -> None:
    made, _ = done
    for party in LANGUAGES:
        theirs = made.folder / party / "run" / "tongues" / "audit"
        ours = made.run / f"audit-{party}"
        for log in (theirs, ours):
            assert audit.verify(log).exit == 0
        assert audit.reconcile(ours, theirs).exit == 0
        out = {
            record.kind.value
            for _, record in read_records(theirs)
            if isinstance(record, Payload) and record.direction == "out"
        }
        assert out == {"enlist", "ids", "report", "settle", "countersigned"}


def test_all_models_are_left_as_folders_that_transformers_loads(
    done: tuple[Tongues, dict[str, Any]],
) -> None:
    made, _ = done
    for folder in (
        made.run / "model",
        *(made.folder / party / "run" / "tongues" / "model" for party in LANGUAGES),
    ):
        assert AutoModel.from_pretrained(folder).config.model_type == "electra"
        assert AutoTokenizer.from_pretrained(folder)("ba").input_ids


def test_a_finished_run_has_nothing_left_to_do(done: tuple[Tongues, dict[str, Any]]) -> None:
    made, _ = done
    before = (made.run / "model" / "model.safetensors").read_bytes()
    with LocalGrid(generator.app) as grid:
        conduct(made.job, GridSummon(grid))  # calls nobody
    assert (made.run / "model" / "model.safetensors").read_bytes() == before


def test_a_run_may_be_made_longer_and_not_into_another_job(tmp_path: Path) -> None:
    made = tongues(tmp_path, LANGUAGES, rounds=1)
    conducted(made)
    longer = made.job.read_text()
    made.job.write_text(longer.replace("count = 1", "count = 2"))
    assert conducted(made)["steps"] == 16
    made.job.write_text(longer.replace("seed = 1", "seed = 2"))
    with pytest.raises(ManifestError, match="another job"):
        conducted(made)


def test_a_generator_that_cannot_come_is_told_of_and_the_others_go_on(tmp_path: Path) -> None:
    made = tongues(tmp_path, LANGUAGES, least=1)
    settings = made.generators["bo"]
    settings.write_text(settings.read_text().replace('party = "hub"', 'party = "rub"'))
    made.job.write_text(made.job.read_text().replace("gather_s = 0", "gather_s = 1"))
    metrics = conducted(made)
    assert set(metrics["auc"]) == {"aa", "worst"}
    refused = [event for event in events(made) if event["event"] == "refused"]
    assert [event["party"] for event in refused] == ["bo"]


def test_a_head_start_is_trained_and_not_sent(tmp_path: Path) -> None:
    made = tongues(tmp_path, {"ana": "aa"}, steps=4)
    settings = made.generators["ana"]
    settings.write_text(settings.read_text().replace("[run]", "[run]\nhead_start = 7"))
    metrics = conducted(made)
    member = metrics["members"]["ana"]
    assert (member["batches"], member["following"]) == (4, 11)


def test_renamed_ids_train_the_discriminator_all_the_same(tmp_path: Path) -> None:
    plain = tongues(tmp_path / "plain", {"ana": "aa"})
    renamed = tongues(tmp_path / "renamed", {"ana": "aa"}, more='permutation = "../key"')
    write_key(new_key(), tmp_path / "key")
    one, other = conducted(plain), conducted(renamed)
    assert one["steps"] == other["steps"] == 8
    assert one["rounds"][0]["loss"] != other["rounds"][0]["loss"]


def test_several_processes_of_a_party_share_its_batches(tmp_path: Path) -> None:
    made = tongues(tmp_path, {"ana": "aa"}, steps=4)
    alone = tongues(tmp_path / "alone", {"ana": "aa"}, steps=4)
    many, one = conducted(made, processes=2), conducted(alone)
    assert many["steps"] == one["steps"] == 4
    assert many["members"]["ana"]["tokens"] == one["members"]["ana"]["tokens"]
