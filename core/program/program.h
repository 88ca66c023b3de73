/* program.h - a program: the ops, buffers, shapes and parameters of one training step. All ranks of
 * one pipeline stage (role) run one program.
 *
 * Invariants of a frozen program:
 * - op i depends only on ops with lower numbers: op numbers are a topological order;
 * - ops of one lane (queue, like a CUDA stream) run in op order; deps[] holds only dependencies
 * that lane order does not imply;
 * - a program holds bytes, shapes and mesh groups, never seconds, ranks or addresses;
 * - a buffer either owns memory or is a view into a buffer that owns memory; no view is a view of a
 * view.
 *
 * A program is arrays of rows. Ops refer to shapes and names by number; one op takes 24 bytes. */
#pragma once
#include "core/program/op.h"
#include <glib.h>

#define WEFT_NO_LAYER 0xffffu
#define WEFT_NO_MICRO 0xffffu
#define WEFT_NO_BUF 0x3fffffffu
#define WEFT_NO_OP 0xffffffffu

/* Name of the buffer views that hold the router's correction bias, which no optimizer updates. */
#define WEFT_EXPERT_BIAS "router.expert_bias"

/* Name suffix of the buffer views that hold largest magnitudes (amax of delayed scaling). Their
 * content is kept from step to step, like weights. */
#define WEFT_AMAX_SUFFIX ".amax"

/* Name of the flat buffers with the fp32 weights of the optimizer. */
#define WEFT_FP32_WEIGHTS "master"

/* Name of the flat buffers with fp32 copies of the reduced gradients. */
#define WEFT_FP32_GRADIENTS "grad_fp32"
/* name of the buffer of weights that one microbatch has converted to another dtype */
#define WEFT_CAST_WEIGHTS "cast_weights"

/* The last three columns define how reports draw buffers of a kind (struct weft_report_part of
 * core/report/report.h): a letter and a colour in text, and the number of the colour in the palette
 * of figures (charts/looks.h). */
#define WEFT_BUF_KIND_LIST(X)                                                                      \
  X (WEFT_BUF_WEIGHTS, "weights", "parameters as the kernels read them",                           \
     'w', WEFT_INK_BLUE, 0)                                                                        \
  X (WEFT_BUF_GRADIENTS, "gradients", "accumulated gradients", 'g', WEFT_INK_GREEN, 2)             \
  X (WEFT_BUF_OPTIMIZER, "optimizer", "master weights and moments",                                \
     'o', WEFT_INK_YELLOW, 6)                                                                      \
  X (WEFT_BUF_ACTIVATIONS, "activations", "stored for backward, or passed between kernels",        \
     'a', WEFT_INK_CYAN, 4)                                                                        \
  X (WEFT_BUF_GATHERED, "gathered", "parameters gathered for use",                                 \
     'G', WEFT_INK_MAGENTA, 3)                                                                     \
  X (WEFT_BUF_COMMUNICATION, "communication", "received and staged data",                          \
     'c', WEFT_INK_MAGENTA, 1)                                                                     \
  X (WEFT_BUF_WORKSPACE, "workspace", "transient scratch, scalars and tokens",                     \
     's', WEFT_INK_GREY, 7)
enum weft_buf_kind { WEFT_BUF_KIND_LIST (WEFT_WORD_ID) WEFT_N_BUF_KIND };
extern const char *const weft_buf_kind_words[];

#define WEFT_POOL_LIST(X)                                                                          \
  X (WEFT_POOL_DEVICE, "device", "GPU memory, private")                                            \
  X (WEFT_POOL_SYMMETRIC, "symmetric", "GPU memory registered with NCCL, equal on all ranks")      \
  X (WEFT_POOL_HOST, "host", "pinned host memory")
enum weft_pool { WEFT_POOL_LIST (WEFT_WORD_ID) WEFT_N_POOL };
extern const char *const weft_pool_words[];

/* Flags of an op, one bit each. Consecutive ops of a lane that are marked as grouped run in one
 * launch (ncclGroup): all are sends and receives, or all are collectives of one kind and group. */
