/* memory.h - offsets for every buffer, and what the peak is made of.
 *
 * A buffer lives from its first to its last use; permanent ones lie at the bottom of their pool,
 * the others are placed in op order, best fit into what is free.  Lanes run ahead of each other, so
 * bytes are free for a new buffer only when every use of the old one is known to have ended before
 * the new one's first op starts.  Where that is not so yet, a dependency may be added, but only if
 * it costs no overlap: in the role's own earliest schedule (given seconds, peers never late) the
 * old use has ended by then.  Where transfers fall ever further behind kernels the arena would grow
 * with every layer like that; so what does not fit otherwise waits for them, as frameworks do that
 * bound how many gathers and reductions are under way.
 *
 * The executors allocate exactly planned[pool] bytes; every offset is a multiple of WEFT_ALIGN. */
#pragma once
#include "core/program/program.h"

#define WEFT_ALIGN 256u

/* An op that overlap was given up for: it begins when the last user of its bytes has ended, later
 * than it otherwise could. */
struct weft_memory_wait {
  uint32_t op, on;
};

struct weft_memory {
  uint64_t planned[WEFT_N_POOL];                   /* size of the arena */
  uint64_t live[WEFT_N_POOL];                      /* most bytes alive at once: the lower bound */
  uint32_t peak_op[WEFT_N_POOL];                   /* where that is */
  uint64_t at_peak[WEFT_N_POOL][WEFT_N_BUF_KIND];  /* what it is made of */
  uint64_t permanent[WEFT_N_POOL][WEFT_N_BUF_KIND];
  uint32_t n_reuse_deps;                           /* dependencies the plan added */
  uint32_t n_wait;                                 /* of them, those that cost overlap */
  struct weft_memory_wait *wait;                   /* by op, of each lane the last; owned */
};

/* Writes the offsets and adds reuse dependencies.  seconds[op] weighs the earliest schedule; NULL:
 * one second each.  `most`: bytes of both pools of a GPU above which overlap is given up for memory,
 * unless that is still too much: then nothing waits, and there is nothing to clear. */
void weft_memory_plan (weft_program *program, const double *seconds, uint64_t most,
                       struct weft_memory *memory);
void weft_memory_clear (struct weft_memory *memory);
