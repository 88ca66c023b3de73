/* shared.h - collectives of ranks that share one GPU: arguments of kernels over their memory, in
 * place of a collective library.  C and C++ read this header. */
#pragma once
#include "core/base/words.h"
#include <stdint.h>

/* Most ranks that share a GPU: one launch takes a pointer for each. */
#define WEFT_GPU_MOST_SHARED 64u

enum weft_gpu_join_how { WEFT_GPU_ADD, WEFT_GPU_LEAST, WEFT_GPU_MOST };

/* out = terms reduced in the order of core/base/fold.h, every node rounded to the type.  Each term
 * is divided by `before` and rounded first, the result by `after`.  `out` may be one of the
 * terms. */
struct weft_gpu_join {
  uint8_t dtype, how;
  float before, after;
  uint32_t n_term;
  const void *const *term;
  void *out;
  uint64_t n; /* elements */
};

/* Collectives over unequal numbers of rows; the counts lie on the device.  Member j's counts,
 * `each` for every member, are at send[j], its rows at from[j], its result at to[j]:
 *
 *   swap     all-to-all: part i of j's counts is the number of rows that go to member i; rows are
 *            ordered by receiver before, by sender afterwards
 *   gather   all-gather: all have the same counts; part j is the number of member j's rows,
 *            which go to all members
 *   sum      reduce-scatter, the inverse: all have rows of all members, and member i gets those of
 *            part i, reduced as the terms above are */
enum weft_gpu_rows { WEFT_GPU_SWAP, WEFT_GPU_GATHER, WEFT_GPU_SUM };

struct weft_gpu_exchange {
  uint8_t how, dtype; /* dtype: of a sum */
  uint32_t n, each;
  uint64_t row; /* bytes */
  const void *const *from;
  const int64_t *const *send;
  void *const *to;
};
