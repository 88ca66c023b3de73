/* memory.h - assigns an offset to every buffer, and reports which buffers make up the peak.
 *
 * A buffer lives from its first to its last use. Permanent buffers lie at the bottom of their pool.
 * The other buffers are placed in op order, each where it fits best, or, if that leaves gaps, by
 * size (fit.h).
 *
 * Lanes (streams) run concurrently, so bytes are free for a new buffer only if every use of the old
 * buffer is ordered before the first op of the new buffer. If a use is not ordered, the planner may
 * add a dependency, but only if the dependency costs no overlap: in the earliest schedule of the
 * role (with the given op seconds, and peers that are never late) the old use must end before the
 * new op starts.
 *
 * If transfers fell further behind kernels with every layer, the arena would grow with every layer.
 * Buffers that would exceed the GPU's memory therefore wait for transfers, as in frameworks that
 * limit the number of gathers and reductions in flight.
 *
 * Executors allocate exactly planned[pool] bytes; every offset is a multiple of WEFT_ALIGN. */
#pragma once
#include "core/program/program.h"

#define WEFT_ALIGN 256u

/* An op that waits for memory. The op `op` starts only when `on`, the last user of the same bytes,
 * has ended. `on` ends later than the other dependencies of `op` require. */
struct weft_memory_wait {
  uint32_t op, on;
};

struct weft_memory {
  uint64_t planned[WEFT_N_POOL];                   /* bytes of the arena in each pool */
  /* largest number of bytes that are alive at the same time; at most `planned` */
  uint64_t live[WEFT_N_POOL];
  /* largest number of bytes that are in use at the same time if lanes run concurrently, in the
   * earliest schedule of the role: at least `live`, because transfers run behind kernels */
  uint64_t used[WEFT_N_POOL];
  /* first op at which each pool reaches its peak */
  uint32_t peak_op[WEFT_N_POOL];
  /* bytes at the peak, by pool and kind of buffer */
  uint64_t at_peak[WEFT_N_POOL][WEFT_N_BUF_KIND];
  uint64_t permanent[WEFT_N_POOL][WEFT_N_BUF_KIND];
  /* number of dependencies that were added for reuse of bytes */
  uint32_t n_reuse_deps;
  /* number of rows in `wait`: added dependencies that cost overlap */
  uint32_t n_wait;
  /* in the order of the ops that wait; freed by weft_memory_clear() */
  struct weft_memory_wait *wait;
};

/* Assigns an offset to every buffer, and adds the dependencies that reuse of bytes needs.
 * seconds[op] are the op times of the earliest schedule; NULL: every op takes one second. `most`:
 * limit in bytes of both GPU pools. Ops wait for memory at the cost of overlap only if the plan
 * would exceed the limit without such waits. If the plan exceeds the limit even with waits, no op
 * waits. */
void weft_memory_plan (weft_program *program, const double *seconds, uint64_t most,
                       struct weft_memory *memory);
/* Sets only `live`, `peak_op`, `at_peak` and `permanent` of *memory: the sizes that need no
 * offsets. */
void weft_memory_live (const weft_program *program, struct weft_memory *memory);
void weft_memory_clear (struct weft_memory *memory);