#define WEFT_OP_FLAG_LIST(X)                                                                       \
  X (WEFT_OP_GROUPED, 0, "grouped", "starts and ends with the previous op on its lane")            \
  X (WEFT_OP_RECOMPUTE, 1, "recompute", "forward work that backward repeats")                      \
  X (WEFT_OP_FUSED, 2, "fused", "part of the kernel of the previous op on its lane: fuse.c")       \
  X (WEFT_OP_USER_BUFFER, 3, "user_buffer", "overlaps a product through a buffer: overlap.c")      \
  X (WEFT_OP_EXPERTS, 4, "experts", "communicates expert weights, not dense ones: fsdp2.c")        \
  X (WEFT_OP_PIECE, 5, "piece", "the next piece of its product runs on another stream: overlap.c")
enum {
#define WEFT_OP_FLAG(id, bit, word, doc) id = 1 << bit,
  WEFT_OP_FLAG_LIST (WEFT_OP_FLAG)
#undef WEFT_OP_FLAG
};
/* flag names in the order of the bits, NULL-terminated */
extern const char *const weft_op_flag_words[];

/*     byte 0        1        2        3
 *  +--------+--------+--------+--------+
 *  |  kind  |  lane  | group  | flags  |
 *  +--------+--------+--------+--------+
 *  |      layer      |      micro      |   WEFT_NO_LAYER, WEFT_NO_MICRO: none
 *  +-----------------+-----------------+
 *  |      shape      |      name       |   index into shapes[], names[]
 *  +-----------------+-----------------+
 *  | chunk  | phase  |  peer  | reduce |   peer of send, recv: +1 next stage, -1 previous;
 *  +--------+--------+--------+--------+   peer of broadcast: -1 if the last member is the root
 *  |              deps                 |   index of the op's first row of deps[]; the rows end
 *  |              uses                 |   at the next op's first row; uses[]: as deps[]
 *  +-----------------------------------+
 * core/ops.def describes `peer` of a shift and of kernels of context parallel ranks. */
struct weft_op {
  uint8_t kind, lane, group, flags;
  uint16_t layer, micro;
  uint16_t shape, name;
  uint8_t chunk, phase;
  int8_t peer;
  uint8_t reduce;
  uint32_t deps, uses;
};
_Static_assert (sizeof (struct weft_op) == 24, "an op is 24 bytes");

struct weft_use {
  uint32_t buf : 30, read : 1, write : 1;
};

struct weft_buf {
  uint64_t bytes;
  /* bytes from the start of the memory pool; for a view: bytes from the start of its base buffer */
  uint64_t offset;
  /* numbers of the first and last op that use the buffer; a permanent buffer is in use during the
   * whole step */
  uint32_t first, last;
  /* the buffer into which this buffer is a view; WEFT_NO_BUF: the buffer owns memory */
  uint32_t base;
  uint16_t name, layer, micro;
  uint8_t kind, pool, dtype, permanent;
  /* shard: kind of a group, or 0. If set, each op that uses the buffer accesses only this rank's
   * slice, and the slices have equal size: one for each rank of the group */
  uint8_t shard;
  /* slice: kind of a group, or 0. If set, the buffer is this rank's slice of a larger tensor, which
   * has one slice for each rank of the group */
  uint8_t slice;
};
_Static_assert (sizeof (struct weft_buf) == 40, "a buffer is 40 bytes");

#define WEFT_CUT_LIST(X)                                                                           \
  X (WEFT_CUT_NONE, "-", "every rank holds the whole tensor")                                      \
  X (WEFT_CUT_ROWS, "rows", "each rank holds some rows of each part of the tensor")                \
  X (WEFT_CUT_COLUMNS, "columns", "each rank holds some columns")
enum weft_cut { WEFT_CUT_LIST (WEFT_WORD_ID) };
extern const char *const weft_cut_words[];

#define WEFT_NO_BUCKET 0xffffffffu

/* A trained tensor as this pipeline stage stores it: the whole tensor, or one of `ways` parts of it
 * (core/program/cut.h). */
