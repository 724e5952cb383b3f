"""Tables on parameter servers, which are processes of their own."""

import _thread
import subprocess
import sys
import threading

import numpy
import pytest

import zillion as zl

SETTINGS = {
    "user": {"dim": 4, "optimizer": {"kind": "rowwise_adagrad", "lr": 0.1}},
    "item": {"dim": 4, "optimizer": {"kind": "adam", "lr": 0.01}},
}
FIELDS = ["user", "item"]


class Server:
    """A server process, which is killed at the end of the test."""

    def __init__(self, store, address="127.0.0.1:0"):
        arguments = ["ps", "serve", "--listen", address, "--store", str(store)]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "zillion._watched", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            encoding="utf-8",
        )
        line = self.process.stdout.readline()
        assert line.startswith("listening on "), line
        self.address = line.split()[-1]

    def kill(self):
        self.process.kill()
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()


@pytest.fixture
def servers(tmp_path):
    started = [Server(tmp_path), Server(tmp_path)]
    yield started
    for server in started:
        server.kill()


def train(tables, start, end):
    """Does the steps of a range. Returns the rows that they read."""
    found = []
    for step in range(start, end):
        ids = numpy.random.default_rng(step).integers(0, 200, size=(64, 2))
        pulled = tables.pull(FIELDS, ids)
        found.append(pulled.rows.tobytes())
        tables.push(pulled, numpy.sin(pulled.rows + step))
        # A second lookup of the same step.
        more = tables.pull("item", ids[:7, 1])
        tables.push(more, numpy.cos(more.rows))
        tables.step(rate=0.5)
    return found


def test_tables_on_servers_are_local_tables_bit_for_bit(servers, tmp_path):
    addresses = [server.address for server in servers]
    remote = zl.Tables(SETTINGS, servers=addresses, store=tmp_path, ps={"deadline_seconds": 5})
    local = zl.Tables(SETTINGS, threads=1)
    assert train(remote, 0, 8) == train(local, 0, 8)
    assert remote.explain("item", 7) == local.explain("item", 7) != None  # noqa: E711
    assert remote.explain("item", 1000) is None
    sizes = [[table["rows"] for table in tables.statistics()] for tables in (remote, local)]
    assert sizes[0] == sizes[1] and min(sizes[0]) > 0
    with pytest.raises(zl.Error, match="is not below the store"):
        remote.save(tmp_path.parent / f"{tmp_path.name}-other")
    remote.save(tmp_path / "saved")
    local.save(tmp_path / "local")
    assert train(remote, 8, 10) == train(local, 8, 10)

    # A server is lost and comes back without its rows.
    servers[1].kill()
    with pytest.raises(zl.Error, match="continue from the newest checkpoint"):
        train(remote, 10, 11)
    with pytest.raises(zl.Error, match="continue from the newest checkpoint"):
        remote.pull("item", [1])
    servers[1] = Server(tmp_path, addresses[1])
    remote.restore(tmp_path / "saved")
    local.restore(tmp_path / "local")
    assert train(remote, 8, 12) == train(local, 8, 12)
    every = numpy.arange(200)
    for field in FIELDS:
        wanted = local.pull(field, every, train=False).rows.tobytes()
        assert remote.pull(field, every, train=False).rows.tobytes() == wanted


def test_ctrl_c_ends_a_wait_for_servers(tmp_path):
    # Nothing listens on the port that this server had.
    server = Server(tmp_path)
    server.kill()
    threading.Timer(0.3, _thread.interrupt_main).start()
    with pytest.raises(KeyboardInterrupt):
        zl.Tables(SETTINGS, servers=[server.address], store=tmp_path)


def test_what_servers_need_is_said(tmp_path):
    for arguments, text in [
        ({"servers": ["a:1"]}, "`servers` need `store`"),
        ({"store": tmp_path}, "name them in `servers`"),
        ({"servers": "a:1", "store": tmp_path}, "give a list"),
        ({"servers": ["a"], "store": tmp_path}, "`a` is not an address"),
        ({"servers": [], "store": tmp_path}, "names no server"),
        ({"servers": ["a:1"], "store": "s3://bucket/a"}, "not a bucket"),
        ({"servers": ["a:1"], "store": tmp_path, "ps": {"token": "x"}}, "unknown key `ps.token`"),
        (
            {
                "servers": ["a:1"],
                "store": tmp_path,
                "spill": {"item": "1 MiB"},
                "spill_folder": tmp_path,
            },
            "cannot be used with",
        ),
    ]:
        with pytest.raises(zl.JobError, match=text):
            zl.Tables(SETTINGS, **arguments)
