"""The pieces of the demo that can go wrong before it has run for minutes."""

from parties.demo_translate import _table


def test_the_table_says_what_metrics_say() -> None:
    metrics = {
        "bleu": {"local": 10.0, "codec": 9.9, "uncompressed": 10.0, "scratch": 1.0},
        "bytes": {"codec": 20_000_000, "uncompressed": 100_000_000, "ratio": 0.2},
        "steps": {"local": 120, "scratch": 120},
        "exact": True,
        "audit": {"ok": True, "matched": 7},
    }
    cells = [str(cell) for cell in _table(metrics).columns[1].cells]
    assert cells == ["10.00", "10.00", "9.90", "1.00", "20.0%", "to the bit", *cells[6:]]
    assert "7 messages" in cells[6]
