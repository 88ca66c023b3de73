"""Everything that needs a GPU, in two runs.

    run.sh [FLAGS] [RESULTS]     in the repository (programs are built first), or in a folder made by pack.sh

Run A, three minutes: the machine, its libraries and ceilings, every kernel test, a nano model, attention; then,
for what failed, the same program with CUDA_LAUNCH_BLOCKING=1, which names the op, and compute-sanitizer for
each failed op.  Run B, nine minutes: training, every kernel, hardware counters, the twins in PyTorch, what
predictions need.  A part that fails or exceeds its limit stops no other.  If a part that trains fails, it runs
again without warpgroup kernels, then with attention of cuDNN; the following parts begin with what worked.

RESULTS is a folder; default: $OUT if set, otherwise gpu-results.  It gets at most eight files:
bench/results/README.md describes them.  The document is rewritten after each part, and cache.tar.gz, the choices
of algorithms, is where a later run with the same RESULTS or --cache begins.

Exit status: 0 all parts passed, 1 a part did not pass, 2 usage, 3 there is no GPU."""
import argparse
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time

import machine
import parts as tables
import results as outcomes
import running

LIMITS = {"A": 175, "B": 535}  # seconds of a run: run A is short, and B fits into a command of ten minutes
SANITIZED = 4                  # failed ops that compute-sanitizer looks at
IDLE = 30                      # seconds after which a kernel that prints nothing hangs; the first one loads libraries


def tell(text):
    print(f"run.sh: {text}", file=sys.stderr, flush=True)


