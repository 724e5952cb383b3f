"""Compiles all kernels by NVRTC, without a GPU, and prints what they need and what they compute with.

    nvrtc.py LIBRARY KERNELS ARCH...

A line of JSON for each kernel: its unit, architecture, registers, spilled bytes, and the numbers of
its floating-point and atomic instructions in the intermediate code.
"""

import collections
import ctypes
import json
import pathlib
import re
import sys

OPTIONS = ["--fmad=false", "--std=c++17", "-default-device", "--ptxas-options=-v"]
HEADERS = ["zillion.cuh", "math.cuh", "half.cuh", "rules.cuh"]
# Instructions on floats, and atomic ones, with all their modifiers.
INSTRUCTION = re.compile(r"^\s*(?:@!?%p\d+\s+)?([a-z]\w*(?:\.[\w:]+)+)\s", re.M)


def strings(texts):
    return (ctypes.c_char_p * len(texts))(*[text.encode() for text in texts])


def compile_unit(library, folder, unit, arch):
    """Returns the log and the intermediate code of a unit."""
    program = ctypes.c_void_p()
    headers = [(folder / name).read_text() for name in HEADERS]
    source = (folder / f"{unit}.cu").read_text().encode()
    created = library.nvrtcCreateProgram(
        ctypes.byref(program), source, unit.encode(), len(HEADERS), strings(headers), strings(HEADERS)
    )
    assert created == 0, f"{unit}: the program was not created: {created}"
    options = [f"--gpu-architecture={arch}", *OPTIONS]
    compiled = library.nvrtcCompileProgram(program, len(options), strings(options))

    def text(size_of, read):
        size = ctypes.c_size_t()
        assert size_of(program, ctypes.byref(size)) == 0
        buffer = ctypes.create_string_buffer(size.value)
        assert read(program, buffer) == 0
        return buffer.value.decode()

    log = text(library.nvrtcGetProgramLogSize, library.nvrtcGetProgramLog)
    assert compiled == 0, f"{unit} for {arch}: {log}"
    return log, text(library.nvrtcGetPTXSize, library.nvrtcGetPTX)


def needs(log):
    """Returns the registers and the spilled bytes of each kernel."""
    found, kernel = {}, None
    for line in log.splitlines():
        if match := re.search(r"Compiling entry function '(\w+)'", line):
            kernel = found.setdefault(match[1], {"registers": 0, "spilled": 0})
        if match := re.search(r"(\d+) bytes spill stores, (\d+) bytes spill loads", line):
            kernel["spilled"] = int(match[1]) + int(match[2])
        if match := re.search(r"Used (\d+) registers", line):
            kernel["registers"] = int(match[1])
    return found


def instructions(ptx):
    """Returns how often each kernel has each instruction on floats, and each atomic one."""
    parts = re.split(r"\.entry\s+(\w+)", ptx)
    for name, body in zip(parts[1::2], parts[2::2]):
        found = INSTRUCTION.findall(body)
        wanted = [i for i in found if re.search(r"\.(f16|f32|f64|bf16|tf32)|^(atom|red)\.", i)]
        wanted = [i for i in wanted if not re.match(r"(ld|st|mov|selp|setp|cvt|abs|neg)\.", i) or ".ftz" in i]
        yield name, dict(collections.Counter(wanted))


def main():
    library, folder, *archs = sys.argv[1:]
    library, folder = ctypes.CDLL(library), pathlib.Path(folder)
    for arch in archs:
        for unit in sorted(path.stem for path in folder.glob("*.cu")):
            log, ptx = compile_unit(library, folder, unit, arch)
            used = needs(log)
            for kernel, counts in instructions(ptx):
                line = {"unit": unit, "arch": arch, "kernel": kernel, **used[kernel]}
                print(json.dumps({**line, "instructions": counts}))


main()
