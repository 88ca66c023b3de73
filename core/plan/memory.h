/* memory.h - assigns an offset to every buffer, and reports what the peak consists of.
 *
 * A buffer lives from its first to its last use. Permanent buffers lie at the bottom of their pool;
 * the others are placed in op order, best fit. Lanes run concurrently, so bytes are free for a new
 * buffer only if every use of the old one is ordered before the first op of the new one. If it is
 * not, a dependency may be added, but only if it costs no overlap: in the role's own earliest
 * schedule (with the given seconds and peers that are never late) the old use must have ended by
 * then. If transfers fall behind kernels more and more, the arena would grow with every layer;
 * buffers that do not fit otherwise wait for transfers, as in frameworks that limit the number of
 * gathers and reductions in flight.
 *
 * Executors allocate exactly planned[pool] bytes; every offset is a multiple of WEFT_ALIGN. */
#pragma once
#include "core/program/program.h"

#define WEFT_ALIGN 256u

/* An op that waits for memory: it starts when the last user of its bytes has ended, later than it
 * otherwise could. */
struct weft_memory_wait {
  uint32_t op, on;
};

struct weft_memory {
  uint64_t planned[WEFT_N_POOL];                   /* size of the arena */
  uint64_t live[WEFT_N_POOL];                      /* peak of bytes alive: `planned` >= `live` */
  uint32_t peak_op[WEFT_N_POOL];                   /* op at the peak */
  uint64_t at_peak[WEFT_N_POOL][WEFT_N_BUF_KIND];  /* bytes at the peak by kind of buffer */
  uint64_t permanent[WEFT_N_POOL][WEFT_N_BUF_KIND];
  uint32_t n_reuse_deps;                           /* dependencies that were added for reuse */
  uint32_t n_wait;                                 /* rows of `wait`: those that cost overlap */
  struct weft_memory_wait *wait;                   /* in op order; freed by weft_memory_clear() */
};

/* Writes the offsets and adds dependencies for reuse. seconds[op] are the weights of the earliest
 * schedule; NULL: one second each. `most`: limit in bytes of both GPU pools. Only a plan above the
 * limit lets ops wait for memory at the cost of overlap. If the plan exceeds the limit even so, no
 * op waits. */
void weft_memory_plan (weft_program *program, const double *seconds, uint64_t most,
                       struct weft_memory *memory);
void weft_memory_clear (struct weft_memory *memory);
