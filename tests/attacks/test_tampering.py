"""The tamper matrix: each way of falsifying a log, through the commands that an auditor runs.

Every line ends with exit code 3 or 4 and names the record. Most of the falsifiers here own the log's
key and can sign whatever they like; then what the peer holds is what convicts them.
"""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from typer.testing import CliRunner

from parties.auditor import app
from splitlearn.audit import Blobs, Payload, Receipt, RunClose
from splitlearn.audit.blobs import sealed_path
from splitlearn.audit.checkpoint import Checkpoint, cosign
from splitlearn.audit.merkle import leaf_hash, root_of
from splitlearn.audit.records import Checkpointed, Record, decode, encode
from splitlearn.roles import Kind
from tests.audit.pair import CLINIC_KEY, FARM_KEY, Pair, segment
from tests.door import COMPUTE, SIGNER, TRUSTED


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Both logs of a run that settled twice and kept one frame, never touched."""
    folder = tmp_path_factory.mktemp("honest")
    pair = Pair(folder)
    pair.begin()
    for step in range(4):
        if step == 1:
            name = Blobs.open(pair.clinic.folder, create=True).keep(b"frame")
            commit = pair.commit()
            pair.clinic.note("out", Kind.ACTIVATION, commit=commit, blob=name)
            pair.farm.note("in", Kind.ACTIVATION, commit=commit)
            pair.say(Kind.OUTPUT, by="farm")
        pair.step()
        if step == 2:
            pair.settle()
    pair.settle()
    pair.end()
    return folder


@pytest.fixture
def logs(honest: Path, tmp_path: Path) -> Path:
    """A copy to falsify: clinic/ and farm/."""
    shutil.copytree(honest, tmp_path / "logs")
    return tmp_path / "logs"


def run(*words: str) -> tuple[int, dict[str, Any]]:
    result = CliRunner().invoke(app, [*words, "--json"])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, json.loads(result.output)


def verified(logs: Path) -> tuple[int, list[dict[str, Any]]]:
    code, report = run("verify", str(logs / "clinic"), "--key", CLINIC_KEY, "--peer-key", FARM_KEY)
    return code, report["findings"]


def reconciled(logs: Path) -> tuple[int, list[dict[str, Any]]]:
    code, report = run(
        "reconcile",
        str(logs / "clinic"),
        str(logs / "farm"),
        *("--key-a", CLINIC_KEY, "--key-b", FARM_KEY),
    )
    return code, report["differences"]


def lines(logs: Path) -> list[bytes]:
    return segment(logs / "clinic").read_bytes().splitlines(keepends=True)


def rewrite(logs: Path, new: list[bytes]) -> None:
    segment(logs / "clinic").write_bytes(b"".join(new))


def heads(logs: Path) -> list[Path]:
    folder = logs / "clinic" / "checkpoints"
    return sorted(folder.glob("*.note"), key=lambda path: int(path.stem))


def place_of(logs: Path, kind: type[Record], *, nth: int = 0) -> int:
    found = [at for at, line in enumerate(lines(logs)) if isinstance(decode(line), kind)]
    return found[nth]


def test_the_logs_that_are_falsified_below_are_clean(logs: Path) -> None:
    assert verified(logs) == (0, [])
    assert reconciled(logs) == (0, [])


def _flip(logs: Path) -> None:
    new = lines(logs)
    new[4] = new[4].replace(b'"rows":0', b'"rows":1')
    rewrite(logs, new)


def _drop_last(count: int) -> Callable[[Path], None]:
    return lambda logs: rewrite(logs, lines(logs)[:-count])


def _drop_one(logs: Path) -> None:
    new = lines(logs)
    rewrite(logs, [*new[:4], *new[5:]])


def _swap(logs: Path) -> None:
    new = lines(logs)
    new[3], new[5] = new[5], new[3]
    rewrite(logs, new)


def _insert(logs: Path) -> None:
    new = lines(logs)
    rewrite(logs, [*new[:4], new[3], *new[4:]])


def _old_head(logs: Path) -> None:
    old, *_, new = heads(logs)
    shutil.copy(old, new)


def _receipt(logs: Path) -> None:
    """A receipt for fewer messages, its chain as it would be, its signature as it was."""
    new = lines(logs)
    at = place_of(logs, Receipt)
    record = decode(new[at])
    assert isinstance(record, Receipt)
    new[at] = encode(msgspec.structs.replace(record, signature="0" * 128))
    rewrite(logs, new)


def _countersignature(logs: Path) -> None:
    """One letter of the peer's signature under the first head that has one."""
    path = next(path for path in heads(logs) if f" {COMPUTE.dns} " in path.read_text())
    start, _, encoded = path.read_text().rpartition(" ")
    swapped = "A" if encoded[20] != "A" else "B"
    path.write_text(f"{start} {encoded[:20]}{swapped}{encoded[21:]}")


