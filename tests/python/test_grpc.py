"""Clients over gRPC: the same answers as over HTTP."""

import datetime
import ipaddress
import struct
import subprocess
import sys
import time

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

import zillion as zl
from zillion._columns import make_columns


@pytest.fixture(scope="module")
def both(run, rows, tmp_path_factory):
    """Clients of one server, over HTTP and over gRPC."""
    registry = zl.Registry(tmp_path_factory.mktemp("registry") / "versions")
    run.publish(registry, "clicks", parity=rows[:20])
    run.publish(registry, "clicks", promote="canary")
    with zl.serve(registry, ["clicks", "clicks@canary"]) as server:
        with server.client() as http, server.client(grpc=True) as grpc:
            assert grpc.url.startswith("grpc://127.0.0.1:")
            yield http, grpc


def rounded(answer):
    """Returns an answer whose numbers are those of float32, which JSON writes in fewer digits."""
    if isinstance(answer, dict):
        return {key: rounded(value) for key, value in answer.items()}
    if isinstance(answer, list):
        return [rounded(value) for value in answer]
    return struct.pack("<f", answer) if isinstance(answer, float) else answer


def inputs_of(rows):
    return [{name: value for name, value in row.items() if name != "click"} for row in rows]


def test_answers_are_those_of_http(both, rows):
    http, grpc = both
    odd = [
        {"user": None, "item": None, "tags": None, "price": 0.5},
        {"user": 3.0, "item": 7, "tags": [], "price": 2},
        {"user": "5", "item": "item 1", "tags": ["t1", None, ""], "price": "2.5"},
        {"user": 2**53 + 1, "item": True, "tags": ["t4"], "price": True},
    ]
    for given in (inputs_of(rows[:50]), odd, *([row] for row in odd), odd[1:2] + odd[3:]):
        assert rounded(grpc.predict("clicks", given)) == rounded(http.predict("clicks", given))
    context = {"user": 7, "tags": ["t1", "t2"]}
    items = [{"item": row["item"], "price": row["price"]} for row in rows[:30]]
    for top in (None, 4):
        wanted = http.rank("clicks", context, items, top_k=top)
        assert rounded(grpc.rank("clicks", context, items, top_k=top)) == rounded(wanted)
    for call in (
        lambda client: client.describe("clicks"),
        lambda client: client.versions("clicks"),
        lambda client: client.is_ready(),
        lambda client: rounded(client.predict("clicks", inputs_of(rows[:1]), version=1)),
        lambda client: rounded(client.predict("clicks", inputs_of(rows[:1]), pointer="canary")),
    ):
        assert call(grpc) == call(http)


