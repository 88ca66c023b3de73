/* program.h - a program: the work of every rank of one role in one step, as ops, buffers, shapes
 * and parameters.
 *
 * Invariants of a frozen program:
 * - op i depends only on ops with lower numbers: op numbers are a topological order;
 * - ops of one lane run in op order; deps[] holds only what lane order does not imply;
 * - a program holds bytes, shapes and mesh groups, never seconds, ranks or addresses;
 * - a buffer either owns memory or is a view into one that does (views are one level deep).
 *
 * A program is arrays of rows with interned shapes and names; one op takes 24 bytes. */
#pragma once
#include "core/program/op.h"
#include <glib.h>

#define WEFT_NO_LAYER 0xffffu
#define WEFT_NO_MICRO 0xffffu
#define WEFT_NO_BUF 0x3fffffffu
#define WEFT_NO_OP 0xffffffffu

/* Name of the views of the router's correction bias, which no optimizer updates. */
#define WEFT_EXPERT_BIAS "router.expert_bias"

/* Suffix of the names of views of largest magnitudes (delayed scaling), which are state too. */
#define WEFT_AMAX_SUFFIX ".amax"

/* Name of the flat fp32 copies of reduced gradients. */
#define WEFT_FP32_GRADIENTS "grad_fp32"
#define WEFT_CAST_WEIGHTS "cast_weights" /* weights that one microbatch has converted */

/* The last columns define how reports draw a kind (struct weft_report_part of
 * core/report/report.h): a letter and its colour in text, a colour on pages. */
#define WEFT_BUF_KIND_LIST(X)                                                                      \
  X (WEFT_BUF_WEIGHTS, "weights", "parameters as the kernels read them",                           \
     'w', WEFT_INK_BLUE, "#4e79a7")                                                                \
  X (WEFT_BUF_GRADIENTS, "gradients", "accumulated gradients", 'g', WEFT_INK_GREEN, "#59a14f")     \
  X (WEFT_BUF_OPTIMIZER, "optimizer", "master weights and moments",                                \
     'o', WEFT_INK_YELLOW, "#edc948")                                                              \
  X (WEFT_BUF_ACTIVATIONS, "activations", "stored for backward, or passed between kernels",        \
     'a', WEFT_INK_CYAN, "#76b7b2")                                                                \
  X (WEFT_BUF_GATHERED, "gathered", "parameters gathered for use",                                 \
     'G', WEFT_INK_MAGENTA, "#b07aa1")                                                             \
  X (WEFT_BUF_COMMUNICATION, "communication", "received and staged data",                          \
     'c', WEFT_INK_MAGENTA, "#f28e2b")                                                             \
  X (WEFT_BUF_WORKSPACE, "workspace", "transient scratch, scalars and tokens",                     \
     's', WEFT_INK_GREY, "#9c755f")
enum weft_buf_kind { WEFT_BUF_KIND_LIST (WEFT_WORD_ID) WEFT_N_BUF_KIND };
extern const char *const weft_buf_kind_words[];

#define WEFT_POOL_LIST(X)                                                                          \
  X (WEFT_POOL_DEVICE, "device", "GPU memory, private")                                            \
  X (WEFT_POOL_SYMMETRIC, "symmetric", "GPU memory registered with NCCL, equal on all ranks")      \
  X (WEFT_POOL_HOST, "host", "pinned host memory")
enum weft_pool { WEFT_POOL_LIST (WEFT_WORD_ID) WEFT_N_POOL };
extern const char *const weft_pool_words[];

/* Flags of an op, a bit each. Grouped ops of a lane (ncclGroup) are transfers, or collectives of
 * one kind and group in one launch. */
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
extern const char *const weft_op_flag_words[]; /* by bit, NULL-terminated */

