/* state_parts.h - the structs inside weft_state. Private to state.c, state_make.c and
 * state_access.c. */
#pragma once
#include "core/program/segment.h"
#include "train/state.h"

/* Number of elements that are converted at a time: 256 KiB as floats. */
#define MOST_AT_ONCE 65536u

/* The ranks that run one program (one pipeline stage) and have the same tensor-parallel or
 * expert-parallel part. They are a data-parallel group (for experts, an expert-data-parallel
 * group), in group order. */
struct stage {
  const weft_program *p;
  uint32_t part;
  uint32_t n_place, n_slice;
  uint32_t *row;             /* by index in the group: number of the rank */
  struct weft_slice **slice; /* [place][n_slice] */
};

/* Elements [first, first + n) of the part of a tensor that the ranks of a stage have. The optimizer
 * state of these elements is on one rank, `row`. */
struct piece {
  uint32_t row;
  uint64_t first, n;
  uint64_t offset; /* index in the slice of the first element of the piece */
  const struct weft_slice *slice;
};

/* The tensor-parallel or expert-parallel part of a tensor that the ranks of one stage have. */
struct copy {
  const struct stage *stage;
  const struct weft_param *param;
  enum weft_state_kind scales; /* as in struct weft_state_tensor */
  GArray *pieces; /* array of struct piece, ordered by first element */
};

struct tensor {
  struct weft_state_tensor info;
  /* array of struct copy: all parts of the tensor, then the copies on other stages (tied
   * embedding) */
  GArray *copies;
  /* fp8: the masters were written, and the codes have not been quantised from them yet */
  gboolean stale;
  GArray *runs;    /* array of struct weft_state_run */
  GArray *owners;  /* struct owner */
  /* array of struct buffer; only for a tensor without optimizer state, else NULL */
  GArray *buffers;
};

/* A buffer on one rank that contains a whole tensor without optimizer state. */
struct buffer {
  uint32_t row, buf;
};

/* Where a read finds elements: the piece, and the index of the copy to which the piece belongs. */
struct owner {
  uint32_t copy;
  struct piece piece;
};

struct weft_state {
  weft_exec *x;
  enum weft_dtype dtype;
  gboolean has_master;
  /* number of stages. For each pipeline stage: its tensor-parallel parts, then its expert-parallel
   * parts */
  uint32_t n_stage;
  struct stage *stage;
  GArray *tensors; /* struct tensor */
  GPtrArray *scales; /* struct weft_param of tensors that are scales of 8-bit moments */
  void *raw;       /* room for MOST_AT_ONCE elements in the type of a buffer */
  weft_state_asked asked; /* function that weft_state_watch() has set, or NULL */
  void *user;
  float *gathered; /* masters of one tensor, gathered from all processes, or NULL */
  uint32_t gathered_of;
};

static inline struct tensor *
tensor_at (const weft_state *state, uint32_t tensor)
{
  g_assert (tensor < state->tensors->len);
  return &g_array_index (state->tensors, struct tensor, tensor);
}

static inline struct copy *
copy_at (const struct tensor *t, uint32_t copy)
{
  return &g_array_index (t->copies, struct copy, copy);
}

/* Number of elements of a rank's part of a parameter. */
static inline uint64_t
elements (const struct weft_param *param)
{
  return param->rows * param->columns;
}
