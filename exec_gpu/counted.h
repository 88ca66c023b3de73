/* counted.h - collectives over rows between GPUs, whose numbers of rows (row counts) are computed
 * by the GPUs. A copy op of the plan copies the row counts to the host during the step. */
#pragma once
#include "exec_gpu/machine.h"

/* Whether a collective has row counts, that is, numbers of rows that are known only during the
 * step. */
gboolean gpu_is_counted (enum weft_op_kind kind);

/* Finds the copy op that copies the row counts of a collective to the host. WEFT_NO_OP: there is
 * none. */
uint32_t gpu_counted_source (const weft_program *p, uint32_t op);

/* Bytes of scratch that reduce-scatters with row counts need: the sum over `op` and the later ops
 * of its launch. */
uint64_t gpu_counted_scratch (const struct gpu_rank *r, uint32_t op);

/* Appends the sends and receives of an op with row counts to the call list of the rank
 * (machine.h). */
void gpu_counted_emit (struct gpu_rank_unit at, uint32_t op);

/* After the launch that contains the sends and receives of a reduce-scatter: appends the sum of the
 * received rows to the call list. Does nothing for other ops. */
void gpu_counted_end (struct gpu_rank_unit at, uint32_t op);

/* Makes the sends and receives of a collective with row counts, during a step. Returns NULL or an
 * error message. */
const char *gpu_counted_send (const struct gpu_script *s, const struct gpu_call *call);

/* During a step: adds the rows that a reduce-scatter has received. Returns NULL or an error
 * message. */
const char *gpu_counted_sum (const struct gpu_script *s, const struct gpu_call *call);

void gpu_counted_free (void *counted);