/*     byte 0        1        2        3
 *  +--------+--------+--------+--------+
 *  |  kind  |  lane  | group  | flags  |
 *  +--------+--------+--------+--------+
 *  |      layer      |      micro      |   WEFT_NO_LAYER, WEFT_NO_MICRO when not bound
 *  +-----------------+-----------------+
 *  |      shape      |      name       |   index into shapes[], names[]
 *  +-----------------+-----------------+
 *  | chunk  | phase  |  peer  | reduce |   peer: +1 next stage, -1 previous stage;
 *  +--------+--------+--------+--------+   of a broadcast -1: the last member is its root;
 *  |              deps                 |   first index into deps[]; ends where the next op begins
 *  |              uses                 |   first index into uses[]; ends where the next op begins
 *  +-----------------------------------+   peer of a shift, and of kernels of context parallel
 *                                          ranks: core/ops.def */
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
  uint64_t offset;      /* bytes from the start of the pool; for a view, of its base */
  uint32_t first, last; /* first and last op that use it; a permanent buffer spans the step */
  uint32_t base;        /* WEFT_NO_BUF: owns memory */
  uint16_t name, layer, micro;
  uint8_t kind, pool, dtype, permanent;
  uint8_t shard; /* group kind: a use accesses only this rank's slice, one of n equal slices */
  uint8_t slice; /* group kind: the buffer is this rank's slice of a tensor n times as large */
};
_Static_assert (sizeof (struct weft_buf) == 40, "a buffer is 40 bytes");

#define WEFT_CUT_LIST(X)                                                                           \
  X (WEFT_CUT_NONE, "-", "every rank holds the whole tensor")                                      \
  X (WEFT_CUT_ROWS, "rows", "each rank holds some rows of each part of the tensor")                \
  X (WEFT_CUT_COLUMNS, "columns", "each rank holds some columns")
enum weft_cut { WEFT_CUT_LIST (WEFT_WORD_ID) };
extern const char *const weft_cut_words[];

/* A trained tensor as this role holds it: whole, or one of `ways` parts (core/program/cut.h). */
struct weft_param {
  uint16_t name, layer; /* names[]: "qkv.weight"; layer: number in the model, WEFT_NO_LAYER outside
                         * layers */
  uint8_t chunk;
  uint8_t decay;        /* weight decay applies: matrices, not norms and biases */
  uint8_t tied;         /* word embedding shared with the head, possibly on another stage */
  uint8_t duplicate;    /* a tied copy, which another stage counts in the gradient norm */
  uint32_t weight, grad;/* views of the flat buffers; WEFT_NO_BUF if only slices are kept */
  uint64_t rows, columns; /* size of the rank's part; columns is 1 for vectors */
  uint64_t whole_rows, whole_columns; /* size of the whole tensor */
  uint64_t tail;        /* rows consist of three parts that are cut separately: rows - 2 tail, tail,
                         * tail */
  uint64_t block;       /* for experts: rows per expert, cut as cut.h defines; else 0 */
  uint32_t ways, inner; /* ways: ranks of `group` that share the tensor; inner: ranks among
                         * these that share one block */
  uint8_t cut, group;   /* enum weft_cut, enum weft_group_kind */
  uint64_t start;       /* element, counted through all flat buffers: layout.h */
  uint64_t piece, stride; /* cut into row pieces, one per rank: layout.h; or 0 */
  uint32_t bucket;
  uint32_t scale;       /* for fp8: a view of one float, the tensor's largest magnitude, or a buffer
                         * of block scales; otherwise WEFT_NO_BUF */
};

typedef struct weft_program {
  uint32_t role, n_roles;
  uint32_t n_op, n_buf, n_shape, n_name, n_param;
  struct weft_op *op; /* n_op + 1 rows: the last row marks the end of deps and uses */
  uint32_t *deps;
  struct weft_use *uses;
  struct weft_buf *buf;
  struct weft_shape *shape;
  char **name;
  struct weft_param *param;
  uint32_t *pos;                   /* index of each op on its lane */
  uint32_t *lane_ops[WEFT_N_LANE]; /* op numbers of each lane in order */
  uint32_t lane_n[WEFT_N_LANE];
} weft_program;

void weft_program_free (weft_program *program);
G_DEFINE_AUTOPTR_CLEANUP_FUNC (weft_program, weft_program_free)

/* Offset of a buffer in its pool; a view's base offset plus its own. */
static inline uint64_t
weft_buf_address (const weft_program *p, uint32_t buf)
{
  const struct weft_buf *b = &p->buf[buf];
  return b->base == WEFT_NO_BUF ? b->offset : p->buf[b->base].offset + b->offset;
}

/* The buffer that owns the memory of `buf`: its base, or `buf` itself. */
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

/* One past the last position of the launch group that begins at position `first` of a lane. */
uint32_t weft_program_group_end (const weft_program *p, enum weft_lane lane, uint32_t first);

/* The payload of a collective plus the payloads of the earlier collectives in its launch group. For
 * the last op of a group: the payload of the launch. */
