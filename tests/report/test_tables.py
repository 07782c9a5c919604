"""Tables: what stands in which cell."""

from pathlib import Path

import msgspec
import pytest

from splitlearn.report import Document
from splitlearn.report.tables import (
    Cell,
    Table,
    changes_table,
    conversations_table,
    findings_table,
    gaps_table,
    noise_table,
    peer_heads_table,
    redactions_table,
    refusals_table,
    rules_table,
    traffic_table,
)
from tests.report.logs import document, eventful


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Document:
    return document(eventful(tmp_path_factory.mktemp("report") / "audit", steps=10))


def column(table: Table, title: str) -> list[str]:
    index = [each.title for each in table.columns].index(title)
    return [row[index].text for row in table.rows]


def test_findings_come_gravest_first_and_begin_with_a_capital(whole: Document) -> None:
    kinds = column(findings_table(whole), "Kind")
    assert kinds == sorted(kinds, key=["Policy", "Remark"].index)
    assert all(each[0].isupper() for each in column(findings_table(whole), "Finding"))


def test_every_row_has_a_cell_for_every_column(whole: Document) -> None:
    tables = [
        make(whole)
        for make in (
            changes_table,
            findings_table,
            gaps_table,
            noise_table,
            peer_heads_table,
            redactions_table,
            refusals_table,
            rules_table,
            traffic_table,
        )
    ]
    tables.append(conversations_table(whole.runs[0].conversations))
    for table in tables:
        assert all(len(row) == len(table.columns) for row in table.rows)
        assert bool(table.rows) is (table.name != "noise"), table.name


def test_sent_comes_before_received_and_the_larger_first(whole: Document) -> None:
    table = traffic_table(whole)
    assert column(table, "Kind")[:2] == ["weights", "activation"]
    ways = column(table, "Direction")
    assert ways == sorted(ways, reverse=True)


def test_several_peers_are_named_where_one_need_not_be(whole: Document) -> None:
    flow = whole.traffic[0]
    second = msgspec.structs.replace(flow, peer="spiffe://example.org/party/mill/role/compute")
    two = msgspec.structs.replace(whole, traffic=(flow, second))
    assert set(column(traffic_table(two), "Direction")) == {
        "sent to farm (example.org)",
        "sent to mill (example.org)",
    }


def test_an_overdrawn_budget_and_an_unknown_rule_stand_out(whole: Document) -> None:
    use = whole.rules[0]
    rules = (
        msgspec.structs.replace(use, bytes=30, budget=10, left=-20),
        msgspec.structs.replace(use, rule="x", budget=None, left=None, peer_role="", kinds=()),
    )
    table = rules_table(msgspec.structs.replace(whole, rules=rules))
    over, unknown = table.rows
    assert over[4].text == "-20\N{NO-BREAK SPACE}B left"
    assert 'class="over"' in over[4].mark
    assert over[4].tone == unknown[1].tone == "exit-1"
    assert unknown[1].text == "no rule of the policy on record"


def test_receipts_are_counted_against_what_was_sent(whole: Document) -> None:
    table = conversations_table(whole.runs[0].conversations)
    assert column(table, "Signed for by the peer") == ["14 of 14", "12 of 12"]
    assert column(table, "End") == [
        "not closed: under way, or interrupted",
        "stopped by a refusal",
    ]


def test_a_word_that_fits_no_column_is_known() -> None:
    assert Cell("a" * 40).long
    assert Cell("x", note="b" * 40).long
    assert Cell("\N{RIGHT-TO-LEFT OVERRIDE}" * 3).long
    assert not Cell("\N{RIGHT-TO-LEFT OVERRIDE}" * 3).whole
    assert not Cell("many short words that fit, however many there are").long


def test_nothing_but_names_is_made_of_a_log(tmp_path: Path) -> None:
    empty = document(tmp_path)
    assert not traffic_table(empty).rows
    assert not rules_table(empty).rows
