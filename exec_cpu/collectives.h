/* collectives.h - executes collectives, and transfers between pipeline stages. */
#pragma once
#include "exec_cpu/machine.h"

/* Executes the next step of the collective that is first in a lane: posts the operands, or executes
 * one round. FALSE: nothing was done, because another member has to finish its part first. */
gboolean cpu_collective_advance (struct cpu_rank *r, enum weft_lane lane, uint32_t op);

/* Posts the sends and receives that are first in a lane, or completes those of them whose other
 * side has been posted. FALSE: nothing was done, because another rank has to post first. */
gboolean cpu_transfers_advance (struct cpu_rank *r, enum weft_lane lane);

/* Key of the moves (the point-to-point copies of an algorithm) of a collective in
 * cpu_machine.moves. */
uint64_t cpu_moves_key (const struct weft_op *row, uint32_t n_members);
void cpu_moves_free (struct cpu_moves *moves);

/* Bytes of one slot of a collective: its largest piece. */
uint64_t cpu_moves_slot_bytes (const struct cpu_moves *moves, const struct weft_shape *shape);
