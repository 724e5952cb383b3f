"""The library ONNX Runtime of the package `onnxruntime`, for versions that are ONNX files."""

from __future__ import annotations

import importlib.util
import os
import pathlib

# The variable with the path of the library, which the program reads.
LIBRARY = "ORT_DYLIB_PATH"


def name_library() -> None:
    """Names the library of the package `onnxruntime` in the environment, if it is installed.

    A path that is named already stays. The library is not loaded.
    """
    if os.environ.get(LIBRARY):
        return
    spec = importlib.util.find_spec("onnxruntime")
    for folder in (spec.submodule_search_locations or []) if spec is not None else []:
        found = sorted(pathlib.Path(folder, "capi").glob("libonnxruntime.so*"))
        if found:
            os.environ[LIBRARY] = os.fspath(found[-1])
            return


__all__ = ["name_library"]
