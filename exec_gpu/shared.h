/* shared.h - collectives of ranks that share one GPU: arguments of the kernels that replace a
 * collective library.  This header is C and C++. */
#pragma once
#include "core/base/words.h"
#include <stdint.h>

/* Maximum number of ranks that share a GPU: the arguments of a launch contain a pointer for each
 * rank. */
#define WEFT_GPU_MOST_SHARED 64u

enum weft_gpu_join_how { WEFT_GPU_ADD, WEFT_GPU_LEAST, WEFT_GPU_MOST };

/* Adds (or takes the minimum or maximum of) n_term arrays in the tree order of core/base/fold.h,
 * and rounds every partial sum to the type. Each element is first divided by `before` and rounded;
 * the result is divided by `after`. `out` may be one of the arrays. */
struct weft_gpu_join {
  uint8_t dtype, how;
  float before, after;
  uint32_t n_term;
  const void *const *term;
  void *out;
  uint64_t n; /* elements */
};

/* Collectives over unequal numbers of rows. The numbers of rows (row counts) are in device memory.
 * For member j, the row counts are at send[j], the rows to send at from[j], the result at to[j].
 * Row counts are a table with `each` entries for every member; the entries i * each to
 * (i + 1) * each - 1 belong to member i.
 *
 *   swap     All-to-all: the entries of member i in the table of member j add up to the number of
 *            rows that j sends to i. Rows to send are ordered by receiver, received rows by sender.
 *   gather   All-gather: all members have the same table. The entries of member j add up to the
 *            number of rows of j, which all members receive.
 *   sum      Reduce-scatter: every member has values for the rows of all members. Member i receives
 *            the rows that belong to i, added over all members as in weft_gpu_join. */
enum weft_gpu_rows { WEFT_GPU_SWAP, WEFT_GPU_GATHER, WEFT_GPU_SUM };

struct weft_gpu_exchange {
  uint8_t how, dtype; /* dtype: type of the elements, only used by WEFT_GPU_SUM */
  uint32_t n, each;
  uint64_t row; /* size of a row in bytes */
  const void *const *from;
  const int64_t *const *send;
  void *const *to;
};
