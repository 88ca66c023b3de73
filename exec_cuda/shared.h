/* shared.h - what ranks that share one GPU do in place of NCCL, in words that C and CUDA C++
 * read. */
#pragma once
#include "core/base/words.h"
#include <stdint.h>

/* Ranks that can share a GPU: what one launch takes pointers of. */
#define WEFT_CUDA_MOST_SHARED 64u

enum weft_cuda_join_how { WEFT_CUDA_ADD, WEFT_CUDA_LEAST, WEFT_CUDA_MOST };

/* out = terms joined in the order of core/base/fold.h, every node rounded to the type; each term is
 * divided by `before` first, and rounded, the whole by `after`.  `out` may be one of the terms. */
struct weft_cuda_join {
  uint8_t dtype, how;
  float before, after;
  uint32_t n_term;
  const void *const *term;
  void *out;
  uint64_t n; /* elements */
};

/* Rows that counts, which are on the device, say how many there are of.  Member j's counts, `each`
 * for every member, are at send[j], its rows at from[j], and what it ends with at to[j]:
 *
 *   swap     part i of j's counts says how many rows go to member i; they lie in the order of those they
 *            go to, and come to rest in the order of those they came from
 *   gather   all have the same counts: part j says how many rows are member j's, which go to all
 *   sum      the inverse: all have rows of everybody, and member i gets those of part i, joined as the
 *            terms above are */
enum weft_cuda_rows { WEFT_CUDA_SWAP, WEFT_CUDA_GATHER, WEFT_CUDA_SUM };

struct weft_cuda_exchange {
  uint8_t how, dtype; /* dtype: of a sum */
  uint32_t n, each;
  uint64_t row; /* bytes */
  const void *const *from;
  const int64_t *const *send;
  void *const *to;
};
