/* measure.h - measures ops on this machine in real steps and returns rows of a cost table.
 *
 * Kernels are timed inside steps of a job on random tokens, so caches are as cold and all ranks as
 * busy as in training. A row is the mean over all ops of one shape of each op's median over steps
 * (the median drops steps that were interrupted), plus the executor's gap between two ops. On a
 * GPU, recording times takes time itself; the same steps also run without recording, and the
 * difference is subtracted.
 *
 * Communication ops inside a step also wait for peers that compute. They are timed in programs
 * without compute (comm_bench.h), from the moment the last member arrives, so the time to wake the
 * other members is included. */
#pragma once
#include "core/plan/cost_table.h"
#include "core/exec/exec.h"

typedef struct weft_measure weft_measure;

/* `ops`: an executor with WEFT_EXEC_TIMES and WEFT_EXEC_NUMBERS. */
weft_measure *weft_measure_new (const struct weft_exec_ops *ops);
void weft_measure_free (weft_measure *measure);
G_DEFINE_AUTOPTR_CLEANUP_FUNC (weft_measure, weft_measure_free)

/* Times the kernels of a job: warm-up steps, then at least `least` steps and at least `seconds`. */
gboolean weft_measure_steps (weft_measure *measure, const weft_plan *plan, uint32_t least,
                             double seconds, GError **error);

/* Times every distinct collective and send of a job on the ranks of the job. */
gboolean weft_measure_comm (weft_measure *measure, const weft_plan *plan, GError **error);

/* Times copies between a GPU and its host in both directions: 1 KiB to 64 MiB. */
gboolean
weft_measure_host_copies (weft_measure *measure, const struct weft_job *job, GError **error);

/* Times all-reduce, reduce-scatter, all-gather and all-to-all over `ranks` ranks, and send if there
 * are two: fp32, 1 KiB to 64 MiB. Cluster and reduction order come from the job. */
gboolean weft_measure_comm_sizes (weft_measure *measure, const struct weft_job *job, uint32_t ranks,
                                  GError **error);

/* All rows, sorted: struct weft_measurement. The caller unrefs the array. */
GArray *weft_measure_rows (const weft_measure *measure);
