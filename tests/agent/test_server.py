"""The agent's endpoint: pages, what is none, slow peers, and addresses."""

from __future__ import annotations

import socket
import urllib.error
import urllib.request

import pytest

from gpudoctor.agent import server
from gpudoctor.errors import InputError

PAGES: dict[str, server.Page] = {
    "/metrics": lambda: b"one 1\n",
    "/readyz": lambda: "the first round has not ended",
}


def get(port: int, path: str, host: str = "127.0.0.1") -> tuple[int, bytes]:
    try:
        with urllib.request.urlopen(f"http://{host}:{port}{path}", timeout=30) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def test_pages_by_path() -> None:
    with server.serving("127.0.0.1:0", PAGES) as port:
        assert get(port, "/metrics") == (200, b"one 1\n")
        assert get(port, "/metrics?name=x") == (200, b"one 1\n")
        assert get(port, "/readyz") == (503, b"the first round has not ended\n")
        assert get(port, "/") == (404, b"no such page\n")


def test_all_addresses_are_those_of_ipv4_too() -> None:
    with server.serving(":0", PAGES) as port:
        assert get(port, "/metrics")[0] == 200


def test_peers_that_say_nothing_do_not_keep_others_out_for_long() -> None:
    with server.serving("127.0.0.1:0", PAGES) as port:
        idle = [socket.create_connection(("127.0.0.1", port)) for _ in range(4)]
        assert get(port, "/metrics")[0] == 200
        for one in idle:
            one.close()


def test_more_peers_than_threads_are_turned_away_and_not_queued() -> None:
    with server.serving("127.0.0.1:0", PAGES) as port:
        idle = [socket.create_connection(("127.0.0.1", port)) for _ in range(20)]
        turned_away = 0
        for one in idle:
            one.settimeout(30)
            # Those that were let in are left after their time, the others at once.
            turned_away += one.recv(1) == b""
            one.close()
        assert turned_away == 20
        assert get(port, "/metrics")[0] == 200


@pytest.mark.parametrize("address", ["9400", "host", ":http", ":70000", "", "127.0.0.1:"])
def test_what_is_no_address(address: str) -> None:
    with pytest.raises(InputError, match="not HOST:PORT"):
        server.parse(address)


def test_an_address_that_is_taken() -> None:
    with (
        server.serving("127.0.0.1:0", PAGES) as port,
        pytest.raises(InputError, match="Address already in use"),
        server.serving(f"127.0.0.1:{port}", PAGES),
    ):
        pass


@pytest.mark.parametrize(
    ("address", "parsed"),
    [(":9400", ("", 9400)), ("[::1]:9400", ("::1", 9400)), ("10.0.0.1:1", ("10.0.0.1", 1))],
)
def test_addresses(address: str, parsed: tuple[str, int]) -> None:
    assert server.parse(address) == parsed
