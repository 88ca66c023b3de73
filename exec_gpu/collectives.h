/* collectives.h - appends the calls of one collective op, without its waits. */
#pragma once
#include "exec_gpu/machine.h"

/* Appends op i of a launch for all n members, which share a GPU. */
void gpu_collective_shared (const struct gpu_rank_unit *member, uint32_t n, uint32_t i);

/* Appends a collective or transfer of a rank with its own GPU: calls of the collective library. */
gboolean gpu_collective_library (struct gpu_rank_unit at, uint32_t op, GError **error);

/* Refuses a program with collectives that the executor cannot run. */
gboolean gpu_collective_check (const struct gpu_machine *m, const weft_program *p, GError **error);
