"""The document of the results.  Every program's output is read as far as it was written: a program that failed or
was stopped loses no line."""
import csv
import io
import json
import math
import statistics

from running import text_of

# metrics of ncu: how a kernel spends its time, and the limits of its occupancy
METRICS = ("gpu__time_duration.sum", "sm__throughput.avg.pct_of_peak_sustained_elapsed",
           "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed",
           "dram__bytes.sum.per_second", "sm__warps_active.avg.pct_of_peak_sustained_active",
           "launch__registers_per_thread", "launch__occupancy_limit_registers",
           "launch__occupancy_limit_shared_mem", "launch__waves_per_multiprocessor")


def lines_of(path):
    """The JSON objects of a file that has one object in a line; other lines are left out."""
    rows = []
    for line in text_of(path).splitlines():
        try:
            row = json.loads(line)
        except ValueError:
            continue
        if isinstance(row, dict):
            rows.append(row)
    return rows


def trained(path, model):
    """Summary of the output of `weft train --json`, without the first steps; None: no step is left."""
    rows = lines_of(path)
    steps = [r for r in rows if "step" in r and r.get("time_s")][model.warm_up:]
    if not steps:
        return None
    times = [r["time_s"] for r in steps]
    middle = statistics.median(times)
    last = steps[-1]
    return {"steps": len(steps), "time_s": middle, "least_s": min(times), "most_s": max(times),
            "tokens_per_s": model.tokens() / middle,
            "mfu": last["mfu"] * last["time_s"] / middle if last.get("mfu") else None,
            "peak_bytes": last.get("peak_bytes"), "loss": last.get("loss"),
            "reserved_bytes": next((r["reserved_bytes"] for r in rows if "reserved_bytes" in r), None)}


def twin(path):
    rows = [r for r in lines_of(path) if "tokens_per_s" in r]
    return rows[-1] if rows else None


def counters(path, op):
    """Rows of `ncu --csv --page raw`: one kernel a row, its metrics by name."""
    text = text_of(path)
    begin = text.find('"ID"')
    rows = []
    for row in csv.DictReader(io.StringIO(text[begin:])) if begin >= 0 else ():
        kept = {"op": op, "kernel": row.get("Kernel Name")}
        for metric in METRICS:
            try:
                kept[metric] = float((row.get(metric) or "").replace(",", ""))
            except ValueError:
                continue
        if len(kept) > 2:
            rows.append(kept)
    return rows


def choices(folder, kind):
    """The choices of algorithms in the files of a kind (kernels/cuda/trial.h), as rows of words."""
    rows = []
    for path in sorted(folder.glob(f"weft/{kind}-*.txt")):
        machine, *lines = text_of(path).splitlines() or [""]
        for line in lines:
            row = {"machine": machine}
            for word in line.split(" ")[1:]:
                key, _, value = word.partition("=")
                try:
                    row[key] = json.loads(value)
                except ValueError:
                    row[key] = value
            rows.append(row)
    return rows


def training(run, model):
    """The row of a model: Weft, its twin, and the ratio to the fastest variant of the twin."""
    mine = run.summaries.get(model.name)
    twins = {name: run.summaries[name] for name in run.summaries
             if name.startswith(f"{model.name}-torch") and run.summaries[name]}
    best = max((t["tokens_per_s"] for t in twins.values()), default=None)
    return {"model": model.name, "layers": str(model.layers or "all"), "seq_length": model.sequence,
            "micro_batch_size": model.micro, "global_batch_size": model.batch, "precision": "bf16",
            "flags": " ".join(model.flags), "weft": mine, "torch": twins.get(f"{model.name}-torch"),
            "weft_of_torch": mine["tokens_per_s"] / best if mine and best else None}


def document(run):
    lines = [row for name in ("libraries", "ceilings") for row in lines_of(run.out(name))]
    kernel_rows = [row for part in run.parts if part.kind == "kernels" for row in run.kernel_rows.get(part.name, ())]
    made = {"schema": "weft.gpu/2", "runs": run.runs, "date": run.date, "gpu": run.m.gpu,
            **({"why": run.m.why} if run.m.why else {}), "seconds": round(run.elapsed()),
            "way": {"used": run.way_word(), "tried": run.tried}, "parts": run.records,
            "device": next((r for r in lines if "device" in r), None),
            "libraries": [r for r in lines if "library" in r], "ceilings": [r for r in lines if "ceiling" in r],
            "training": [training(run, model) for model in run.models],
            "variants": {p.name: run.summaries.get(p.name) for p in run.parts
                         if p.kind in ("train", "twin") and p.name != p.model and p.runs in run.runs},
            "kernels": kernel_rows, "counters": run.counters,
            "products": choices(run.cache, "products"), "attention": choices(run.cache, "attention")}
    # one row in a line, so that a diff of two versions shows the changed rows
    return "{" + ",\n".join(f"{json.dumps(key)}:{rows_of(value)}" for key, value in made.items()) + "}\n"


def rows_of(value):
    if isinstance(value, list) and value:
        return "[\n" + ",\n".join(json.dumps(finite(row)) for row in value) + "]"
    return json.dumps(finite(value))


def finite(value):
    """Returns the value with null in place of NaN and infinities, which JSON lacks."""
    if isinstance(value, dict):
        return {key: finite(of) for key, of in value.items()}
    if isinstance(value, list):
        return [finite(of) for of in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
