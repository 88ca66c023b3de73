/* kernel.h - one contract for every op that computes.
 *
 * core/ops.def says which operands an op takes and what it does; here every op has an fp64 reference,
 * plain and readable, and a CPU kernel.  FLOPs and bytes are those of core/ops.def.
 *
 * Rules of CPU kernels:
 *  - arithmetic is fp32, whatever the operands; results are rounded (to nearest, ties to even) once,
 *    when they are stored in their operand's type, as a GPU kernel does;
 *  - nothing is allocated; scratch is small and on the stack or per thread;
 *  - the bits of an output depend only on the inputs: not on `part` and `parts`, on alignment, on
 *    the machine's vector width, or on how many other rows are computed with it;
 *  - `part` of `parts` computes its share of the outputs; shares never write the same element;
 *  - in canonical order a sum over tokens is one sum for each chunk of a sequence (rows in order),
 *    and those are added as core/base/zigzag.h and core/base/fold.h say, every node rounded to the type of the
 *    output.
 *
 * A gradient operand that accumulates is added to once, after everything else: old + new. */
#pragma once
#include "core/exec/control.h"
#include "core/job/model.h"
#include "core/program/op.h"
#include "core/base/zigzag.h"
#include <glib.h>

#define WEFT_MOST_OPERANDS 8

struct weft_operand {
  void *data; /* NULL where the op's list allows it */
  uint64_t n; /* elements */
  uint8_t dtype;
  uint8_t accumulate; /* read and written: keeps what is there; otherwise it is overwritten */
};

/* Where in a run an op works, for dropout: draws depend on nothing else. */
struct weft_draw {
  uint32_t layer;
  int64_t sequence; /* the first of the global batch that is here */
};

/* Where the elements of a call lie in a whole tensor, for what is drawn (draw.h): rows of `columns` of it,
 * which in the tensor are `stride` apart. */
struct weft_whole {
  uint64_t key; /* of the tensor */
  uint64_t start, columns, stride, offset;
};

struct weft_kernel {
  enum weft_op_kind kind;
  struct weft_shape shape;
  struct weft_place tp, cp; /* of 0 where nothing asks: one rank.  Rows are of this rank's part of
                               sequences; of attention cp is its ring alone */
  const union weft_model *model;      /* norm, epsilon, heads, rope, sequence length */
  const struct weft_control *control; /* adam, clip, loss scale */
  uint32_t before; /* a part of attention: keys are those of the rank so many places before; to join
                      sequences, 1: slice j came from the rank j places before */
  struct weft_draw draw;
  struct weft_whole whole; /* of adam that rounds by lot */
  gboolean canonical;
  gboolean fused, quicker, deterministic; /* attention: by the vendor's library where there is one; and
                                             where it is quicker; with the same bits in every run */
  gboolean decay; /* adam: weight decay applies to these elements */
  struct weft_operand operand[WEFT_MOST_OPERANDS]; /* in the order of core/ops.def */
};

/* Heads of this rank. */
static inline uint64_t
weft_kernel_groups (const struct weft_kernel *k)
{
  return MAX (1, (uint64_t) k->model->num_query_groups / (k->tp.of ? k->tp.of : 1));
}

/* Ranks that attend together: in canonical order those that share a group of keys and values have all of
 * its queries (tensor.c). */
static inline uint64_t
weft_kernel_together (const struct weft_kernel *k)
{
  uint64_t groups = (uint64_t) k->model->num_query_groups;
  return k->canonical && k->tp.of > groups ? k->tp.of / groups : 1;
}

static inline uint64_t
weft_kernel_heads (const struct weft_kernel *k)
{
  return (uint64_t) k->model->num_attention_heads / (k->tp.of ? k->tp.of : 1) *
         weft_kernel_together (k);
}

/* Tokens that a rank has of each sequence. */
static inline uint64_t
weft_kernel_sequence (const struct weft_kernel *k)
{
  return (uint64_t) k->model->seq_length / MAX (1, k->cp.of);
}

/* Where a token, of all sequences one after the other, stands in its own. */
static inline uint64_t
weft_kernel_position (const struct weft_kernel *k, uint64_t token)
{
  uint64_t sequence = weft_kernel_sequence (k);
  return weft_position (k->cp, sequence, token % sequence);
}

struct weft_kernel_row {
  void (*cpu) (const struct weft_kernel *k, uint32_t part, uint32_t parts);

  /* Operands of a floating type are arrays of double here; int32 stays, and so do counts of rows.  loss and squares are one
   * double each.  NULL where an op computes nothing. */
  void (*reference) (const struct weft_kernel *k);

  /* Elements of an operand as the shape and the model imply; 0: whatever is given. */
  uint64_t (*extent) (const struct weft_kernel *k, uint32_t operand);
};

/* Refuses a model that the kernels would compute as another: they do what its fields say, but some
 * values of a field say too little to compute with.  Executors of real numbers ask when they open;
 * plans and simulations need not. */
gboolean weft_kernels_can (const union weft_model *model, GError **error);

/* Whether the indices that an operand is read for can be true: token ids, numbers of experts and rows,
 * counts of rows.  Other operands hold what they hold. */
gboolean weft_kernel_trusts (const struct weft_kernel *k, uint32_t operand);

/* By op kind; cpu is NULL for ops that are no kernels. */
extern const struct weft_kernel_row weft_kernels[WEFT_N_OP];

/* weft_cpu_WORD, weft_ref_WORD and weft_extent_WORD of every KERNEL row of core/ops.def. */
#define KERNEL(id, name, ...)                                                                      \
  void weft_cpu_##name (const struct weft_kernel *k, uint32_t part, uint32_t parts);               \
  void weft_ref_##name (const struct weft_kernel *k);                                              \
  uint64_t weft_extent_##name (const struct weft_kernel *k, uint32_t operand);
#include "core/ops.def"