struct weft_shape weft_program_launch_shape (const weft_program *p, uint32_t op);

/* Whether the role computes a loss. */
gboolean weft_program_has_loss (const weft_program *p);

/* FLOPs of a kernel. */
double weft_op_flops (const weft_program *p, uint32_t op);

/* Memory traffic of a kernel, payload of communication. */
double weft_op_bytes (const weft_program *p, uint32_t op);

/* "L3 qkv m5", "bucket 2": for messages, traces and listings. The caller frees it. */
char *weft_op_label (const weft_program *p, uint32_t op);
char *weft_buf_label (const weft_program *p, uint32_t buf);

/* ------------------------------------------------------------------ building */

/* Appends ops in a topological order. Hazards between lanes are added automatically: a reader of a
 * buffer waits for its last writer, a writer for its readers. Views are tracked separately: a pass
 * that uses the same bytes through two views adds the dependency with weft_build_dep(). */
typedef struct weft_builder weft_builder;

weft_builder *weft_builder_new (uint32_t role, uint32_t n_roles);
void weft_builder_free (weft_builder *b);
G_DEFINE_AUTOPTR_CLEANUP_FUNC (weft_builder, weft_builder_free)

/* Each function interns a name or appends a row, and returns its number. weft_build_name_at()
 * returns a name; weft_build_buf_at() returns a row that may be changed until the program is
 * frozen, valid until the next buffer is appended. */
uint16_t weft_build_name (weft_builder *b, const char *name);
const char *weft_build_name_at (const weft_builder *b, uint16_t name);
uint32_t weft_build_buf (weft_builder *b, const struct weft_buf *row);
uint32_t weft_build_view (weft_builder *b, uint32_t base, uint64_t offset, uint64_t bytes,
                          const char *name);
uint32_t weft_build_param (weft_builder *b, const struct weft_param *row);
struct weft_buf *weft_build_buf_at (weft_builder *b, uint32_t buf);

/* Appends an op; the following deps and uses belong to it. weft_build_op() sets its shape, deps and
 * uses. */
uint32_t weft_build_op (weft_builder *b, const struct weft_op *row, const struct weft_shape *shape);
void weft_build_use (weft_builder *b, uint32_t buf, gboolean read, gboolean write);
void weft_build_dep (weft_builder *b, uint32_t op); /* WEFT_NO_OP: no dependency */

/* Adds an output to an op that was appended earlier: `buf`, which no op has used yet, replaces the
 * absent operand number `operand`. */
void weft_build_more (weft_builder *b, uint32_t op, uint32_t operand, uint32_t buf);

/* Changes the shape of an op that was appended earlier. */
void weft_build_reshape (weft_builder *b, uint32_t op, const struct weft_shape *shape);
const struct weft_shape *weft_build_shape_at (const weft_builder *b, uint32_t op);

/* The newest op on a lane, or WEFT_NO_OP. */
uint32_t weft_build_last (const weft_builder *b, enum weft_lane lane);

/* Computes lifetimes and lane order. The builder is empty afterwards. */
weft_program *weft_builder_freeze (weft_builder *b);

/* Adds dependencies (pairs: before, after) to a frozen program, for the memory planner; replaces
 * only its deps. */
void weft_program_add_deps (weft_program *program, const uint32_t (*pairs)[2], uint32_t n_pairs);

/* Fills pos, lane_ops, first and last from op, uses and buf. */
void weft_program_index (weft_program *program);

/* ---------------------------------------------------------------- happens-before */

/* before[op * WEFT_N_LANE + lane]: number of ops of that lane that must have ended when op starts,
 * by dependencies and lane order. The caller frees with g_free(). */
uint32_t *weft_program_order (const weft_program *program);

/* Whether op `first` must have ended when op `then` starts. */
static inline gboolean
weft_ordered (const weft_program *p, const uint32_t *before, uint32_t first, uint32_t then)
{
  return before[then * WEFT_N_LANE + p->op[first].lane] > p->pos[first];
}

/* ------------------------------------------------------------------------ text */

/* Prints the whole program; weft_program_parse() is the exact inverse. A row may go on in the next
 * line after a backslash. The caller frees the text. */
#define WEFT_PROGRAM_TEXT_VERSION 1
char *weft_program_print (const weft_program *program);
weft_program *weft_program_parse (const char *text, const char *name, GError **error);