class Run:
    def __init__(self, a, m, folder, scratch):
        self.m, self.runs, self.factor, self.anyway = m, a.run, a.limits, a.anyway
        self.only = set(a.only.split(",")) if a.only else None
        self.results, self.scratch, self.cache = folder, scratch, scratch / "cache"
        self.begin, self.date = time.monotonic(), time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        self.seconds = a.seconds or sum(LIMITS[r] for r in a.run)
        self.records, self.summaries, self.kernel_rows, self.counters, self.tried = [], {}, {}, [], []
        self.way, self.failed_ops, self.suspects, self.archived = 0, [], [], []
        self.models = tables.models(m.memory, a.tiny)
        self.parts = tables.all_parts(m, folder, self.models, gpu_tests(m))

    def out(self, name):
        return self.scratch / f"{name}.out"

    def err(self, name):
        return self.scratch / f"{name}.err"

    def elapsed(self):
        return time.monotonic() - self.begin

    def way_word(self):
        return tables.WAYS[self.way][0]

    # ------------------------------------------------------------------------- one program

    def record(self, name, status, code=0, seconds=0.0, said="", **more):
        self.records.append({"part": name, "status": status, "exit": code, "seconds": round(seconds, 1), "said": said,
                             **more})
        tell(f"{name:24} {status:8} {seconds:5.0f} s  {said}")
        self.write()

    def program(self, name, command, env, limit, idle=None):
        """Runs a program, and appends its output to the log; returns its exit status and seconds."""
        left = self.seconds - self.elapsed()
        begin = time.monotonic()
        status = running.run(command, {**self.m.ours, "XDG_CACHE_HOME": str(self.cache), "WEFT_PART": name, **env},
                             self.out(name),
                             self.err(name), min(limit * self.factor, left), idle and idle * self.factor)
        with open(self.results / "log.txt", "a", encoding="utf-8") as log:
            words = " ".join(f"{k}={v}" for k, v in env.items())
            log.write(f"\n==== {name}: {words} {' '.join(map(str, command))}\n")
            log.write(running.text_of(self.out(name)) + running.text_of(self.err(name)))
        return status, time.monotonic() - begin

    def may_start(self, part):
        if not self.m.gpu and not self.anyway:
            self.record(part.name, "skipped", said=f"no GPU: {self.m.why}")
        elif self.m.gpu and self.m.memory < part.least:
            self.record(part.name, "skipped", said=f"found {self.m.memory:.0f} MiB of GPU memory, wanted {part.least}")
        elif self.seconds - self.elapsed() < 5 * min(1, self.factor):
            self.record(part.name, "late", said=f"no time was left of {self.seconds} s")
        else:
            return True
        return False

    def outcome(self, name, status):
        """The outcome of a program, as a word, from its exit status and output."""
        both = running.text_of(self.out(name)) + running.text_of(self.err(name))
        if status == 0:
            return "skipped" if "[  PASSED  ] 0 test" in both else "passed"
        return "late" if status == running.LATE else "failed"

    # --------------------------------------------------------------------------- one part

    def part(self, part):
        if not self.may_start(part):
            return
        if part.kind == "kernels":
            self.kernels(part)
            return
        if part.kind == "ncu" and not shutil.which("ncu"):
            self.record(part.name, "skipped", said="ncu not found")
            return
        ways = [w for w in part.ways if w >= self.way] or [part.ways[-1]]
        for way in ways:
            status = self.attempt(part, way)
            if len(part.ways) > 1:
                self.tried.append({"part": part.name, "way": tables.WAYS[way][0], "status": status})
            if status == "passed" and way > self.way:
                self.way = way
                tell(f"the following parts run with: {self.way_word()}")
            if status in ("passed", "skipped") or self.elapsed() > self.seconds:
                break
        self.write()

    def attempt(self, part, way):
        """Runs a part in one way (tables.WAYS); returns its outcome as a word."""
        word, env, flags = tables.WAYS[way]
        command = replace_flags(part.command, flags)
        if part.kind == "ncu":
            command = ["ncu", "--clock-control", "none", "--csv", "--page", "raw", "--launch-count", "8", "--metrics",
                       ",".join(outcomes.METRICS), *command]
        with running.Clocks(self.scratch / "clocks") if part.kind in ("train", "twin") else Nothing() as clocks:
            code, seconds = self.program(part.name, command, {**part.env, **env}, part.limit)
        self.take(part, clocks)
        status = self.outcome(part.name, code)
        if status in ("failed", "late"):
            self.suspects.append((part, command, {**part.env, **env}))
        more = {"way": word} if len(part.ways) > 1 else {}
        self.record(part.name, status, code, seconds, "" if status == "passed" else running.said(self.err(part.name)),
                    **more)
        return status

    def take(self, part, clocks):
        """Reads the output of a part."""
        model = next((model for model in self.models if model.name == part.model), None)
        if part.kind == "train":
            found = outcomes.trained(self.out(part.name), model)
        elif part.kind == "twin":
            found = outcomes.twin(self.out(part.name))
        else:
            found = None
        if found:
            self.summaries[part.name] = {**found, "clocks": clocks.summary()}
        if part.kind == "ncu":
            self.counters += outcomes.counters(self.out(part.name), part.command[-1])
        if part.kind == "costs" and (costs := self.results / f".{part.model}.costs").exists():
            with open(self.results / f"{self.m.stem}.costs", "a", encoding="utf-8") as table:
                table.write(costs.read_text())
            costs.unlink()

    def kernels(self, part):
        """Runs a benchmark of kernels, and again behind each op that faults or hangs."""
        rows, command, seconds, code = self.kernel_rows.setdefault(part.name, []), part.command, 0.0, 1
        failed, words = [], []
        while code and seconds < part.limit * self.factor and self.elapsed() < self.seconds:
            code, took = self.program(part.name, command, part.env, part.limit - seconds / self.factor, IDLE)
            seconds += took
            lines = outcomes.lines_of(self.out(part.name))
            rows += [{**row, **part.env} for row in lines if "seconds" in row]
            begun = [row for row in lines if "begins" in row]
            if code and not begun:
                break
            if code:
                op = begun[-1]
                words.append(self.outcome(part.name, code))
                rows.append({"model": part.model, "op": op["begins"], "status": words[-1],
                             "said": running.said(self.err(part.name))})
                failed.append(op["begins"])
                self.failed_ops.append((part.model, op["begins"], part.env.get("WEFT_WARPGROUPS")))
                command = [*part.command, "--from", str(op["number"] + 1)]
            self.write()
        if "failed" in words or code not in (0, running.LATE):
            status = "failed"
        else:
            status = "late" if code or words else "passed"
        said = f"failed: {', '.join(failed)}" if failed else running.said(self.err(part.name)) if code else ""
        self.record(part.name, status, code, seconds, said)

    # ------------------------------------------------------------------------ what failed

    def look_closer(self):
        """For each part that failed: launches that wait, so that the error names its op; then compute-sanitizer for
        each op that is known to fail."""
        for part, command, env in self.suspects[:SANITIZED]:
            if part.kind == "twin" or part.command[0] not in (self.m.weft, self.m.tests, self.m.bench):
                continue
            value = env.get("WEFT_WARPGROUPS")
            self.known_ops(part.name, value)
            name = f"{part.name}-blocking"
            if not self.elsewise(name, command, {**env, "CUDA_LAUNCH_BLOCKING": "1"}, part.limit):
                self.known_ops(name, value)
        # ops of the kernel tests first: their operands are small
        failed = sorted(dict.fromkeys(self.failed_ops), key=lambda found: found[0] is not None)
        for model, op, value in failed[:SANITIZED]:
            program = [self.m.tests, "gpu_kernels", "--", op] if model is None else \
                [self.m.bench, "--once", "--model", model, "--op", op]
            self.elsewise("-".join(filter(None, ("sanitizer", model or "test", op, value))),
                          ["compute-sanitizer", "--tool", "memcheck", "--error-exitcode", "9", *program],
                          {"WEFT_WARPGROUPS": value} if value else {}, 60)

    def elsewise(self, name, command, env, limit):
        """A part that is not in the tables, because it runs only if something failed."""
        if self.seconds - self.elapsed() < 5 * min(1, self.factor):
            self.record(name, "late", said=f"no time was left of {self.seconds} s")
            return False
        code, seconds = self.program(name, command, env, limit)
        both = running.text_of(self.out(name)) + running.text_of(self.err(name))
        status = "skipped" if "Device not supported" in both or code == 127 else self.outcome(name, code)
        self.record(name, status, code, seconds, "" if status == "passed" else running.said(self.err(name)))
        return status == "passed"

    def known_ops(self, name, value):
        """Adds the ops that a program's messages name: `OP: status 1` of the kernel tests, `rank 0: OP (` of a step."""
        for stream in (self.out(name), self.err(name)):
            text = running.text_of(stream)
            tested = re.findall(r"^(?:.*\] )?(\w+): (?:status|signal) \d+", text, re.M)
            ran = re.findall(r"rank \d+: (\w+) \(", text)
            self.failed_ops += [(None, op, value) for op in tested]
            self.failed_ops += [(self.models[0].name, op, value) for op in ran]

    # --------------------------------------------------------------------------- document

    def write(self):
        """Replaces atomically the document, and the archive of chosen algorithms if it changed."""
        new = self.results / f".{self.m.stem}.json"
        new.write_text(outcomes.document(self))
        os.replace(new, self.results / f"{self.m.stem}.json")
        stamp = sorted((path.name, path.stat().st_mtime_ns) for path in self.cache.glob("weft/*.txt"))
        if stamp != self.archived:
            self.archived = stamp
            new = self.results / ".cache.tar.gz"
            with tarfile.open(new, "w:gz") as archive:
                archive.add(self.cache / "weft", "weft")
            os.replace(new, self.results / "cache.tar.gz")

    def everything(self):
        for part in self.parts:
            if set(part.runs) & set(self.runs) and (not self.only or part.name in self.only):
                self.part(part)
        if (self.m.gpu or self.anyway) and not self.only:
            self.look_closer()
        self.write()


