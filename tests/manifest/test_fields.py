from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from splitlearn.manifest.fields import (
    Address,
    AddressField,
    CodecField,
    FileField,
    FolderField,
    ModelField,
    PeerTable,
    Source,
    SourceField,
    Table,
    peer_faults,
)


class Fields(Table):
    """One field of each kind, all optional."""

    address: AddressField | None = None
    codec: CodecField | None = None
    file: FileField | None = None
    folder: FolderField | None = None
    model: ModelField | None = None
    source: SourceField | None = None


def read(base: Path, **values: object) -> Fields:
    return Fields.model_validate(values, context={"file": base / "job.toml"})


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("localhost:7000", Address("localhost", 7000)),
        ("10.0.0.1:0", Address("10.0.0.1", 0)),
        ("[::1]:65535", Address("::1", 65535)),
        ("gpu_3.example.org:443", Address("gpu_3.example.org", 443)),
    ],
)
def test_an_address_is_host_and_port_and_prints_as_written(
    tmp_path: Path, text: str, address: Address
) -> None:
    assert read(tmp_path, address=text).address == address
    assert str(address) == text


@pytest.mark.parametrize("text", ["", "host", "host:", ":7000", "host:65536", "::1:7000", "a b:1"])
def test_what_is_no_address_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(ValidationError):
        read(tmp_path, address=text)


def test_paths_are_relative_to_the_file_they_stand_in(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.txt").write_text("x")
    fields = read(tmp_path / "jobs", folder="../out", file="../data/a.txt")
    assert fields.folder == tmp_path / "out"
    assert fields.file == tmp_path / "data" / "a.txt"
    assert read(tmp_path, folder=str(tmp_path / "x")).folder == tmp_path / "x"


def test_a_tilde_is_the_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert read(Path("/"), folder="~/runs").folder == tmp_path / "runs"


@pytest.mark.parametrize(
    "value", ["nowhere.txt", "", " ", "a\0b", "x" * 5000, "../..", 3, None, []]
)
def test_a_file_that_is_not_there_is_refused_whatever_its_name(
    tmp_path: Path, value: object
) -> None:
    if value is None:
        assert read(tmp_path, file=value).file is None
        return
    with pytest.raises(ValidationError):
        read(tmp_path, file=value)


def test_a_model_is_a_folder_if_there_is_one_else_a_hub_name(tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    (tmp_path / "owner" / "name").mkdir(parents=True)
    assert read(tmp_path, model="own").model == str(tmp_path / "own")
    assert read(tmp_path, model="owner/name").model == str(tmp_path / "owner" / "name")
    assert read(tmp_path, model="owner/other").model == "owner/other"
    assert read(tmp_path, model="bert-base-uncased").model == "bert-base-uncased"
    for path in ("./none", "../none", "/none", "a/b/c", "none/"):
        with pytest.raises(ValidationError, match="there is no folder"):
            read(tmp_path, model=path)


@pytest.mark.parametrize("name", ["a.csv", "a.tsv", "a.jsonl", "a.parquet", "a.tsv.gz", "数据.csv"])
def test_a_data_file_has_its_format_from_its_name(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"")
    source = read(tmp_path, source=name).source
    form = name.removesuffix(".gz").rpartition(".")[2]
    assert source == Source(text=name, file=tmp_path / name, format=form)


def test_a_data_set_of_a_hub_has_name_config_and_split(tmp_path: Path) -> None:
    assert read(tmp_path, source="nyu-mll/glue:sst2@validation").source == Source(
        text="nyu-mll/glue:sst2@validation", name="nyu-mll/glue", config="sst2", split="validation"
    )
    assert read(tmp_path, source="owner/set").source == Source(text="owner/set", name="owner/set")


@pytest.mark.parametrize("text", ["gone.csv", "./x", "a/b/c", "a b", "x@", "\n", 7])
def test_what_is_no_source_is_refused(tmp_path: Path, text: object) -> None:
    with pytest.raises(ValidationError):
        read(tmp_path, source=text)


def test_a_codec_is_one_of_the_chains(tmp_path: Path) -> None:
    assert read(tmp_path, codec="int8+zstd").codec == "int8+zstd"
    assert read(tmp_path, codec="transform-e0.2").codec == "transform-e0.2"
    with pytest.raises(ValidationError):
        read(tmp_path, codec="zstd+int8")


@pytest.mark.parametrize(
    ("fields", "key"),
    [
        ({}, ["peer.dial"]),
        ({"dial": "a:1", "listen": "b:2"}, ["peer.dial"]),
        ({"dial": "a:0"}, ["peer.dial"]),
        ({"dial": "a:1"}, []),
        ({"listen": "a:0"}, []),
    ],
)
def test_a_peer_is_dialled_or_waited_for(fields: dict[str, Any], key: list[str]) -> None:
    peer = PeerTable.model_validate({"party": "clinic", **fields})
    assert [fault.key for fault in peer_faults(peer)] == key


@pytest.mark.parametrize("party", ["", "Clinic", "-a", "a-", "a.b", "ü", "a" * 43])
def test_a_party_name_is_that_of_a_certificate(party: str) -> None:
    with pytest.raises(ValidationError):
        PeerTable.model_validate({"party": party, "dial": "a:1"})
