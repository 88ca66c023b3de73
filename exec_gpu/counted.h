/* counted.h - exchanges of rows between GPUs. A copy op of the plan transfers the numbers of rows
 * (counts) to the host during the step. */
#pragma once
#include "exec_gpu/machine.h"

/* Whether a collective has row counts, that is, numbers of rows that are known only during the
 * step. */
gboolean gpu_is_counted (enum weft_op_kind kind);

/* The copy op that transfers the row counts of a collective to the host, or WEFT_NO_OP. */
uint32_t gpu_counted_source (const weft_program *p, uint32_t op);

/* Bytes of scratch that the reduce-scatters among an op and the later ops of its launch need. */
uint64_t gpu_counted_scratch (const struct gpu_rank *r, uint32_t op);

/* Appends the exchange of an op to the script of the rank (machine.h). */
void gpu_counted_emit (struct gpu_rank_unit at, uint32_t op);

/* Appends the sum of a reduce-scatter to the script, after the launch of the exchange of this op.
 * Does nothing for other ops. */
void gpu_counted_end (struct gpu_rank_unit at, uint32_t op);

/* Makes the sends and receives of an exchange, during a step. Returns NULL or a message. */
const char *gpu_counted_send (const struct gpu_script *s, const struct gpu_call *call);

/* Adds the received rows of a reduce-scatter, during a step. Returns NULL or a message. */
const char *gpu_counted_sum (const struct gpu_script *s, const struct gpu_call *call);

void gpu_counted_free (void *counted);