def replace_flags(command, flags):
    """The command with these flags, each with a value, in place of its own flags of the same name."""
    command = list(command)
    for flag in flags[::2]:
        if flag in command:
            at = command.index(flag)
            del command[at:at + 2]
    return command + flags


class Nothing:
    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    @staticmethod
    def summary():
        return None


def gpu_tests(m):
    """Names of the test files in test_gpu, which it lists without leading blanks."""
    try:
        said = subprocess.run([str(m.tests)], env={**os.environ, **m.ours}, capture_output=True, text=True, timeout=20,
                              check=False).stdout
    except (OSError, subprocess.TimeoutExpired):
        said = ""
    found = [line for line in said.splitlines() if line.startswith("gpu_")]
    return found or ["gpu_kernels", "gpu_processes", "gpu_train"]


def unpack(archive, to):
    """Unpacks the algorithms that an earlier run chose; an unreadable archive counts as empty."""
    try:
        with tarfile.open(archive) as tar:
            for member in tar.getmembers():
                name = pathlib.PurePath(member.name).name
                if member.isfile() and re.fullmatch(r"(products|attention)-[0-9a-f]+\.txt", name):
                    (to / "weft").mkdir(parents=True, exist_ok=True)
                    (to / "weft" / name).write_bytes(tar.extractfile(member).read())
    except (OSError, tarfile.TarError) as error:
        tell(f"{archive}: {error}: no choices of an earlier run are used")