def _peer_note(logs: Path) -> None:
    note = next((logs / "clinic" / "peers").glob("*/*.note"))
    head = Checkpoint(COMPUTE.dns, int(note.stem), bytes(32))
    note.write_text(cosign(head.sign(Ed25519PrivateKey.generate()), name=TRUSTED.dns, key=SIGNER))


def _peer_note_gone(logs: Path) -> None:
    next((logs / "clinic" / "peers").glob("*/*.note")).unlink()


def _kept(logs: Path) -> str:
    return next(
        record.blob
        for line in lines(logs)
        if isinstance(record := decode(line), Payload) and record.blob != "withheld"
    )


def _blob_gone(logs: Path) -> None:
    sealed_path(logs / "clinic", _kept(logs)).unlink()


def _blob_changed(logs: Path) -> None:
    sealed_path(logs / "clinic", _kept(logs)).write_bytes(b"another frame")


# What is done by somebody without the key, and the records that may be named for it.
BY_OTHERS: dict[str, tuple[Callable[[Path], None], range]] = {
    "a byte flipped": (_flip, range(11)),
    "the last line dropped": (_drop_last(1), range(26, 27)),
    "the last five lines dropped": (_drop_last(5), range(22, 23)),
    "a line in the middle dropped": (_drop_one, range(4, 6)),
    "two lines swapped": (_swap, range(3, 7)),
    "a line inserted": (_insert, range(4, 6)),
    "an old head replayed": (_old_head, range(26, 27)),
    "a receipt changed": (_receipt, range(11, 16)),
    "a countersignature changed": (_countersignature, range(8, 16)),
    "a head of the peer forged": (_peer_note, range(8, 27)),
    "a head of the peer removed": (_peer_note_gone, range(8, 27)),
    "a kept frame removed": (_blob_gone, range(3, 5)),
    "a kept frame changed": (_blob_changed, range(3, 5)),
}


@pytest.mark.parametrize("name", BY_OTHERS)
def test_what_is_done_without_the_key_is_found_in_the_log_alone(logs: Path, name: str) -> None:
    falsify, places = BY_OTHERS[name]
    falsify(logs)
    code, findings = verified(logs)
    assert code == 3, findings
    named = [finding["record"] for finding in findings if finding["exit"] == 3]
    assert any(record in places for record in named), findings


@pytest.mark.parametrize("at", range(0, 27, 2))
def test_a_flipped_byte_anywhere_is_found(logs: Path, at: int) -> None:
    new = lines(logs)
    middle = len(new[at]) // 2
    new[at] = new[at][:middle] + bytes([new[at][middle] ^ 1]) + new[at][middle + 1 :]
    rewrite(logs, new)
    code, findings = verified(logs)
    assert code == 3
    assert any(finding["record"] is not None for finding in findings if finding["exit"] == 3)


def sign_anew(logs: Path, new: list[bytes]) -> None:
    """What the owner of the key can do: lines numbered and marked afresh, one fresh head over them."""
    leaves: list[bytes] = []
    for seq, line in enumerate(new):
        record = msgspec.structs.replace(decode(line), seq=seq)
        if isinstance(record, Checkpointed):
            record = msgspec.structs.replace(record, root=root_of(leaves).hex())
        new[seq] = encode(record)
        leaves.append(leaf_hash(new[seq][:-1]))
    for path in heads(logs):
        path.unlink()
    rewrite(logs, new)
    head = Checkpoint(TRUSTED.dns, len(new), root_of(leaves))
    (logs / "clinic" / "checkpoints" / f"{head.size}.note").write_text(head.sign(SIGNER))


def without_the_peer(logs: Path, new: list[bytes]) -> list[bytes]:
    """No receipt, no head of the peer: what a forger leaves out so that verify has nothing to ask."""
    shutil.rmtree(logs / "clinic" / "peers")
    kinds = ("receipt", "peer.checkpoint")
    return [line for line in new if not any(f'"type":"{kind}"'.encode() in line for kind in kinds)]


