/* measure.h - what ops take on this machine, from real steps, as rows of a cost table.
 *
 * Kernels are timed where they will run: inside steps of a job on random tokens, with operands as
 * cold as steps leave them and with all ranks at work at the same time.  A row is the mean over all
 * ops of that shape of each op's median over steps, so that what interrupts some steps does not
 * count, and with what the executor takes between two ops.  Where asking for times takes time itself,
 * as on a GPU, steps are run without it too, and what they take less is taken off.
 *
 * Communication inside a step waits for peers that compute; it is timed in programs that hold
 * nothing else, from the moment the last member is there, so waking the others is part of it. */
#pragma once
#include "core/plan/cost_table.h"
#include "core/exec/exec.h"

typedef struct weft_measure weft_measure;

/* Of an executor with times and numbers. */
weft_measure *weft_measure_new (const struct weft_exec_ops *ops);
void weft_measure_free (weft_measure *measure);
G_DEFINE_AUTOPTR_CLEANUP_FUNC (weft_measure, weft_measure_free)

/* Kernels of a job: steps to warm up, then so many at least and for so long. */
gboolean weft_measure_steps (weft_measure *measure, const weft_plan *plan, uint32_t least,
                             double seconds, GError **error);

/* Every collective and transfer of a job, on its own ranks. */
gboolean weft_measure_links (weft_measure *measure, const weft_plan *plan, GError **error);

/* Copies between a GPU and its host, both ways: 1 KiB to 64 MiB. */
gboolean weft_measure_host (weft_measure *measure, const struct weft_job *job, GError **error);

/* all_reduce, reduce_scatter, all_gather and all_to_all over so many ranks, and send where they are two: fp32,
 * from 1 KiB to 64 MiB.  Cluster and reduction order are the job's. */
gboolean weft_measure_grid (weft_measure *measure, const struct weft_job *job, uint32_t ranks,
                            GError **error);

/* All rows, sorted: struct weft_measurement.  Caller unrefs. */
GArray *weft_measure_rows (const weft_measure *measure);