def build(root):
    """Builds the programs of the repository."""
    for command in ([root / "weft", "--no-install", "knobs"], ["ninja", "-C", root / "build", "all"]):
        if subprocess.run(command, stdout=subprocess.DEVNULL, check=False).returncode == 0:
            continue
        tell("the build failed: a GPU machine may lack our libraries, tests/gpu/pack.sh packs them")
        sys.exit(2)


def arguments():
    parser = argparse.ArgumentParser(prog="run.sh", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("results", nargs="?", metavar="RESULTS", default=os.environ.get("OUT") or "gpu-results")
    parser.add_argument("--run", choices=("A", "B", "AB"), default="AB", help="one of the two runs; default: both")
    parser.add_argument("--only", metavar="PART[,PART...]", help="run only these parts")
    parser.add_argument("--list", action="store_true", help="print the parts and their limits, and run nothing")
    parser.add_argument("--tiny", action="store_true", help="nano models instead of the compared models")
    parser.add_argument("--build", metavar="DIR", help="use the programs in DIR and build nothing")
    parser.add_argument("--cache", metavar="FILE", help="begin with the choices in cache.tar.gz of another run")
    parser.add_argument("--seconds", type=float, help="limit of all parts together")
    parser.add_argument("--limits", type=float, default=1, metavar="FACTOR", help="multiplies the limit of each part")
    parser.add_argument("--anyway", action="store_true", help="run the parts even if no GPU was found")
    return parser.parse_args()


def main():
    a = arguments()
    here = pathlib.Path(__file__).resolve().parent.parent
    if not (here / "bin/weft").exists() and not a.build and not a.list:
        build(here.parent.parent)
    m = machine.Machine(here, a.build)
    folder = pathlib.Path(a.results).resolve()
    if a.list:
        for part in tables.all_parts(m, folder, tables.models(m.memory, a.tiny), gpu_tests(m)):
            if set(part.runs) & set(a.run):
                print(f"{part.name:28} {part.runs:2} {part.limit:4} s")
        return 0
    folder.mkdir(parents=True, exist_ok=True)
    for old in ("log.txt", f"{m.stem}.costs"):
        (folder / old).unlink(missing_ok=True)
    with tempfile.TemporaryDirectory(prefix="weft-gpu-") as scratch:
        run = Run(a, m, folder, pathlib.Path(scratch))
        for archive in (a.cache, folder / "cache.tar.gz"):
            if archive and pathlib.Path(archive).exists():
                unpack(archive, run.cache)
        if m.why:
            tell(f"no GPU: {m.why}")
        run.everything()
    words = [record["status"] for record in run.records]
    tell(f"{folder}/{m.stem}.json: {words.count('passed')} passed of {len(words)} parts, {run.elapsed():.0f} s")
    return 3 if not m.gpu else int(any(word in ("failed", "late") for word in words))


if __name__ == "__main__":
    try:
        sys.exit(main())
    except BrokenPipeError:
        sys.exit(1)
