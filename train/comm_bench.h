/* comm_bench.h - plans whose programs run communication ops one after the other, to measure their
 * times.
 *
 * Each op is repeated WEFT_COMM_BENCH_REPEATS times in a row. The field `micro` of an op is the
 * number of the repeat, from 0; repeat 0 is a warm-up. */
#pragma once
#include "core/exec/exec.h"

#define WEFT_COMM_BENCH_REPEATS 5

/* A plan with every distinct collective, send and receive of `plan`, on the same mesh. */
weft_plan *weft_comm_bench_of_plan (const weft_plan *plan, GError **error);

/* A plan with all-reduce, reduce-scatter, all-gather and all-to-all in one group of `ranks` ranks:
 * fp32 messages from 1 KiB to 64 MiB. Cluster and reduction order come from the job. */
weft_plan *weft_comm_bench_of_group (const struct weft_job *job, uint32_t ranks, GError **error);

/* A plan with sends of messages of these sizes, in both directions between two pipeline stages. */
weft_plan *weft_comm_bench_of_stages (const struct weft_job *job, GError **error);

/* A plan with copies between one rank and its host in both directions, in fp32 and bf16. */
weft_plan *weft_comm_bench_of_host (const struct weft_job *job, GError **error);

/* Fills the data buffers of all ranks of an open executor with random numbers, because zeros could
 * be transferred faster. */
void weft_comm_bench_fill (weft_exec *x);
