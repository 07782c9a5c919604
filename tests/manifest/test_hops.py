from pathlib import Path
from typing import Any

import pytest

from splitlearn.errors import ManifestError
from splitlearn.manifest import Job, load_job
from splitlearn.manifest.hops import MAX_PARTIES, codecs_at, returns_at
from tests.manifest.test_job import toml, write

FARM: dict[str, Any] = {"party": "farm", "dial": "localhost:7001", "first": 4}
BARN: dict[str, Any] = {"party": "barn", "listen": "0.0.0.0:7002", "first": 6}


def write_chain(folder: Path, *tables: dict[str, Any], **changes: dict[str, Any]) -> Path:
    """The good job with a chain behind its peer; layers of a model of 12."""
    path = write(folder, **{"cut": {"bottom": 2, "top": -1}, **changes})
    lines = [path.read_text(encoding="utf-8")]
    for table in tables:
        lines += ["[[chain]]", *(f"{key} = {toml(value)}" for key, value in table.items())]
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


def chained(folder: Path, *tables: dict[str, Any], **changes: dict[str, Any]) -> Job:
    return load_job(write_chain(folder, *tables, **changes))


def test_each_party_hosts_from_its_first_layer_to_the_next_partys(tmp_path: Path) -> None:
    job = chained(tmp_path, FARM, BARN)
    assert [peer.party for peer in job.peers] == ["gpus", "farm", "barn"]
    assert job.starts == (4, 6)
    assert job.spans(layers=12) == ((2, 4), (4, 6), (6, 11))
    alone = chained(tmp_path)
    assert alone.spans(layers=12) == ((2, 11),) == (alone.trunk(layers=12),)


def test_a_model_too_small_for_the_last_party_is_told_with_its_numbers(tmp_path: Path) -> None:
    job = chained(tmp_path, FARM, BARN)
    with pytest.raises(ManifestError, match=r"chain\.first is 6 for barn.*before layer 6"):
        job.spans(layers=7)


@pytest.mark.parametrize(
    ("tables", "sentence"),
    [
        ([FARM | {"first": 2}], "chain.first is 2 for farm; it takes a layer above 2"),
        ([FARM, BARN | {"first": 4}], "chain.first is 4 for barn; it takes a layer above 4"),
        ([FARM | {"first": 1}], "chain.first is 1; it takes the number of the first layer"),
        ([FARM | {"party": "gpus"}], "chain.party is gpus, which hosts layers already"),
        ([FARM, BARN | {"party": "farm"}], "chain.party is farm, which hosts layers already"),
        ([FARM | {"dial": "localhost:7000"}], "chain.dial is localhost:7000, as another party's"),
        ([FARM | {"listen": "0.0.0.0:1"}], "chain.dial or chain.listen has to be given"),
        ([FARM | {"dial": "localhost:0"}], "chain.dial has port 0"),
        ([FARM | {"frist": 3}], "chain.frist is not a key; did you mean chain.first?"),
        ([{"party": "farm", "dial": "localhost:7001"}], "chain.first is missing; it takes the"),
        (
            [
                FARM | {"party": f"p{i}", "first": i, "dial": f"h:{i}"}
                for i in range(3, 3 + MAX_PARTIES)
            ],
            "it takes a table [[chain]] for each further compute party",
        ),
    ],
)
def test_a_chain_that_makes_no_sense_is_refused_in_one_sentence(
    tmp_path: Path, tables: list[dict[str, Any]], sentence: str
) -> None:
    with pytest.raises(ManifestError) as caught:
        chained(tmp_path, *tables)
    assert sentence in str(caught.value)


def test_one_table_where_several_may_be_is_told_how_to_be_written(tmp_path: Path) -> None:
    path = write_chain(tmp_path, FARM)
    path.write_text(path.read_text().replace("[[chain]]", "[chain]"))
    with pytest.raises(ManifestError, match=r"it takes a table \[\[chain\]\] for each further"):
        load_job(path)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (
            {"cut": {"bottom": 2, "top": 4}},
            "chain.first is 4 for farm; it takes a layer below cut.top",
        ),
        ({"codec": {"inner": "pca-0.3"}}, "codec.inner is pca-0.3, and what goes between"),
        ({"codec": {"activation": "delta-int4"}}, "codec.activation is delta-int4, and rows are"),
        ({"schedule": {"staleness": 1}}, "schedule.staleness is 1, and steps do not interleave"),
    ],
)
def test_what_does_not_go_with_a_chain_is_refused(
    tmp_path: Path, changes: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ManifestError) as caught:
        chained(tmp_path, FARM, **changes)
    assert sentence in str(caught.value)


def test_several_parties_may_be_waited_for_at_ports_that_are_drawn(tmp_path: Path) -> None:
    listening = {"listen": "0.0.0.0:0"}
    farm = {key: value for key, value in FARM.items() if key != "dial"} | listening
    assert len(chained(tmp_path, farm, BARN | listening).peers) == 3