struct weft_param {
  /* name: index into names[], for example of "qkv.weight"; layer: number in the whole model,
   * WEFT_NO_LAYER outside layers */
  uint16_t name, layer;
  uint8_t chunk;
  /* TRUE: weight decay applies to the parameter; TRUE for matrices, FALSE for norms and biases */
  uint8_t decay;
  /* TRUE: word embedding whose weight the output layer shares, possibly on another pipeline
   * stage */
  uint8_t tied;
  /* TRUE: a tied copy of a weight; the gradient norm of this stage omits the copy, because another
   * stage counts the weight */
  uint8_t duplicate;
  /* TRUE: no step changes the parameter: it has no gradient, no bucket and no optimizer state */
  uint8_t frozen;
  /* views of this parameter in the flat buffers of weights and gradients; WEFT_NO_BUF if the rank
   * stores only slices */
  uint32_t weight, grad;
  /* size of this rank's part of the parameter, in elements; columns is 1 for vectors */
  uint64_t rows, columns;
  uint64_t whole_rows, whole_columns; /* size of the parameter's whole tensor, in elements */
  /* tail: if not 0, the part's rows are three blocks of rows - 2 tail, tail and tail rows ([q | k |
   * v], or [gate | up] without a first block), and ranks divide each block separately */
  uint64_t tail;
  /* for expert weights: rows of one expert, each cut as cut.h defines; otherwise 0 */
  uint64_t block;
  /* ways: number of ranks of `group` among which the tensor is divided; inner: number of these
   * ranks that divide one expert block */
  uint32_t ways, inner;
  uint8_t cut, group; /* cut: enum weft_cut; group: enum weft_group_kind */
  /* index of the parameter's first element, counted through all flat buffers: layout.h */
  uint64_t start;
  /* piece: elements of one of the row pieces (one per rank) into which the tensor is cut; stride:
   * distance between two pieces (layout.h). Both are 0 if the tensor is not cut into pieces */
  uint64_t piece, stride;
  uint32_t bucket; /* WEFT_NO_BUCKET for a frozen parameter */
  /* for fp8 weights: a view of one float (the tensor's largest magnitude), or a buffer of block
   * scales; otherwise WEFT_NO_BUF */
  uint32_t scale;
};

typedef struct weft_program {
  uint32_t role, n_roles;
  uint32_t n_op, n_buf, n_shape, n_name, n_param;
  /* n_op + 1 rows; the last row is no op, and marks the end of the deps and uses of the last op */
  struct weft_op *op;
  uint32_t *deps;
  struct weft_use *uses;
  struct weft_buf *buf;
  struct weft_shape *shape;
  char **name;
  struct weft_param *param;
  uint32_t *pos; /* position of each op on its lane */
  /* op numbers of each lane, in the order in which the lane runs the ops */
  uint32_t *lane_ops[WEFT_N_LANE];
  uint32_t lane_n[WEFT_N_LANE];
} weft_program;

void weft_program_free (weft_program *program);
G_DEFINE_AUTOPTR_CLEANUP_FUNC (weft_program, weft_program_free)

/* Byte offset of a buffer in its memory pool. A view's offset is the offset of its base buffer plus
 * the view's offset in the base. */
static inline uint64_t
weft_buf_address (const weft_program *p, uint32_t buf)
{
  const struct weft_buf *b = &p->buf[buf];
  return b->base == WEFT_NO_BUF ? b->offset : p->buf[b->base].offset + b->offset;
}

/* The buffer that owns the memory of `buf`: the base if `buf` is a view, otherwise `buf` itself. */
static inline uint32_t
weft_buf_owner (const weft_program *p, uint32_t buf)
{
  return p->buf[buf].base == WEFT_NO_BUF ? buf : p->buf[buf].base;
}

static inline const struct weft_shape *
weft_op_shape (const weft_program *p, uint32_t op)
{
  return &p->shape[p->op[op].shape];
}

/* Returns the end of a launch group: one past its last position on the lane. The group begins at
 * position `first` of the lane. */
uint32_t weft_program_group_end (const weft_program *p, enum weft_lane lane, uint32_t first);

/* Shape with the payload of a collective plus the payloads of the earlier collectives in its launch
 * group. For the last op of a launch group, this is the payload of the whole launch. */
struct weft_shape weft_program_launch_shape (const weft_program *p, uint32_t op);

/* Whether the pipeline stage of this program computes the loss. */
gboolean weft_program_has_loss (const weft_program *p);

/* FLOPs of an op's kernel. */
double weft_op_flops (const weft_program *p, uint32_t op);

/* Memory traffic of a kernel, or payload of a collective, send or copy, in bytes. */
double weft_op_bytes (const weft_program *p, uint32_t op);

/* Returns a label such as "L3 qkv m5" or "bucket 2" for messages, traces and listings. The caller
 * frees the label. */
