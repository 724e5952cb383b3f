"""The types of the package, as strict mypy sees them, and its reference."""

import pathlib
import subprocess
import sys

import zillion as zl

SOURCES = pathlib.Path(__file__).resolve().parents[2] / "python"


def test_the_package_is_typed(tmp_path):
    checked = subprocess.run(
        [sys.executable, "-m", "mypy", "--config-file", "pyproject.toml", "--cache-dir", tmp_path],
        cwd=SOURCES,
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr
    # A user's own program is checked against the types of the installed package.
    assert (pathlib.Path(zl.__file__).parent / "py.typed").exists()


def test_the_reference_is_built(tmp_path):
    built = subprocess.run(
        [sys.executable, SOURCES / "reference.py", tmp_path],
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    assert built.returncode == 0, built.stdout + built.stderr
    page = (tmp_path / "zillion.html").read_text()
    for name in zl.__all__:
        assert f'id="{name}"' in page or (tmp_path / "zillion" / f"{name}.html").exists(), name


def test_a_name_without_a_docstring_is_found(tmp_path):
    (tmp_path / "undocumented.py").write_text(
        '"""A module."""\n\n\n'
        'class Known:\n    """A class of ``first``."""\n\n'
        "    def __init__(self, first, second):\n        pass\n\n"
        "    def method(self):\n        pass\n\n"
        '    @property\n    def documented(self):\n        """A property."""\n\n\n'
        "def function():\n    pass\n"
    )
    script = (
        f"import sys; sys.path[:0] = [{str(SOURCES)!r}, {str(tmp_path)!r}]\n"
        "import reference\n"
        "print(*reference.list_missing(['undocumented']))"
    )
    found = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, encoding="utf-8", check=True
    )
    missing = ["Known.method", "Known.second", "function"]
    assert found.stdout.split() == [f"undocumented.{name}" for name in missing]
