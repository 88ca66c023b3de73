#!/usr/bin/env python3
"""Registers, stack, shared memory and blocks per multiprocessor of every kernel in the CUDA module that was built.

    kernels/cuda/resources.py [build/libweft_cuda.so] > kernels/cuda/RESOURCES.md
    kernels/cuda/resources.py --check [build/libweft_cuda.so]      # whether the page has the module's numbers

reads the machine code in the module itself, so it needs neither a GPU nor a toolkit; c++filt of binutils makes the
names readable.  hot.def says which kernels must not spill.  A check of a module that was not built for all GPUs leaves out
their columns, and names them.  Exit status: 0, 1 a hot kernel has more stack than its row allows or a row of hot.def names no kernel, 2 usage.

Machine code is ELF (machine 190) in fat binaries.  Attributes of a kernel: registers (0x2f) and bytes of stack (0x11)
in .nv.info, the most threads of its launch bounds (0x05) in .nv.info.KERNEL; static shared memory is the size of
.nv.shared.KERNEL.  The numbers agree with `ptxas -v` of CUDA 13.0."""
import fnmatch
import itertools
import pathlib
import re
import struct
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
FAT, CODE, CUDA = struct.pack("<I", 0xBA55ED50), 2, 190
MOST_THREADS, FRAME, REGISTERS = 0x05, 0x11, 0x2F

# architecture: KB of shared memory of a multiprocessor.  All have 65,536 registers, 2,048 threads and 32 blocks, and
# take 1 KB of shared memory per block (CUDA programming guide, "Technical Specifications per Compute Capability").
SHARED = {80: 164, 90: 228, 100: 228}
WORD = {80: "sm_80", 90: "sm_90a", 100: "sm_100"}
THREADS = 256  # threads of a block of kernels without launch bounds
EMPTY = 4  # registers of a kernel whose body is compiled for other GPUs only


FIRST = """# Resources of the CUDA kernels

What the compiler gave each kernel: `registers / bytes of stack / bytes of static shared memory /
blocks that run at once on a multiprocessor`. Stack is spilled registers and local arrays. For
sm_90a and sm_100 static shared memory includes the kilobyte that a block reserves. The numbers of
blocks follow from registers, threads and shared memory, static and dynamic; none was measured.

    kernels/cuda/resources.py > kernels/cuda/RESOURCES.md

writes this page from the module that was built, `build/libweft_cuda.so`, for A100, H100 and H200,
and B200; `./weft test --long resources` builds it for all of them. The test `resources` fails if
the page is old, or if a hot kernel spills, on a GPU that the module was built for.

## Hot kernels

The kernels of [`hot.def`](hot.def), with the threads and the dynamic shared memory of their
launches.
"""

SECOND = """
## All kernels

One row per kernel: the least and the most of its variants (types, tile sizes, steps of an op).
Blocks count 256 threads where launch bounds give no number, and no dynamic shared memory. Kernels
with four registers are empty on that GPU. CUB's sort kernels are left out. Compiled by:
VERSION.
"""


def programs(data):
    """Architecture and ELF of each program in a module or an object."""
    at = data.find(FAT)
    while at >= 0:
        header, size = struct.unpack_from("<HQ", data, at + 6)
        at, end = at + header, at + header + size
        while at < end:
            kind, _, header, size = struct.unpack_from("<HHIQ", data, at)
            arch, = struct.unpack_from("<I", data, at + 28)
            if kind == CODE:
                yield arch, data[at + header:at + header + size]
            at += header + size
        at = data.find(FAT, end)


def text_at(elf, at):
    return elf[at:elf.index(b"\0", at)].decode()


def sections(elf):
    """Name: offset, size and link of each section; and the headers."""
    table, = struct.unpack_from("<Q", elf, 40)
    entry, count, names = struct.unpack_from("<HHH", elf, 58)
    rows = [struct.unpack_from("<IIQQQQIIQQ", elf, table + i * entry) for i in range(count)]
    return {text_at(elf, rows[names][4] + row[0]): (row[4], row[5], row[6]) for row in rows}, rows


