/* kernel.h - the contract of compute kernels.
 *
 * core/ops.def defines the operands and the function of each op. Here every op has an fp64
 * reference, written for readability, and a CPU kernel. FLOPs and bytes are those of
 * core/ops.def.
 *
 * Rules of CPU kernels:
 * - Arithmetic is fp32 for every operand type; a result is rounded once (to nearest, ties to even)
 *   when it is stored, as in a GPU kernel.
 * - No allocation; scratch is small and on the stack or per thread.
 * - Output bits depend only on the inputs: not on `part` and `parts`, alignment, the machine's
 *   vector width, or the number of rows computed together.
 * - `part` of `parts` computes its share of the outputs; shares never write the same element.
 * - In canonical order, a sum over tokens is one sum per chunk of a sequence (rows in order); these
 *   are added as core/base/zigzag.h and core/base/fold.h define, and every node is rounded to the
 *   type of the output.
 *
 * A gradient operand that accumulates is updated once, at the end: old + new. */
#pragma once
#include "core/exec/control.h"
#include "core/job/job.h"
#include "core/program/op.h"
#include "core/base/zigzag.h"
#include <glib.h>

#define WEFT_MOST_OPERANDS 8

struct weft_operand {
  void *data; /* NULL only for an operand that the op can lack */
  uint64_t n; /* elements */
  uint8_t dtype;
  uint8_t accumulate; /* 1: the kernel adds to the old contents; 0: the kernel overwrites them */
};

/* Position of an op in the model and in the global batch. A dropout mask depends on it, on the
 * seed, the step and the site (dropout.h). */
struct weft_random_key {
  uint32_t layer;
  int64_t sequence; /* index in the global batch of the first sequence of the microbatch */
};

/* Where the elements of a call lie in a whole tensor, for stochastic rounding: rows of `columns`
 * elements that lie `stride` apart in the tensor. weft_whole_element() (stochastic.h) computes the
 * index of an element in the tensor. */
struct weft_whole {
  uint64_t key; /* hash of the name of the whole tensor */
  uint64_t start, columns, stride, offset;
};

/* The parameter of an op of Muon, as one tensor parallel rank has it. `ways` ranks divide its rows
 * or its columns (enum weft_cut); this rank has part number `at`. tail: as in struct weft_param. */
struct weft_matrix {
  uint64_t rows, columns, tail;
  uint32_t ways, at;
  uint8_t cut;
};

struct weft_kernel {
  enum weft_op_kind kind;
  struct weft_shape shape;
  struct weft_place tp, cp; /* place of this rank in each group; size 0: not parallel. cp: the ranks
                             * that share a sequence; for ring attention, only the ranks of the
                             * ring */
  /* settings of the model that kernels read: norm, epsilon, heads, rotary embedding, sequence
   * length */
  const union weft_model *model;
  const struct weft_control *control; /* parameters of the step: Adam, clipping, loss scale */
  const union weft_train *train; /* settings of the job that only kernels of Muon read */
  /* In ring attention: the keys come from the rank this many places before this rank. In
   * join_sequence: 1 if slice j came from the rank j places before this rank; 0 if slice j came
   * from rank j. */
  uint32_t before;
  struct weft_random_key draw;
  /* only for adam with stochastic rounding: the place of the elements in the whole tensor */
  struct weft_whole whole;
  gboolean canonical;
  /* attention on the GPU. fused: use the vendor's library (cuDNN) if it is available; quicker: use
   * the library only if it is faster than Weft's kernel; deterministic: use the library's
   * deterministic mode */
  gboolean fused, quicker, deterministic;
  gboolean decay; /* only for updates of the optimizer: apply weight decay */
  struct weft_matrix matrix; /* only for ops of Muon on one parameter */
  /* operands of the op, in the order of core/ops.def */
  struct weft_operand operand[WEFT_MOST_OPERANDS];
};

/* Number of query groups (key and value heads) of this rank. */
static inline uint64_t
weft_kernel_groups (const struct weft_kernel *k)
{
  return MAX (1, (uint64_t) k->model->num_query_groups / (k->tp.of ? k->tp.of : 1));
}

/* Number of tensor-parallel ranks that share one query group. In canonical order, each of these
 * ranks holds all queries of the group (core/passes/shard/tensor.c). */
static inline uint64_t
weft_kernel_group_ranks (const struct weft_kernel *k)
{
  uint64_t groups = (uint64_t) k->model->num_query_groups;
  return k->canonical && k->tp.of > groups ? k->tp.of / groups : 1;
}

static inline uint64_t
weft_kernel_heads (const struct weft_kernel *k)
{
  return (uint64_t) k->model->num_attention_heads / (k->tp.of ? k->tp.of : 1) *
         weft_kernel_group_ranks (k);
}

/* Number of tokens of each sequence that this rank has. */
static inline uint64_t
weft_kernel_sequence (const struct weft_kernel *k)
{
  return (uint64_t) k->model->seq_length / MAX (1, k->cp.of);
}

/* Position of a token in its sequence; tokens of all sequences are numbered one after the other. */
static inline uint64_t
weft_kernel_position (const struct weft_kernel *k, uint64_t token)
{
  uint64_t sequence = weft_kernel_sequence (k);
  return weft_position (k->cp, sequence, token % sequence);
}

/* Row of the table of learned positions that a token uses. */
static inline uint64_t
weft_kernel_position_row (const struct weft_kernel *k, uint64_t token)
{
  return weft_kernel_position (k, token) + (uint64_t) k->model->position_offset;
}

struct weft_kernel_row {
  void (*cpu) (const struct weft_kernel *k, uint32_t part, uint32_t parts);

  /* The fp64 reference. Floating-point operands are arrays of double; int32 operands and row counts
   * keep their type; loss and squares are one double each. NULL for an op that computes nothing. */
  void (*reference) (const struct weft_kernel *k);

  /* Number of elements that shape and model require of an operand; 0: any number. */
  uint64_t (*extent) (const struct weft_kernel *k, uint32_t operand);
};

/* Refuses a model that the kernels would compute differently: some values of its settings (an
 * unknown rotary scaling, for example) do not define a computation. Executors that compute real
 * numbers call this function when they open a plan; planning and simulation do not. */
gboolean weft_kernels_check_model (const union weft_model *model, GError **error);

/* Whether an index operand holds valid indices: token ids, expert numbers, row numbers, row counts.
 * TRUE for other operands. */
gboolean weft_kernel_index_valid (const struct weft_kernel *k, uint32_t operand);

/* The table of kernels, by op kind. cpu is NULL for ops without a kernel. */
extern const struct weft_kernel_row weft_kernels[WEFT_N_OP];

/* Declares the functions weft_cpu_WORD, weft_ref_WORD and weft_extent_WORD for every KERNEL row of
 * core/ops.def. */
#define KERNEL(id, name, ...)                                                                      \
  void weft_cpu_##name (const struct weft_kernel *k, uint32_t part, uint32_t parts);               \
  void weft_ref_##name (const struct weft_kernel *k);                                              \
  uint64_t weft_extent_##name (const struct weft_kernel *k, uint32_t operand);
#include "core/ops.def"
