/* alike.h - pipeline ranks of a job whose programs have the same ops, so that only some of them are
 * built to measure passes. */
#pragma once
#include "core/job/job.h"
#include "core/schedule/grid.h"

/* Sets first[rank] and last[rank] to the first and the last rank whose chunks have layers of the
 * same kinds. The programs of these ranks may run the passes in other orders, and their transfers
 * and collectives may take other times, but each pass has the same ops. The first rank and the last
 * two are alone: their warm-up differs in how they exchange activations. */
void weft_alike_ranks (const struct weft_job *job, const weft_grid *grid, uint32_t *first,
                       uint32_t *last);
