import os
import socket
import threading
from pathlib import Path

from splitlearn.coordination.loopback import owner_of, permitted

ROW = "   {n}: {local} {remote} 01 00000000:00000000 00:00000000 00000000  {uid}        0 580 1 x 100\n"


def test_the_owner_of_a_real_connection_is_this_user() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        here = server.getsockname()
        done = threading.Event()
        with socket.create_connection(here) as client:
            accepted, peer = server.accept()
            with accepted:
                assert peer == client.getsockname()
                assert owner_of(peer, here=here) == os.getuid()
                assert permitted(peer, here=here)
                # The other end's socket is looked for, not ours.
                assert owner_of((peer[0], 1), here=here) is None
            done.set()
    assert not permitted(("127.0.0.1", 1), here=here)


def test_another_user_is_not_permitted(tmp_path: Path) -> None:
    table = tmp_path / "tcp"
    rows = "  sl  local_address rem_address ...\n"
    # 127.0.0.1:50000 <-> 127.0.0.1:8472, both directions, and a stranger's socket.
    for number, (local, remote, uid) in enumerate(
        [
            ("0100007F:2118", "0100007F:C350", os.getuid()),
            ("0100007F:C350", "0100007F:2118", 4711),
            ("0100007F:C350", "0100007F:0001", os.getuid()),
        ]
    ):
        rows += ROW.format(n=number, local=local, remote=remote, uid=uid)
    table.write_text(rows, encoding="ascii")
    peer, here = ("127.0.0.1", 50000), ("127.0.0.1", 8472)
    assert owner_of(peer, here=here, table=table) == 4711


def test_where_the_system_does_not_say_nobody_is_known(tmp_path: Path) -> None:
    here = ("127.0.0.1", 8472)
    assert owner_of(("127.0.0.1", 5), here=here, table=tmp_path / "none") is None
    (tmp_path / "odd").write_text("one two three four five six seven eight\n", encoding="ascii")
    assert owner_of(("127.0.0.1", 5), here=here, table=tmp_path / "odd") is None
    assert owner_of(("::1", 5), here=here) is None
