#!/usr/bin/env python3
"""Writes the traces of this folder: what the PyTorch profiler and Nsight Systems write for three
steps of gpt2-nano on four GPUs, with two tensor parallel and two data parallel ranks.

Members of the JSON files are those of pytorch/kineto libkineto/src/output_json.cpp and of
torch/csrc/profiler/util.cpp (saveNcclMeta); tables and columns of the database are those of NVIDIA's
"SQLite Schema Reference". Names of kernels are real, times are invented: each rank has the same step
of 1000 us, and rank r is r us later. tests/interop/test_traces.c has the sums.

    python3 tests/traces/make_traces.py tests/traces
"""

import gzip
import json
import os
import sqlite3
import sys

STEP = 1000  # us
START = 1_700_000_000_000_000  # us since 1970, as Kineto writes them

TENSOR = {"Collective name": "allreduce", "Group size": 2, "Process Group Name": "3",
          "Process Group Description": "TENSOR_MODEL_PARALLEL_GROUP", "dtype": "BFloat16",
          "In msg nelems": 8192, "Out msg nelems": 8192}
DATA = {"Collective name": "_reduce_scatter_base", "Group size": 2, "Process Group Name": "5",
        "Process Group Description": "undefined", "dtype": "Float",
        "In msg nelems": 106240, "Out msg nelems": 53120}

# (begin, length, launched before its begin, stream, name, collective), in us since the step began
WORK = [
    (0, 300, 5, 7, "nvjet_hsh_128x256_64x4_1x2_h_bz_coopA_TNT", None),
    (300, 100, 200, 7, "void flash::flash_fwd_kernel<Flash_fwd_kernel_traits<128, 128, 64, 4>>", None),
    (350, 150, 200, 20, "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
     TENSOR),  # 50 us overlap attention, 100 us are exposed
    (500, 50, 40, 7, "void at::native::vectorized_layer_norm_kernel<c10::BFloat16, float>()", None),
    (560, 40, 4, 7, "void mystery_kernel(int)", None),  # 10 us idle before it, 6 by a late launch
    (600, 200, 100, 7, "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64", None),
    (800, 100, 100, 24, "ncclDevKernel_ReduceScatter_Sum_f32_RING_SIMPLE(ncclDevKernelArgsStorage)",
     DATA),
    (900, 60, 100, 7, "void multi_tensor_apply_kernel<TensorListMetadata<4>, AdamFunctor<float>>",
     None),
]
# 960 to 970: a copy from the host; 970 to 980: a fill; 980 to 1000: idle
COPIES = [(960, 10, 30, "gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", 1),
          (970, 10, 30, "gpu_memset", "Memset (Device)", None)]


