"""The store in which ranks of several hosts meet: for those who have its key."""

import os
import socket
import threading
from contextlib import contextmanager
from datetime import timedelta

import pytest
import torch.distributed as dist

from tpviz.ranks import keyed
from tpviz.ranks.store import StoreServer, joined

KEY = b"k" * 32


@contextmanager
def served(peers=()):
    server = StoreServer("127.0.0.1", KEY, peers)
    try:
        yield server.socket.getsockname()
    finally:
        server.close()


def test_it_does_what_torchs_stores_do():
    with served() as at:
        a = joined(at, KEY, ())
        a.set("bytes", bytes(range(256)))
        assert a.num_keys() == 1
        assert a.get("bytes") == bytes(range(256))
        assert [a.add("n", 2), a.add("n", -5), a.get("n")] == [2, -3, b"-3"]
        assert not a.check(["n", "m"]) and a.check(["n"])
        assert a.compare_set("c", "", "one") == b"one"
        assert a.compare_set("c", "two", "three") == b"one"
        assert a.compare_set("c", "one", "two") == b"two"
        assert a.delete_key("c") and not a.delete_key("c")
        a.set_timeout(timedelta(seconds=0.2))
        with pytest.raises(dist.DistStoreError, match=r"later: not set within 0\.2 s"):
            a.get("later")
        b, c = joined(at, KEY, ()).clone(), dist.PrefixStore("of", a)  # which asks by C++
        a.set("of/later", "x")
        b.wait(["of/later"], timedelta(seconds=1))
        c.wait(["later"], timedelta(seconds=1))
        assert c.get("later") == b"x" and c.add("n", 3) == 3 and b.get("of/n") == b"3"


def test_one_thread_waits_while_another_sets():
    with served() as at:
        store, got = joined(at, KEY, ()), []
        waits = threading.Thread(target=lambda: got.append(store.get("late")))
        waits.start()
        store.set("late", b"\xff")
        waits.join(5)
        assert got == [b"\xff"]


def test_who_waits_hears_of_the_end():
    with served() as at:
        store, said = joined(at, KEY, ()), []

        def wait():
            try:
                store.get("never")
            except (ConnectionError, dist.DistStoreError) as error:
                said.append(error)

        waits = threading.Thread(target=wait)
        waits.start()
    waits.join(5)
    assert said


def test_without_the_key_nothing_is_had():
    with served() as at:
        with pytest.raises(ConnectionError, match="the store at 127"):
            joined(at, b"another", ()).get("n")
        joined(at, KEY, ()).set("secret", "42")
        for data in (b"", os.urandom(48), b"\0" * 48, os.urandom(1 << 20)):
            with socket.create_connection(at, timeout=5) as stranger:
                try:
                    stranger.sendall(data)
                    assert stranger.recv(100) == b""
                except ConnectionError:
                    pass
        assert joined(at, KEY, ()).get("secret") == b"42"


def _reached(at, source):
    try:
        socket.create_connection(at, timeout=0.3, source_address=(source, 0)).close()
    except OSError:
        return False
    return True


def test_other_addresses_do_not_even_reach_it_nor_sockets_whose_address_is_set():
    with served(["127.0.0.1"]) as at, socket.create_server(("127.0.0.1", 0)) as gloo:
        own = gloo.getsockname()
        assert _reached(own, "127.0.0.7")
        store = joined(at, KEY, ["127.0.0.1", "127.0.0.2"])
        store.set("other", b"no address")
        assert _reached(own, "127.0.0.7")
        store.set("gloo", own[1].to_bytes(2, "big") + b"\x7f\0\0\1")
        assert [_reached(own, f"127.0.0.{i}") for i in (1, 2, 7)] == [True, True, False]
        assert [_reached(at, f"127.0.0.{i}") for i in (1, 7)] == [True, False]


def test_a_message_of_somebody_else_is_refused():
    with served() as at:
        channel = keyed.call(*at, KEY)
        channel.key = b"guessed"
        channel.send(["set", "n", "1"])
        with pytest.raises(OSError):
            channel.receive()
        assert not joined(at, KEY, ()).check(["n"])
