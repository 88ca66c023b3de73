/* counted.h - exchanges between GPUs of as many rows as counts say, which a copy of the
 * plan brings to the host during the step. */
#pragma once
#include "exec_gpu/machine.h"

gboolean gpu_is_counted (enum weft_op_kind kind);

/* The copy that brings the counts of an op to the host, or WEFT_NO_OP. */
uint32_t gpu_counted_source (const weft_program *p, uint32_t op);

/* Bytes of scratch of an op and of those that share its launch. */
uint64_t gpu_counted_scratch (const struct gpu_rank *r, uint32_t op);

/* emit: appends the exchange. end: appends the sum that follows its launch. */
void gpu_counted_emit (struct gpu_rank_unit at, uint32_t op);
void gpu_counted_end (struct gpu_rank_unit at, uint32_t op);

/* During a step. send: the sends and receives of an exchange; sum: the sum of the received rows. */
const char *gpu_counted_send (const struct gpu_script *s, const struct gpu_call *call);
const char *gpu_counted_sum (const struct gpu_script *s, const struct gpu_call *call);

void gpu_counted_free (void *counted);