char *weft_op_label (const weft_program *p, uint32_t op);
char *weft_buf_label (const weft_program *p, uint32_t buf);

/* ------------------------------------------------------------------ building */

/* Builds a program from ops that callers append in a topological order. The builder adds
 * dependencies between lanes (queues) automatically: an op that reads a buffer waits for the op
 * that last wrote the buffer, and an op that writes a buffer waits for the ops that read it.
 * Hazards of views are tracked separately for each view. A pass that accesses the same bytes
 * through two views must add the dependency with weft_build_dep(). */
typedef struct weft_builder weft_builder;

weft_builder *weft_builder_new (uint32_t role, uint32_t n_roles);
void weft_builder_free (weft_builder *b);
G_DEFINE_AUTOPTR_CLEANUP_FUNC (weft_builder, weft_builder_free)

/* Each function stores a name or appends a row, and returns its number. Equal names share a number.
 * weft_build_name_at() returns a name. weft_build_buf_at() returns the row of a buffer, which the
 * caller may change until the program is frozen; the pointer is valid until the next buffer is
 * appended. */
uint16_t weft_build_name (weft_builder *b, const char *name);
const char *weft_build_name_at (const weft_builder *b, uint16_t name);
uint32_t weft_build_buf (weft_builder *b, const struct weft_buf *row);
uint32_t weft_build_view (weft_builder *b, uint32_t base, uint64_t offset, uint64_t bytes,
                          const char *name);
uint32_t weft_build_param (weft_builder *b, const struct weft_param *row);
struct weft_buf *weft_build_buf_at (weft_builder *b, uint32_t buf);

/* Appends an op. weft_build_op() sets the op's row and shape. The calls of weft_build_use() and
 * weft_build_dep() that follow add operands and dependencies to this op. */
uint32_t weft_build_op (weft_builder *b, const struct weft_op *row, const struct weft_shape *shape);
void weft_build_use (weft_builder *b, uint32_t buf, gboolean read, gboolean write);
void weft_build_dep (weft_builder *b, uint32_t op); /* does nothing if `op` is WEFT_NO_OP */

/* Adds an output to an op that was appended earlier. The op's operand number `operand`, which was
 * absent, becomes `buf`. No op may have used `buf` before. */
void weft_build_more (weft_builder *b, uint32_t op, uint32_t operand, uint32_t buf);

/* Replaces the shape of an op that was appended earlier. */
void weft_build_reshape (weft_builder *b, uint32_t op, const struct weft_shape *shape);
const struct weft_shape *weft_build_shape_at (const weft_builder *b, uint32_t op);

/* The op that was appended last on a lane, or WEFT_NO_OP. */
uint32_t weft_build_last (const weft_builder *b, enum weft_lane lane);

/* Computes buffer lifetimes and the order of each lane, and returns the program. The builder is
 * empty afterwards; the caller frees both. */
weft_program *weft_builder_freeze (weft_builder *b);

/* Adds dependencies (pairs of op numbers: before, after) to a frozen program, except those that
 * follow from others: an op waits for the last of several ops that are ordered. The memory planner
 * uses these dependencies to order ops that share an address. The rest of the program does not
 * change. Returns the number of added dependencies. */
uint32_t weft_program_add_deps (weft_program *program, const uint32_t (*pairs)[2], uint32_t n);

/* Sets pos, lane_ops, and the first and last op of every buffer, from the ops and their
 * operands. */
void weft_program_index (weft_program *program);

/* ---------------------------------------------------------------- happens-before */

/* Returns an array. Its element op * WEFT_N_LANE + lane is the number of ops of `lane` that must
 * have ended before `op` starts, by dependencies and lane order. The caller frees the array with
 * g_free(). */
uint32_t *weft_program_order (const weft_program *program);

/* Whether op `first` must have ended when op `then` starts. */
static inline gboolean
weft_ordered (const weft_program *p, const uint32_t *before, uint32_t first, uint32_t then)
{
  return before[then * WEFT_N_LANE + p->op[first].lane] > p->pos[first];
}

/* ------------------------------------------------------------------------ text */

/* Prints the whole program as text, from which weft_program_parse() reads an equal program. A
 * backslash continues a row on the next line. The caller frees the text. */
#define WEFT_PROGRAM_TEXT_VERSION 1
char *weft_program_print (const weft_program *program);
weft_program *weft_program_parse (const char *text, const char *name, GError **error);