def test_failures_are_those_of_http(both, rows):
    given = inputs_of(rows[:2])
    less = [{"user": 1}]
    for call in (
        lambda client: client.predict("other", given),
        lambda client: client.predict("clicks", given, version=99),
        lambda client: client.predict("clicks", given, pointer="nobody"),
        lambda client: client.predict("clicks", less),
        lambda client: client.predict("clicks", [{**given[0], "price": None}]),
        lambda client: client.predict("clicks", [{**given[0], "user": "nobody"}]),
        lambda client: client.describe("other"),
        # A misspelt column is not left out.
        lambda client: client.predict("clicks", [{**given[0], "pirce": 2.0}]),
        lambda client: client.predict("clicks", [{**given[0], "click": 1}]),
        lambda client: client.rank("clicks", {"usr": 1}, given),
    ):
        failures = []
        for client in both:
            with pytest.raises(zl.ServerError) as caught:
                call(client)
            failures.append((str(caught.value), caught.value.status))
        assert failures[0] == failures[1]
    for client in both:
        with pytest.raises(zl.JobError, match="no rows"):
            client.predict("clicks", [])
        with pytest.raises(zl.ServerError, match="no input of this name; did you mean `price`"):
            client.predict("clicks", [{**given[0], "pirce": 2.0}])
        with pytest.raises(zl.JobError, match="both in the context"):
            client.rank("clicks", {"user": 1}, [{"user": 2}])
        for top_k in (-1, 1.5, True, "a", 1 << 40):
            with pytest.raises(zl.JobError, match="`top_k` is .*; give"):
                client.rank("clicks", {}, given, top_k=top_k)
        for arguments, message in (
            ({"k": 0}, "`k` is 0; give an integer of at least 1"),
            ({"k": -1}, "`k` is -1; give an integer of at least 1"),
            ({"only": [1 << 64]}, "`only` are not all integers of 64 bits"),
            ({"exclude": [-(1 << 63) - 1]}, "`exclude` are not all integers of 64 bits"),
            ({"only": [-1, 1 << 63]}, "negative and above"),
            ({"only": [1, "a"]}, "ids of one type"),
        ):
            with pytest.raises(zl.JobError, match=message):
                client.retrieve("clicks", {"user": 1}, **arguments)
        closed = zl.Client(client.url)
        closed.is_ready()
        closed.close()
        with pytest.raises(zl.Error, match="the client is closed"):
            closed.is_ready()
    grpc = both[1]
    with pytest.raises(zl.JobError, match="row 1 differs"):
        grpc.predict("clicks", [given[0], less[0]])
    with pytest.raises(zl.JobError, match="speaks gRPC"):
        grpc.call("/v2")
    with zl.Client("grpc://127.0.0.1:1", timeout=5) as nobody:
        with pytest.raises(zl.ServerError, match="is a server running there") as caught:
            nobody.is_ready()
        assert caught.value.status is None


def test_items_are_retrieved(tmp_path):
    (tmp_path / "items.csv").write_text("item\n" + "".join(f"{item}\n" for item in range(30)))
    job = zl.Job(
        name="towers",
        features={"user": {"kind": "id"}, "item": {"kind": "id"}},
        labels={"click": {}},
        tables={"*": {"dim": 4}},
        model={"kind": "two_tower", "user": ["user"], "item": ["item"]},
        train={"epochs": 1, "batch_size": 64},
        publish={
            "registry": str(tmp_path / "registry"),
            "items": {"path": str(tmp_path / "items.csv"), "id": "item"},
        },
        run={"threads": 1},
    )
    rows = [
        {"user": at % 7, "item": at % 30, "click": int(at % 7 == at % 30 % 7)} for at in range(420)
    ]
    job.train(rows, out=tmp_path / "run", progress=False)
    cases = [
        {},
        {"k": 3, "exclude": [1, 2, 99], "exact": True},
        {"only": [4, 5], "exact": False},
        {"only": []},
    ]
    with zl.serve(tmp_path / "registry", ["towers", "absent"], timeout=0) as server:
        with server.client() as http, server.client(grpc=True) as grpc:
            while not is_loaded(http, "towers"):
                assert server.is_running, server.log
                time.sleep(0.02)
            assert not http.is_ready() and not grpc.is_ready()
            for client in (http, grpc):
                with pytest.raises(zl.ServerError, match="^no version of model `absent`") as caught:
                    client.predict("absent", [{"user": 3}])
                assert caught.value.status == 503
            for case in cases:
                answer = http.retrieve("towers", {"user": 3}, **case)
                wanted = case.get("only", range(case.get("k", 10)))
                assert len(answer["items"]) == len(wanted)
                assert rounded(grpc.retrieve("towers", {"user": 3}, **case)) == rounded(answer)
            with pytest.raises(zl.JobError, match="ids of one type"):
                grpc.retrieve("towers", {"user": 3}, only=[1, "a"])


def is_loaded(client, model):
    """Returns whether a model of a server answers."""
    try:
        return bool(client.versions(model))
    except zl.ServerError as error:
        assert error.status == 503, error
        return False


