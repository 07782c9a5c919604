"""The logs of hops beside a log, honest and not; whole runs stand in tests/exactness/test_direct.py."""

import time
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from splitlearn.audit import HopHead, Log, verify
from splitlearn.audit.findings import Exit, Findings
from splitlearn.audit.hops import check_hops, hop_log
from splitlearn.audit.records import Gap

KEY = Ed25519PrivateKey.generate()
FARM = "spiffe://fed.example/party/farm/role/compute"


def written(folder: Path, *, records: int = 3, signer: Ed25519PrivateKey = KEY) -> Log:
    log = Log.open(folder, origin="compute.host.fed.example", signer=signer, clock=time.time)
    for number in range(records):
        log.append(Gap(torn_bytes=number))
    return log


def head_of(log: Log, *, neighbour: str = FARM) -> HopHead:
    head = log.checkpoint()
    return HopHead(
        run="run",
        conversation="b" * 32,
        neighbour=neighbour,
        key=log.verifier_key,
        size=head.size,
        root=head.root.hex(),
    )


def found(log: Path, *heads: HopHead) -> list[tuple[Exit, str]]:
    findings = Findings()
    key = heads[0].key if heads else None
    check_hops(log, list(enumerate(heads)), key=key, findings=findings)
    return [(finding.exit, finding.sentence) for finding in findings]


def test_the_log_of_a_hop_lies_beside(tmp_path: Path) -> None:
    assert hop_log(tmp_path / "audit", neighbour="farm") == tmp_path / "audit-farm"


def test_a_log_that_grew_since_is_what_its_heads_say(tmp_path: Path) -> None:
    hop = written(tmp_path / "audit-farm")
    first = head_of(hop)
    hop.append(Gap(torn_bytes=9))
    second = head_of(hop)
    hop.close()
    assert found(tmp_path / "audit", first, second) == []


def test_a_log_that_was_begun_anew_or_cut_short_is_told(tmp_path: Path) -> None:
    hop = written(tmp_path / "audit-farm")
    head = head_of(hop)
    hop.close()
    for size in (3, 1):
        for path in (tmp_path / "audit-farm").rglob("*"):
            if path.is_file():
                path.unlink()
        written(tmp_path / "audit-farm", records=size).close()
        ((exit_code, sentence),) = found(tmp_path / "audit", head)
        assert exit_code is Exit.INTEGRITY
        assert "not that of audit-farm: that log was changed, or cut short" in sentence
        assert FARM in sentence


def test_a_log_that_was_not_handed_over_is_a_remark_once(tmp_path: Path) -> None:
    hop = written(tmp_path / "elsewhere")
    heads = head_of(hop), head_of(hop)
    hop.close()
    ((exit_code, sentence),) = found(tmp_path / "audit", *heads)
    assert exit_code is Exit.CLEAN
    assert "is not beside this one" in sentence


@pytest.mark.parametrize("neighbour", ["farm", "spiffe://fed.example/party/../../x/role/compute"])
def test_a_name_that_is_none_leads_to_no_folder(tmp_path: Path, neighbour: str) -> None:
    hop = written(tmp_path / "audit-farm")
    ((exit_code, _),) = found(tmp_path / "audit", head_of(hop, neighbour=neighbour))
    hop.close()
    assert exit_code is Exit.INTEGRITY


def test_a_hop_under_another_key_is_told_by_the_whole_check(tmp_path: Path) -> None:
    hop = written(tmp_path / "audit-farm", signer=Ed25519PrivateKey.generate())
    log = written(tmp_path / "audit")
    log.append(head_of(hop))
    hop.close()
    log.close()
    report = verify(tmp_path / "audit")
    ((finding),) = [finding for finding in report.findings if finding.name == "hop"]
    assert (finding.exit, finding.sentence) == (
        Exit.INTEGRITY,
        "the log of a hop is under another key",
    )
