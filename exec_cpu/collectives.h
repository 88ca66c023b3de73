/* collectives.h - collectives and transfers between stages. */
#pragma once
#include "exec_cpu/machine.h"

/* Does what can be done now of the op at the head of a lane: a collective, or a group of transfers.
 * FALSE: nothing, because another rank has to do its part first. */
gboolean cpu_collective_advance (struct cpu_rank *r, enum weft_lane lane, uint32_t op);
gboolean cpu_transfers_advance (struct cpu_rank *r, enum weft_lane lane);

/* The moves of a collective, by kind and number of members. */
uint64_t cpu_moves_key (const struct weft_op *row, uint32_t n_members);
void cpu_moves_free (struct cpu_moves *moves);
