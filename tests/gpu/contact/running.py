"""Programs with limits, and the clocks of the GPU meanwhile."""
import os
import pathlib
import signal
import subprocess
import time

LATE = 124  # exit status of a program that exceeded its limit, as timeout(1) returns
PAUSE = 0.02


def end_group(process, patience):
    """Ends a program and what it started.  Does not wait for a process in uninterruptible sleep."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
        except ProcessLookupError:
            pass
        try:
            process.wait(patience)
        except subprocess.TimeoutExpired:
            continue
        if number == signal.SIGTERM:
            continue  # children of the program may still run; SIGKILL ends the rest of the process group
        return


def run(command, env, out, err, limit, idle=None):
    """Runs a command with stdout and stderr in files, for at most `limit` seconds, and at most `idle` seconds
    without output; returns its exit status, or LATE."""
    with open(out, "wb") as to, open(err, "wb") as complaints:
        try:
            process = subprocess.Popen([str(word) for word in command], env={**os.environ, **env}, stdout=to,
                                       stderr=complaints, stdin=subprocess.DEVNULL, start_new_session=True)
        except OSError as error:
            complaints.write(f"{error.filename or command[0]}: {error.strerror}\n".encode())
            return 127
    begin = last = time.monotonic()
    size = 0
    while process.poll() is None:
        now = time.monotonic()
        grown = os.path.getsize(out)
        if grown != size:
            size, last = grown, now
        if now - begin > limit or (idle and now - last > idle):
            end_group(process, min(5, limit))
            return LATE
        time.sleep(PAUSE)
    return process.returncode if process.returncode >= 0 else 128 - process.returncode


def said(path):
    """The last line of a file that is not empty, or an empty text."""
    lines = [line for line in text_of(path).splitlines() if line.strip()]
    return lines[-1][:300] if lines else ""


def text_of(path):
    path = pathlib.Path(path)
    return path.read_text(errors="replace") if path.exists() else ""


# ------------------------------------------------------------------------------------- clocks

CLOCKS = "clocks.sm,clocks.mem,power.draw,temperature.gpu,clocks_event_reasons.active"
# nvmlClocksEventReasons of NVIDIA's nvml.h
REASONS = {0x2: "application clocks", 0x4: "power cap", 0x8: "hardware slowdown", 0x10: "sync boost",
           0x20: "heat (software)", 0x40: "heat (hardware)", 0x80: "power brake", 0x100: "display clocks"}


class Clocks:
    """Samples clocks, power, temperature and reasons of throttling while a program runs."""

    def __init__(self, file):
        self.file = file
        self.process = None

    def __enter__(self):
        with open(self.file, "wb") as to:
            try:
                self.process = subprocess.Popen(
                    ["nvidia-smi", f"--query-gpu={CLOCKS}", "--format=csv,noheader,nounits", "-lms", "200"], stdout=to,
                    stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL, start_new_session=True)
            except OSError:
                pass
        return self

    def __exit__(self, *_):
        if self.process:
            end_group(self.process, 1)

    def summary(self):
        """The samples in which the GPU drew at least half of the largest power, that is, worked; None: no sample."""
        rows = []
        for line in text_of(self.file).splitlines():
            try:
                *numbers, reasons = line.split(",")
                sm, memory, power, heat = map(float, numbers)
                rows.append((sm, memory, power, heat, int(reasons.strip(), 16)))
            except ValueError:
                continue
        rows = [row for row in rows if row[2] >= 0.5 * max(r[2] for r in rows)]
        if not rows:
            return None

        def spread(column):
            values = sorted(row[column] for row in rows)
            return [values[0], values[len(values) // 2], values[-1]]

        reasons = {word: sum(bool(row[4] & bit) for row in rows) for bit, word in REASONS.items()}
        return {"samples": len(rows), "sm_mhz": spread(0), "memory_mhz": spread(1), "power_w": spread(2),
                "celsius": spread(3), "limited_by": {word: n for word, n in reasons.items() if n}}