def test_addresses_and_files_of_tls_are_checked(tmp_path):
    for url, files, message in (
        ("127.0.0.1:80", {}, "begins with none of http://"),
        ("ftp://host", {}, "begins with none of http://"),
        ("grpc://host", {"authority": __file__}, "begins with grpcs://"),
        ("https://host", {"authority": tmp_path / "none"}, "there is no file"),
        ("grpcs://host", {"certificate": __file__}, "without `key`"),
    ):
        with pytest.raises(zl.JobError, match=message):
            zl.Client(url, **files)


def test_tokens_and_tls_are_those_of_http(run, rows, tmp_path):
    registry = zl.Registry(tmp_path / "versions")
    run.publish(registry, "clicks", parity=rows[:20])
    certificate, key = make_certificate(tmp_path)
    entry = subprocess.run(
        [sys.executable, "-m", "zillion", "access", "token", "--name", "test", "--roles",
         "score,read"],
        capture_output=True,
        encoding="utf-8",
        check=True,
    )
    access = tmp_path / "access.toml"
    access.write_text(entry.stdout)
    token = next(word for word in entry.stderr.split() if word.startswith("zln_"))
    options = [
        "--tls-certificate", certificate, "--tls-key", key, "--auth", "token", "--access",
        str(access),
    ]
    with zl.serve(registry, "clicks", options=options, timeout=0) as server:
        assert server.url.startswith("https://")
        scores = []
        for grpc in (False, True):
            with server.client(grpc=grpc, authority=certificate, token=token) as client:
                while not client.is_ready():
                    assert server.is_running, server.log
                    time.sleep(0.02)
                scores.append(rounded(client.predict("clicks", inputs_of(rows[:3]))))
            with server.client(grpc=grpc, authority=certificate) as stranger:
                with pytest.raises(zl.ServerError) as caught:
                    stranger.predict("clicks", inputs_of(rows[:3]))
                assert caught.value.status == 401
            with server.client(grpc=grpc, token=token) as wary:
                with pytest.raises(zl.ServerError, match="no answer"):
                    wary.describe("clicks")
        assert scores[0] == scores[1]


def make_certificate(folder):
    """Writes a certificate of 127.0.0.1 that signs itself, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "zillion")])
    address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
    now = datetime.datetime.now(datetime.timezone.utc)
    day = datetime.timedelta(days=1)
    made = x509.CertificateBuilder(name, name, key.public_key(), 1, now - day, now + day)
    made = made.add_extension(x509.SubjectAlternativeName([address]), critical=False)
    made = made.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
    pem = serialization.Encoding.PEM
    files = {
        "server.pem": made.sign(key, hashes.SHA256()).public_bytes(pem),
        "server.key": key.private_bytes(
            pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        ),
    }
    for file, text in files.items():
        (folder / file).write_bytes(text)
        (folder / file).chmod(0o600)
    return str(folder / "server.pem"), str(folder / "server.key")


def test_values_of_several_kinds_are_texts():
    cases = [
        ([True, False], "BOOL", b"\x01\x00"),
        ([1, -2], "INT64", struct.pack("<2q", 1, -2)),
        ([1, 2**63], "UINT64", struct.pack("<2Q", 1, 2**63)),
        ([1, 2.5], "FP64", struct.pack("<2d", 1, 2.5)),
        ([7, None], "BYTES", b"\x01\0\0\x007\0\0\0\0"),
        (["é", 2.0], "BYTES", b"\x02\0\0\0\xc3\xa9\x01\0\0\x002"),
    ]
    for values, datatype, data in cases:
        (column,) = make_columns([{"a": value} for value in values]).values()
        assert list(column.tensors("a")) == [("a", datatype, 2, data)]
    (lists,) = make_columns([{"a": 1}, {"a": [2, 3]}, {"a": []}]).values()
    assert lists.lengths == [1, 2, 0] and lists.values == [1, 2, 3]
