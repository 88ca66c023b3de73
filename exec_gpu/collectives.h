/* collectives.h - calls of one collective op, without its waits. */
#pragma once
#include "exec_gpu/machine.h"

/* Appends op i of a launch for all members, which share a GPU. */
void gpu_collective_shared (const struct gpu_rank_unit *member, uint32_t n, uint32_t i);

/* Appends a collective of ranks with a GPU each: calls of the collective library. */
gboolean gpu_collective_library (struct gpu_rank_unit at, uint32_t op, GError **error);

/* Refuses a program with collectives that this machine cannot do. */
gboolean gpu_collective_check (const struct gpu_machine *m, const weft_program *p, GError **error);
