/* comm_bench.h - programs of communication ops only, run one op after the other, to time them.
 *
 * Each op is repeated WEFT_COMM_BENCH_REPEATS times in a row; `micro` counts the repeats from 0,
 * and repeat 0 is a warm-up. */
#pragma once
#include "core/exec/exec.h"

#define WEFT_COMM_BENCH_REPEATS 5

/* Every distinct collective, send and receive of a plan, once each, on the same mesh. */
weft_plan *weft_comm_bench_of_plan (const weft_plan *plan, GError **error);

/* All-reduce, reduce-scatter, all-gather and all-to-all in one group of `ranks` ranks; sends in
 * both directions between two pipeline stages. fp32 messages from 1 KiB to 64 MiB. Cluster and
 * reduction order come from the job. */
weft_plan *weft_comm_bench_of_group (const struct weft_job *job, uint32_t ranks, GError **error);
weft_plan *weft_comm_bench_of_stages (const struct weft_job *job, GError **error);

/* Copies between one rank and its host in both directions, in fp32 and bf16. */
weft_plan *weft_comm_bench_of_host (const struct weft_job *job, GError **error);

/* Fills the data of all ranks of an open executor with random numbers: zeros could move faster. */
void weft_comm_bench_fill (weft_exec *x);
