/* collectives.h - collectives and transfers between stages. */
#pragma once
#include "exec_cpu/machine.h"

/* Runs the next unit of the collective at the head of a lane: posts the operands or executes one
 * round.  FALSE: nothing was done, because another member has to finish its part first. */
gboolean cpu_collective_advance (struct cpu_rank *r, enum weft_lane lane, uint32_t op);

/* Posts the group of transfers at the head of a lane, or completes those of its transfers whose
 * other side has been posted.  FALSE: nothing was done, because another rank has to post first. */
gboolean cpu_transfers_advance (struct cpu_rank *r, enum weft_lane lane);

/* Key of the moves (the point-to-point copies of an algorithm) of a collective in
 * cpu_machine.moves. */
uint64_t cpu_moves_key (const struct weft_op *row, uint32_t n_members);
void cpu_moves_free (struct cpu_moves *moves);
