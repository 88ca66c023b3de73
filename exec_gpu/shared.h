/* shared.h - collectives of ranks that share one GPU: arguments of the kernels that replace a
 * collective library.  This header is C and C++. */
#pragma once
#include "core/base/words.h"
#include <stdint.h>

/* Maximum number of ranks that share a GPU: the arguments of a launch contain a pointer for each
 * rank. */
#define WEFT_GPU_MOST_SHARED 64u

enum weft_gpu_join_how { WEFT_GPU_ADD, WEFT_GPU_LEAST, WEFT_GPU_MOST };

/* Reduces terms in the order of core/base/fold.h and rounds every node to the type.  Each term is
 * first divided by `before` and rounded; the result is divided by `after`.  `out` may be one of
 * the terms. */
struct weft_gpu_join {
  uint8_t dtype, how;
  float before, after;
  uint32_t n_term;
  const void *const *term;
  void *out;
  uint64_t n; /* elements */
};

/* Collectives over unequal numbers of rows, with the counts on the device.  Member j has its counts
 * (`each` of them for every member) at send[j], its rows at from[j] and its result at to[j]:
 *
 *   swap     All-to-all: part i of member j's counts is the number of rows that j sends to member
 *            i.  Sent rows are ordered by receiver, received rows by sender.
 *   gather   All-gather: all members have the same counts.  Part j is the number of member j's
 *            rows, which all members receive.
 *   sum      Reduce-scatter, the inverse: every member has terms of all rows.  Member i receives
 *            the rows of part i, reduced as in weft_gpu_join. */
enum weft_gpu_rows { WEFT_GPU_SWAP, WEFT_GPU_GATHER, WEFT_GPU_SUM };

struct weft_gpu_exchange {
  uint8_t how, dtype; /* dtype: type of the elements, for a sum */
  uint32_t n, each;
  uint64_t row; /* bytes of a row */
  const void *const *from;
  const int64_t *const *send;
  void *const *to;
};