def kineto(rank):
    events = []
    group = {"tp": [rank // 2 * 2, rank // 2 * 2 + 1], "dp": [rank % 2, rank % 2 + 2]}
    correlation = 100

    def launch(call, at, begin, length, category, name, args):
        nonlocal correlation
        correlation += 1
        events.append({"ph": "X", "cat": "cuda_runtime", "name": call, "pid": 4000 + rank,
                       "tid": 4000 + rank, "ts": at, "dur": 2.5,
                       "args": {"External id": correlation, "correlation": correlation}})
        events.append({"ph": "X", "cat": category, "name": name, "pid": rank, "tid": args["stream"],
                       "ts": begin, "dur": length,
                       "args": dict(args, correlation=correlation, device=rank, context=1,
                                    **{"External id": correlation})})

    for step in range(3):
        zero = START + rank + step * STEP
        events.append({"ph": "X", "cat": "user_annotation", "name": f"ProfilerStep#{10 + step}",
                       "pid": 4000 + rank, "tid": 4000 + rank, "ts": zero - 10.25, "dur": STEP - 0.5,
                       "args": {"External id": step}})
        for begin, length, before, stream, name, comm in WORK:
            args = {"stream": stream, "grid": [132, 1, 1], "block": [384, 1, 1]}
            if comm:
                ranks = group["tp" if comm is TENSOR else "dp"]
                args.update(comm)
                args["Process Group Ranks"] = "[" + ", ".join(map(str, ranks)) + "]"
            launch("cudaLaunchKernelExC", zero + begin - before, zero + begin, length, "kernel",
                   name, args)
        for begin, length, before, category, name, _ in COPIES:
            call = "cudaMemcpyAsync" if category == "gpu_memcpy" else "cudaMemsetAsync"
            launch(call, zero + begin - before, zero + begin, length, category, name,
                   {"stream": 7, "bytes": 4096})
    events.append({"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 4000 + rank, "tid": 1,
                   "ts": START + rank, "dur": 3.0,
                   "args": {"External id": 101, "Input Dims": [[128, 64], [64, 96]],
                            "Input type": ["c10::BFloat16", "c10::BFloat16"]}})
    events.append({"name": "process_name", "ph": "M", "ts": START, "pid": rank, "tid": 0,
                   "args": {"name": "python"}})
    events.append({"ph": "s", "id": 101, "pid": 4000 + rank, "tid": 1, "ts": START, "cat": "ac2g",
                   "name": "ac2g"})
    return {"schemaVersion": 1,
            "deviceProperties": [{"id": 0, "name": "NVIDIA H100 80GB HBM3", "numSms": 132}],
            "distributedInfo": {"backend": "nccl", "rank": rank, "world_size": 4, "pg_count": 7,
                                "pg_config": [{"pg_name": "0", "pg_desc": "default_pg",
                                               "pg_size": 4, "ranks": [0, 1, 2, 3]}]},
            "displayTimeUnit": "ms", "baseTimeNanoseconds": 0, "traceEvents": events,
            "traceName": f"rank{rank}.json"}


def nsys(path):
    db = sqlite3.connect(path)
    db.executescript("""
        CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT NOT NULL);
        CREATE TABLE TARGET_INFO_GPU (id INTEGER, name TEXT);
        CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER NOT NULL, end INTEGER NOT NULL,
          deviceId INTEGER NOT NULL, contextId INTEGER NOT NULL, streamId INTEGER NOT NULL,
          correlationId INTEGER, globalPid INTEGER, demangledName INTEGER NOT NULL,
          shortName INTEGER NOT NULL);
        CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY (start INTEGER NOT NULL, end INTEGER NOT NULL,
          deviceId INTEGER NOT NULL, contextId INTEGER NOT NULL, streamId INTEGER NOT NULL,
          correlationId INTEGER, globalPid INTEGER, bytes INTEGER NOT NULL,
          copyKind INTEGER NOT NULL);
        CREATE TABLE CUPTI_ACTIVITY_KIND_MEMSET (start INTEGER NOT NULL, end INTEGER NOT NULL,
          deviceId INTEGER NOT NULL, contextId INTEGER NOT NULL, streamId INTEGER NOT NULL,
          correlationId INTEGER, globalPid INTEGER, value INTEGER NOT NULL, bytes INTEGER NOT NULL);
        CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start INTEGER NOT NULL, end INTEGER NOT NULL,
          eventClass INTEGER NOT NULL, globalTid INTEGER, correlationId INTEGER,
          nameId INTEGER NOT NULL, returnValue INTEGER NOT NULL);
        CREATE TABLE NVTX_EVENTS (start INTEGER NOT NULL, end INTEGER, eventType INTEGER NOT NULL,
          text TEXT, textId INTEGER, globalTid INTEGER, domainId INTEGER);
    """)
    strings = {}

    def string(text):
        if text not in strings:
            strings[text] = len(strings) + 1
            db.execute("INSERT INTO StringIds VALUES (?, ?)", (strings[text], text))
        return strings[text]

    for rank in range(4):
        db.execute("INSERT INTO TARGET_INFO_GPU VALUES (?, 'NVIDIA H100 80GB HBM3')", (rank,))
        process = (4000 + rank) << 24
        correlation = 100
        for step in range(3):
            zero = (rank + step * STEP) * 1000 + 5_000_000
            db.execute("INSERT INTO NVTX_EVENTS VALUES (?, ?, 59, NULL, ?, ?, 0)",
                       (zero - 10_250, zero - 10_250 + STEP * 1000 - 500,
                        string(f"iteration {10 + step}"), process | (40 + rank)))
            rows = [(b, n, before, s, name, "kernel") for b, n, before, s, name, _ in WORK]
            rows += [(b, n, before, 7, kind, cat) for b, n, before, cat, _, kind in COPIES]
            for begin, length, before, stream, name, category in rows:
                correlation += 1
                at, to = zero + begin * 1000, zero + (begin + length) * 1000
                db.execute("INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (?, ?, 0, ?, ?, ?, 0)",
                           (at - before * 1000, at - before * 1000 + 2500, process | (40 + rank),
                            correlation, string("cudaLaunchKernel_v7000")))
                head = (at, to, rank, 1, stream, correlation, process)
                if category == "kernel":
                    db.execute("INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (?,?,?,?,?,?,?,?,?)",
                               head + (string(name), string(name.split("<")[0])))
                elif category == "gpu_memcpy":
                    db.execute("INSERT INTO CUPTI_ACTIVITY_KIND_MEMCPY VALUES (?,?,?,?,?,?,?,?,?)",
                               head + (4096, name))
                else:
                    db.execute("INSERT INTO CUPTI_ACTIVITY_KIND_MEMSET VALUES (?,?,?,?,?,?,?,?,?)",
                               head + (0, 4096))
    db.commit()
    db.execute("VACUUM")
    db.close()


def main(folder):
    ranks = os.path.join(folder, "ranks")
    os.makedirs(ranks, exist_ok=True)
    for rank in range(4):
        text = json.dumps(kineto(rank), indent=1 if rank == 0 else None).encode()
        name = os.path.join(ranks, f"rank{rank}.json" + ("" if rank == 0 else ".gz"))
        with open(name, "wb") as out:
            out.write(text if rank == 0 else gzip.compress(text, mtime=0))
    path = os.path.join(folder, "nsys.sqlite")
    if os.path.exists(path):
        os.remove(path)
    nsys(path)


main(sys.argv[1])
