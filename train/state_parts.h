/* state_parts.h - the structs inside weft_state. Private to state.c and state_access.c. */
#pragma once
#include "core/program/segment.h"
#include "train/state.h"

/* The ranks that run one program and hold the same tensor-parallel (or expert-parallel) part: a
 * data-parallel group, for experts an expert-data-parallel group, in group order. */
struct stage {
  const weft_program *p;
  uint32_t part;
  uint32_t n_place, n_slice;
  uint32_t *row;             /* row of the executor, by index in the group */
  struct weft_slice **slice; /* [place][n_slice] */
};

/* Elements [first, first + n) of a stage's part of a tensor. One row holds the optimizer state of
 * these elements. */
struct piece {
  uint32_t row;
  uint64_t first, n;
  uint64_t offset; /* element of the slice at which the piece begins */
  const struct weft_slice *slice;
};

/* The part of a tensor that one stage holds. */
struct copy {
  const struct stage *stage;
  const struct weft_param *param;
  GArray *pieces; /* struct piece, by first element */
};

struct tensor {
  struct weft_state_tensor info;
  GArray *copies;  /* struct copy: all parts, then the copies on other stages (tied embedding) */
  gboolean stale;  /* fp8: masters were written, codes are not yet quantised from them */
  GArray *runs;    /* struct weft_state_run */
  GArray *owners;  /* struct owner */
  GArray *buffers; /* struct buffer, of a tensor without optimizer state; or NULL */
};

/* A buffer that contains a whole tensor that no optimizer updates. */
struct buffer {
  uint32_t row, buf;
};

/* The piece from which a read gets the elements, and the index of the copy that has this piece. */
struct owner {
  uint32_t copy;
  struct piece piece;
};

struct weft_state {
  weft_exec *x;
  enum weft_dtype dtype;
  gboolean has_master;
  uint32_t n_stage; /* per role: its tensor-parallel parts, then its expert-parallel parts */
  struct stage *stage;
  GArray *tensors; /* struct tensor */
  void *raw;       /* MOST_AT_ONCE elements in the type of a buffer */
  weft_state_asked asked; /* set by weft_state_watch(), or NULL */
  void *user;
  float *gathered; /* masters of one tensor gathered from all processes, or NULL */
  uint32_t gathered_of;
};

static inline struct tensor *
tensor_at (const weft_state *state, uint32_t tensor)
{
  g_assert (tensor < state->tensors->len);
  return &g_array_index (state->tensors, struct tensor, tensor);
}