def attributes(data):
    at = 0
    while at + 4 <= len(data):
        form, name, value = struct.unpack_from("<BBH", data, at)
        at += 4
        yield name, data[at:at + value] if form == 4 else value
        at += value if form == 4 else 0


def kernels(elf):
    """Mangled name: registers, bytes of stack, bytes of static shared memory, most threads (0: no launch bounds)."""
    named, rows = sections(elf)
    at, size, link = named[".symtab"]
    symbols = [text_at(elf, rows[link][4] + struct.unpack_from("<I", elf, at + 24 * i)[0]) for i in range(size // 24)]
    at, size, _ = named[".nv.info"]
    found = {}
    for name, value in attributes(elf[at:at + size]):
        if name in (REGISTERS, FRAME):
            symbol, number = struct.unpack("<II", value)
            found.setdefault(symbols[symbol], {})[name] = number
    made = {}
    for kernel, of in found.items():
        if f".nv.info.{kernel}" not in named:
            continue
        at, size, _ = named[f".nv.info.{kernel}"]
        bounds = [struct.unpack("<III", v) for n, v in attributes(elf[at:at + size]) if n == MOST_THREADS]
        threads = bounds[0][0] * bounds[0][1] * bounds[0][2] if bounds else 0
        made[kernel] = (of[REGISTERS], of.get(FRAME, 0), named.get(f".nv.shared.{kernel}", (0, 0, 0))[1], threads)
    return made


def readable(names):
    """Demangled names without return type and arguments."""
    said = subprocess.run(["c++filt"], input="\n".join(names), capture_output=True, text=True, check=True).stdout
    short = [re.sub(r"^void ", "", line) for line in said.splitlines()]
    return [re.sub(r"\(anonymous namespace\)::", "", name).split("(")[0] if "<" not in name else before_arguments(name)
            for name in short]


def before_arguments(name):
    depth = 0
    for i, letter in enumerate(name):
        depth += (letter == "<") - (letter == ">")
        if letter == "(" and depth == 0:
            return name[:i]
    return name


class Hot:
    """A row of hot.def."""

    def __init__(self, name, *numbers_and_doc):
        self.name, self.doc = name, numbers_and_doc[-1]
        self.threads, self.dynamic, self.stack = map(int, numbers_and_doc[:3])

    def takes(self, name):
        return fnmatch.fnmatchcase(name, self.name.replace("[", "[[]"))


def hot_rows():
    text = (HERE / "hot.def").read_text()
    return [Hot(*row) for row in re.findall(r'^HOT \("([^"]+)", (\d+), (\d+), (\d+),\s+"([^"]*)"\)', text, re.M)]


def blocks(arch, use, hot):
    """Blocks that run at once on a multiprocessor."""
    registers, _, shared, threads = use
    threads = (hot.threads if hot else 0) or threads or THREADS
    shared += (hot.dynamic if hot else 0) + (0 if arch >= 90 and shared >= 1024 else 1024)
    warps = (threads + 31) // 32
    return min(32, 2048 // threads, 65536 // (warps * 32 * (-(-registers // 8) * 8)), SHARED[arch] * 1024 // shared)


def read(path):
    """Readable name: {architecture: use}."""
    found = {}
    for arch, elf in programs(path.read_bytes()):
        for name, use in kernels(elf).items():
            found.setdefault(name, {})[arch] = use
    names = [name for name in found if "cub" not in name]
    made = {}
    for name, mangled in sorted(zip(readable(names), names)):
        made[name if name not in made else f"{name} ({mangled})"] = found[mangled]
    return made


def cell(values):
    """One value, or the least and the most of several."""
    return str(values[0]) if len(set(values)) == 1 else f"{min(values)} to {max(values)}"


def hot_table(found, rows):
    yield "| kernel | threads | dynamic shared | " + " | ".join(WORD.values()) + " | ops |"
    yield "|---|---|---|---|---|---|---|"
    for row in rows:
        for name in filter(row.takes, found):
            cells = [" / ".join(map(str, (*found[name][arch][:3], blocks(arch, found[name][arch], row))))
                     if arch in found[name] else "-" for arch in WORD]
            threads = row.threads or max(use[3] for use in found[name].values())
            yield f"| `{name}` | {threads} | {row.dynamic} | " + " | ".join(cells) + f" | {row.doc} |"


def whole_table(found):
    groups = {}
    for name, use in found.items():
        groups.setdefault(name.split("<")[0], []).append(use)
    yield "| kernel | variants | " + " | ".join(WORD.values()) + " |"
    yield "|---|---|---|---|---|"
    for name, uses in groups.items():
        cells = []
        for arch in WORD:
            of = [use[arch] for use in uses if arch in use]
            cells.append(" / ".join([*(cell([use[i] for use in of]) for i in range(3)),
                                     cell([blocks(arch, use, None) for use in of])]) if of else "-")
        yield f"| `{name}` | {len(uses)} | " + " | ".join(cells) + " |"


def complaints(found, rows):
    for row in rows:
        names = [name for name in found if row.takes(name)]
        if not names:
            yield f"hot.def: found no kernel {row.name}"
        for name in names:
            if set(found[name]) == set(WORD) and max(use[0] for use in found[name].values()) <= EMPTY:
                yield f"{name}: found it empty on every GPU, wanted code for one: see the architectures in module.cmake"
            for arch, use in found[name].items():
                if use[1] > row.stack:
                    yield f"{name}: found {use[1]} bytes of stack on {WORD[arch]}, wanted at most {row.stack}"


def page(found, rows, version):
    tables = (list(hot_table(found, rows)), list(whole_table(found)))
    return "\n".join([FIRST, *tables[0], SECOND.replace("VERSION", version), *tables[1]]) + "\n"


def of_gpus(text, built):
    """The lines of a page; tables without the columns of GPUs for which the module was not built."""
    dropped = set()
    for line in text.splitlines() + [""]:
        cells = line.split(" | ")
        if line.startswith("| kernel"):
            dropped = {i for i, cell in enumerate(cells) for arch, word in WORD.items()
                       if arch not in built and word == cell.rstrip(" |")}
        yield " | ".join(cell for i, cell in enumerate(cells) if not line.startswith("|") or i not in dropped)


def check(made, version, built):
    """Compares the page with the page of the built module; prints the first line that differs."""
    old = (HERE / "RESOURCES.md").read_text()
    if version not in old:
        print(f"resources.py: the page is of another compiler than {version}", file=sys.stderr)
        return []
    differing = [(a, b) for a, b in itertools.zip_longest(of_gpus(old, built), of_gpus(made, built)) if a != b]
    return [f"RESOURCES.md is old: found {a}\n  wanted {b}"
            "\n  kernels/cuda/resources.py > kernels/cuda/RESOURCES.md writes it again" for a, b in differing[:1]]


def main():
    words = sys.argv[1:]
    compares = words[:1] == ["--check"]
    words = words[compares:]
    path = pathlib.Path(words[0] if words else HERE.parent.parent / "build/libweft_cuda.so")
    if len(words) > 1 or not path.exists():
        print(f"resources.py: found no {path}, wanted the CUDA module", file=sys.stderr)
        return 2
    found, rows = read(path), hot_rows()
    built = {arch for use in found.values() for arch in use} & set(WORD)
    lacking = ", ".join(word for arch, word in WORD.items() if arch not in built)
    if lacking and not (compares and built):
        print(f"resources.py: {path}: found no code for {lacking}, wanted it: exec_gpu/cuda/module.cmake says how "
              "to build for all GPUs", file=sys.stderr)
        return 2
    if lacking:
        print(f"resources.py: {path} has no code for {lacking}: not checked", file=sys.stderr)
    version = re.search(rb"Cuda compilation tools, release [^\0\n]*", path.read_bytes())
    version = version.group().decode() if version else "an unknown compiler"
    said, made = list(complaints(found, rows)), page(found, rows, version)
    if compares:
        said += check(made, version, built)
    else:
        sys.stdout.write(made)
    for line in said:
        print(f"resources.py: {line}", file=sys.stderr)
    return 1 if said else 0


if __name__ == "__main__":
    sys.exit(main())
