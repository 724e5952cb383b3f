"""Packs a built library and the Python sources into a wheel, without a build tool.

    python3 pack.py LIBRARY VERSION FOLDER

The wheel that users get is built by maturin (docs/PYTHON.md). This one is for tests: it takes the
library that `cargo test` has just built, so nothing is compiled twice.
"""

import base64
import hashlib
import pathlib
import re
import sys
import zipfile

SOURCES = pathlib.Path(__file__).resolve().parents[2] / "python"


def main() -> None:
    library, version, folder = sys.argv[1:]
    project = (SOURCES / "pyproject.toml").read_text()
    scripts = re.search(r"^\[project\.scripts\]\n(.*?)\n\n", project, re.M | re.S).group(1)
    python = re.search(r'^requires-python = "(.*)"$', project, re.M).group(1)
    name = f"zillion-{version}-cp39-abi3-linux_x86_64.whl"
    info = f"zillion-{version}.dist-info"
    files = {
        str(path.relative_to(SOURCES)): path.read_bytes()
        for path in sorted((SOURCES / "zillion").rglob("*"))
        if path.suffix in (".py", ".pyi", ".typed")
    }
    files["zillion/_zillion.abi3.so"] = pathlib.Path(library).read_bytes()
    files[f"{info}/METADATA"] = (
        f"Metadata-Version: 2.1\nName: zillion\nVersion: {version}\nRequires-Python: {python}\n"
    ).encode()
    files[f"{info}/WHEEL"] = (
        b"Wheel-Version: 1.0\nGenerator: pack\nRoot-Is-Purelib: false\n"
        b"Tag: cp39-abi3-linux_x86_64\n"
    )
    entries = scripts.replace('"', "")
    files[f"{info}/entry_points.txt"] = f"[console_scripts]\n{entries}\n".encode()
    record = ""
    for path, data in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        record += f"{path},sha256={digest},{len(data)}\n"
    files[f"{info}/RECORD"] = (record + f"{info}/RECORD,,\n").encode()
    # Without compression, which would take longer than the tests.
    with zipfile.ZipFile(pathlib.Path(folder) / name, "w", zipfile.ZIP_STORED) as wheel:
        for path, data in files.items():
            wheel.writestr(path, data)
    print(pathlib.Path(folder) / name)


main()
