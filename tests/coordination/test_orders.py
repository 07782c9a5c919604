from pathlib import Path

import pytest

from splitlearn.coordination.orders import (
    Ending,
    Orders,
    read_ending,
    read_orders,
    write_ending,
    write_orders,
)
from splitlearn.errors import ManifestError

ORDERS = Orders(
    identity=Path("/here/identity"),
    address="127.0.0.1:8471",
    party=None,
    settings=Path("/here/generator.toml"),
    ending=Path("/here/ending.json"),
)


def test_orders_come_back_as_they_were_written(tmp_path: Path) -> None:
    write_orders(tmp_path / "orders", ORDERS)
    assert read_orders(tmp_path / "orders") == ORDERS
    assert (tmp_path / "orders").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("data", [b"", b"{}", b"\xff", b'{"identity": 1}', b"x" * 2**15])
def test_other_orders_are_refused(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "orders").write_bytes(data)
    with pytest.raises(ManifestError, match="orders"):
        read_orders(tmp_path / "orders")


def test_an_ending_is_read_once(tmp_path: Path) -> None:
    path = tmp_path / "ending"
    assert read_ending(path) is None
    write_ending(path, Ending(sentence="x" * 5_000, final=True))
    assert read_ending(path) == Ending(sentence="x" * 2_000, final=True)
    assert read_ending(path) is None
    path.write_bytes(b"half")
    assert read_ending(path) is None
    assert not path.exists()
