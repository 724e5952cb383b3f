"""Versions, servers, clients."""

import os
import subprocess
import sys
import time

import pytest

import zillion as zl


@pytest.fixture(scope="module")
def registry(run, rows, tmp_path_factory):
    registry = zl.Registry(tmp_path_factory.mktemp("registry") / "versions")
    run.publish(registry, "clicks", parity=rows[:20])
    return registry


def test_versions_are_published_and_served(registry, run, rows):
    assert registry.models() == ["clicks"]
    assert [version["version"] for version in registry.list("clicks")] == [1]
    assert registry.verify("clicks")
    inputs = [{k: v for k, v in row.items() if k != "click"} for row in rows[:8]]
    wanted = run.predict(inputs)["click"]
    with zl.serve(registry, "clicks") as server:
        client = server.client()
        while not client.is_ready():
            assert server.is_running, server.log
            time.sleep(0.05)
        assert client.predict("clicks", inputs) == pytest.approx(list(wanted), abs=1e-6)
        assert client.predict("clicks", inputs[:1], version=1) == pytest.approx(
            [wanted[0]], abs=1e-6
        )
        assert client.versions("clicks")[0]["version"] == "1"
        with pytest.raises(zl.ServerError, match="other") as caught:
            client.predict("other", inputs)
        assert caught.value.status == 404
    assert not server.is_running
    with pytest.raises(zl.ServerError, match="is a server running there") as caught:
        client.predict("clicks", inputs)
    assert caught.value.status is None


def test_pointers_move_and_go_back(registry):
    assert "1" in registry.promote("clicks", 1, to="canary", note="a trial")
    assert registry.log("clicks", "canary")
    with pytest.raises(zl.Error, match="canary"):
        registry.rollback("clicks", pointer="canary")
    with pytest.raises(zl.Error, match="7"):
        registry.promote("clicks", 7)
    with pytest.raises(zl.Error, match="model `none`"):
        registry.list("none")


def test_a_server_that_cannot_start_says_why(tmp_path):
    with pytest.raises(zl.Error, match="the server did not start"):
        zl.serve(tmp_path / "none", "clicks")


def test_a_server_ends_with_its_interpreter(registry):
    script = (
        "import os, sys, zillion as zl\n"
        f"server = zl.serve({str(registry.url)!r}, 'clicks')\n"
        "print(server._process.pid, flush=True)\n"
        "os.kill(os.getpid(), 9)\n"
    )
    killed = subprocess.run(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, encoding="utf-8", check=False
    )
    server = int(killed.stdout)
    deadline = time.monotonic() + 60
    while os.path.exists(f"/proc/{server}") and not is_zombie(server):
        assert time.monotonic() < deadline, "the server outlives its interpreter"
        time.sleep(0.02)


def is_zombie(process):
    """Returns whether a process has ended and nobody has asked for its exit code."""
    try:
        with open(f"/proc/{process}/stat", encoding="utf-8") as file:
            return file.read().rsplit(")", 1)[1].split()[0] == "Z"
    except FileNotFoundError:
        return True