def _other_bytes(logs: Path) -> list[bytes]:
    new = lines(logs)
    record = decode(new[3])
    assert isinstance(record, Payload)
    new[3] = encode(msgspec.structs.replace(record, commit="0" * 64, blob="withheld"))
    return new


def _message_left_out(logs: Path) -> list[bytes]:
    """The last activation and all its traces: later numbers moved up, totals put right."""
    new = lines(logs)
    at = place_of(logs, RunClose)
    closed = decode(new[at])
    assert isinstance(closed, RunClose)
    last = max(
        place
        for place, line in enumerate(new)
        if isinstance(record := decode(line), Payload) and record.kind is Kind.ACTIVATION
    )
    for place in range(last + 1, at):
        record = decode(new[place])
        if isinstance(record, Payload) and record.direction == "out":
            new[place] = encode(msgspec.structs.replace(record, message=record.message - 1))
    totals = {"messages_out": closed.messages_out - 1, "bytes_out": closed.bytes_out - 1000}
    new[at] = encode(msgspec.structs.replace(closed, **totals))
    return [*new[:last], *new[last + 1 :]]


def _message_made_up(logs: Path) -> list[bytes]:
    new = lines(logs)
    at = place_of(logs, RunClose)
    closed = decode(new[at])
    sent = next(
        record
        for line in reversed(new[:at])
        if isinstance(record := decode(line), Payload) and record.direction == "out"
    )
    assert isinstance(closed, RunClose)
    more = msgspec.structs.replace(sent, message=sent.message + 1, commit="1" * 64)
    totals = {"messages_out": closed.messages_out + 1, "bytes_out": closed.bytes_out + 1000}
    new[at] = encode(msgspec.structs.replace(closed, **totals))
    return [*new[:at], encode(more), *new[at:]]


BY_THE_OWNER: dict[str, Callable[[Path], list[bytes]]] = {
    "another commit": _other_bytes,
    "a message left out": _message_left_out,
    "a message made up": _message_made_up,
}


@pytest.mark.parametrize("name", BY_THE_OWNER)
def test_what_the_owner_of_the_key_rewrites_is_found_against_the_peers_log(
    logs: Path, name: str
) -> None:
    """The rewritten log is whole and clean by itself."""
    new = BY_THE_OWNER[name](logs)
    sign_anew(logs, without_the_peer(logs, new))
    shutil.rmtree(logs / "clinic" / "blobs")
    code, findings = verified(logs)
    assert (code, {finding["exit"] for finding in findings}) == (0, {0}), findings
    code, differences = reconciled(logs)
    assert code == 4
    assert "fork" in {difference["class"] for difference in differences}
    for difference in differences:
        assert difference["here"] is not None or difference["there"] is not None


def test_what_the_owner_rewrites_and_leaves_the_receipts_in_is_found_in_the_log_alone(
    logs: Path,
) -> None:
    sign_anew(logs, _other_bytes(logs))
    code, findings = verified(logs)
    assert code == 3
    assert "receipt" in {finding["name"] for finding in findings}


def test_two_histories_for_two_peers_do_not_agree_with_the_peer_that_saw_the_other(
    logs: Path, tmp_path: Path
) -> None:
    """The clinic shows one log to the farm and another, as well signed, to the auditor."""
    other = Pair(tmp_path / "other", seed=7).run()
    shutil.rmtree(logs / "clinic")
    shutil.copytree(other.clinic.folder, logs / "clinic")
    assert verified(logs) == (0, [])
    code, differences = reconciled(logs)
    assert code == 4
    forks = [difference for difference in differences if difference["class"] == "fork"]
    assert forks
    assert all(fork["here"] is not None or fork["there"] is not None for fork in forks)


def test_a_peers_receipt_cannot_be_made_by_anybody_else(logs: Path) -> None:
    """The clinic signs itself a receipt with a key of its own making; the farm told the auditor its."""
    pair = Pair(logs / "alone", farm_signer=Ed25519PrivateKey.generate()).run()
    shutil.rmtree(logs / "clinic")
    shutil.copytree(pair.clinic.folder, logs / "clinic")
    code, findings = verified(logs)
    assert code == 3
    assert {"receipt", "peer-head"} <= {finding["name"] for finding in findings}
    assert all(finding["record"] is not None for finding in findings)
