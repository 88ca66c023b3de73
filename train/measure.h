/* measure.h - measures ops on this machine in real steps and returns rows of a cost table.
 *
 * Kernels are timed inside steps of a job on random tokens, so that caches and other ranks behave
 * as in training. The time of an op is the median over steps, which ignores steps that were
 * interrupted, plus the executor's gap between two ops. A row is the mean over all ops of one
 * shape. On a GPU, recording times slows the step down; the same steps also run without recording,
 * and the difference is subtracted.
 *
 * Communication ops inside a step also wait for peers that compute. They are therefore timed in
 * programs without compute (comm_bench.h). The time of a collective begins when the last rank of
 * its group starts it, and includes the time to wake the other ranks. */
#pragma once
#include "core/plan/cost_table.h"
#include "core/exec/exec.h"

typedef struct weft_measure weft_measure;

/* `ops`: an executor with WEFT_EXEC_TIMES and WEFT_EXEC_NUMBERS. */
weft_measure *weft_measure_new (const struct weft_exec_ops *ops);
void weft_measure_free (weft_measure *measure);
G_DEFINE_AUTOPTR_CLEANUP_FUNC (weft_measure, weft_measure_free)

/* Times the kernels of a job in at least `least` steps, which take at least `seconds` together,
 * after warm-up steps. */
gboolean weft_measure_steps (weft_measure *measure, const weft_plan *plan, uint32_t least,
                             double seconds, GError **error);

/* Times every distinct collective and send of a job on the ranks of the job. */
gboolean weft_measure_comm (weft_measure *measure, const weft_plan *plan, GError **error);

/* Times copies between a GPU and its host in both directions: 1 KiB to 64 MiB. */
gboolean
weft_measure_host_copies (weft_measure *measure, const struct weft_job *job, GError **error);

/* Times all-reduce, reduce-scatter, all-gather and all-to-all over `ranks` ranks, and also send if
 * `ranks` is 2: fp32, 1 KiB to 64 MiB. Cluster and reduction order come from the job. */
gboolean weft_measure_comm_sizes (weft_measure *measure, const struct weft_job *job, uint32_t ranks,
                                  GError **error);

/* All rows, sorted: struct weft_measurement. The caller unrefs the array. */
GArray *weft_measure_rows (const weft_measure *measure);