def test_settings_of_hops_between_parties_need_a_chain(tmp_path: Path) -> None:
    with pytest.raises(ManifestError, match=r"codec\.inner has a use with \[\[chain\]\] only"):
        chained(tmp_path, codec={"inner": "fp16"})


def test_where_the_cuts_are_is_in_the_digest_and_addresses_and_names_are_not(
    tmp_path: Path,
) -> None:
    here = chained(tmp_path, FARM).digest()
    assert here != chained(tmp_path).digest()
    assert here != chained(tmp_path, FARM | {"first": 5}).digest()
    assert here != chained(tmp_path, FARM, codec={"inner": "fp16"}).digest()
    assert here == chained(tmp_path, FARM | {"party": "barn", "dial": "barn:1"}).digest()


def test_each_tensor_has_the_codec_of_the_hop_that_it_crosses(tmp_path: Path) -> None:
    codec = {
        "activation": "int4",
        "output": "bf16",
        "gradient": "int8",
        "input_gradient": "identity",
        "inner": "int8-g64",
        "inner_gradient": "fp16",
    }
    job = chained(tmp_path, FARM, BARN, codec=codec)
    found = [list(codecs_at(job, party=party).values()) for party in range(3)]
    assert found == [
        ["int4", "int8-g64", "fp16", "identity"],
        ["int8-g64", "int8-g64", "fp16", "fp16"],
        ["int8-g64", "bf16", "int8", "fp16"],
    ]
    alone = chained(tmp_path, codec=dict(list(codec.items())[:4]))
    assert list(codecs_at(alone, party=0).values()) == list(codec.values())[:4]


@pytest.mark.parametrize(
    ("cut", "returns"),
    [
        ({"bottom": 2, "mode": "features"}, [False, False]),
        ({"bottom": 2, "mode": "full"}, [False, True]),
        ({"bottom": 2, "mode": "full", "train_bottom": True}, [True, True]),
    ],
)
def test_input_gradients_go_back_as_far_as_something_trains(
    tmp_path: Path, cut: dict[str, Any], returns: list[bool]
) -> None:
    job = chained(tmp_path, FARM, cut=cut)
    assert [returns_at(job, party=party) for party in range(2)] == returns


DIRECT = FARM | {"direct": True}
FULL: dict[str, Any] = {"cut": {"bottom": 2, "top": -1, "mode": "full"}}


def test_a_direct_chain_is_another_job_than_a_relayed_one(tmp_path: Path) -> None:
    relayed, direct = chained(tmp_path, FARM), chained(tmp_path, DIRECT)
    assert (relayed.direct, direct.direct) == (False, True)
    assert relayed.digest() != direct.digest()
    assert chained(tmp_path, FARM | {"direct": False}).digest() == relayed.digest()


@pytest.mark.parametrize(
    ("tables", "changes", "sentence"),
    [
        ([DIRECT, BARN], {}, "chain.direct is true for others and not for barn"),
        (
            [DIRECT],
            {**FULL, "optimiser": {"clip_norm": 1.0}},
            "optimiser.clip_norm needs a step's end",
        ),
        (
            [DIRECT],
            {
                "model": {"task": "sequence-to-sequence"},
                "data": {"label": None, "target": "said"},
                "cut": {"bottom": 2, "top": -1, "stack": "decoder"},
            },
            "cut.stack is decoder, whose layers need the encoder's output",
        ),
        ([DIRECT], {"codec": {"inner": "lowrank-8"}}, "codec.inner is lowrank-8, which remembers"),
        ([DIRECT], {"codec": {"activation": "lowrank-8"}}, "codec.activation is lowrank-8"),
        ([DIRECT], {"schedule": {"epochs": 1, "staleness": 1}}, "schedule.staleness is 1"),
        (
            [DIRECT],
            {"cut": {"bottom": 2, "top": -1, "cache": True}},
            "cut.cache is for one compute",
        ),
    ],
)
def test_what_a_direct_chain_cannot_do_is_refused_by_name(
    tmp_path: Path, tables: list[dict[str, Any]], changes: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ManifestError, match=sentence):
        chained(tmp_path, *tables, **changes)


def test_stages_and_canaries_are_for_relayed_chains(tmp_path: Path) -> None:
    path = write_chain(tmp_path, DIRECT)
    text = path.read_text(encoding="utf-8")
    path.write_text(text + '\n[[codec.stage]]\nafter = 3\noutput = "int8"\n', encoding="utf-8")
    with pytest.raises(ManifestError, match=r"codec\.stage is not to be had with chain\.direct"):
        load_job(path)
    (tmp_path / "canary.jsonl").touch()
    path.write_text(text + '\n[canary]\nfile = "canary.jsonl"\n', encoding="utf-8")
    with pytest.raises(ManifestError, match=r"canary\.file keeps frames"):
        load_job(path)
