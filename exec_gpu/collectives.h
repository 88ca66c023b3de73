/* collectives.h - appends the calls of one collective op to a call list, without the waits for
 * earlier ops. */
#pragma once
#include "exec_gpu/machine.h"

/* Appends the calls of one collective for all n members, which share a GPU. The collective is op i
 * of the ops that are launched together. */
void gpu_collective_shared (const struct gpu_rank_unit *member, uint32_t n, uint32_t i);

/* Appends the calls of the collective library (NCCL) for a collective or a transfer of a rank that
 * has a GPU of its own. */
gboolean gpu_collective_library (struct gpu_rank_unit at, uint32_t op, GError **error);

/* Refuses a program with collectives that the executor cannot run. */
gboolean gpu_collective_check (const struct gpu_machine *m, const weft_program *p, GError **error);
