/* Matrix products computed in pieces, which overlap the collectives of tensor parallel ranks
 * (Transformer Engine's userbuffers, tp_comm_overlap of Megatron-Core; a compiler's
 * micro-pipelining, enable_async_tensor_parallel). For t ranks:
 *
 *   gather, ring    Forward of qkv and fc1, input gradients of proj and fc2. The matrix product has
 *                   t pieces of rows, beginning with this rank's rows. Each piece is multiplied
 *                   while it is sent to the next rank of the ring, in t - 1 steps.
 *   scatter, split  Forward of proj and fc2. The matrix product has SPLITS pieces of columns. Each
 *                   piece is reduce-scattered while the next piece is computed.
 *   scatter, ring   Input gradients of qkv and fc1, if the job requests a ring. The matrix product
 *                   has t pieces of rows. Each piece is sent to the rank that owns these rows. The
 *                   owner adds the received pieces.
 *   bulk            Whole matrix products. The all-gather of a saved input runs beside the input
 *                   gradient product. The reduce-scatter of the input gradient runs beside the
 *                   weight gradient product. tensor.c appends these two collectives, whose buffers
 *                   this file creates.
 *
 * For each linear layer and each of its matrix products, all transformer layers share one permanent
 * buffer for sent and received pieces. Pieces and whole products give equal bits: rows and columns
 * are independent, and pieces received in a ring are added at the end, in the order of ranks. */
#include "core/passes/shard/parts.h"
#include "core/base/invariant.h"

/* number of pieces of a pipelined matrix product: num_splits in
 * transformer_engine/pytorch/module/base.py */
#define SPLITS 4

enum product { FORWARD, DGRAD, WGRAD, N_PRODUCT };

/* How a linear layer's matrix product overlaps its collective. At most one field is TRUE. All
 * FALSE: no overlap. */
struct overlaps {
  gboolean gather, split, ring;
};

static gboolean
is_plain (const struct weft_step *s, enum weft_layer_param which)
{
  return which == WEFT_QKV_WEIGHT   ? s->strategy->tp_comm_overlap_disable_qkv
         : which == WEFT_FC1_WEIGHT ? s->strategy->tp_comm_overlap_disable_fc1
                                    : FALSE;
}

static gboolean
is_column (enum weft_layer_param which)
{
  return which == WEFT_QKV_WEIGHT || which == WEFT_FC1_WEIGHT;
}

static gboolean
is_named (enum weft_layer_param which)
{
  return is_column (which) || which == WEFT_PROJ_WEIGHT || which == WEFT_FC2_WEIGHT;
}

static struct overlaps
overlaps (const struct weft_step *s, enum weft_layer_param which, enum product product)
{
  const union weft_strategy *k = s->strategy;
  /* the matrix product follows an all-gather */
  gboolean into = is_column (which) == (product == FORWARD);
  gboolean gathers = (k->tp_comm_overlap_ag || k->tp_comm_atomic_ag) && !is_plain (s, which);
  gboolean scatters = k->tp_comm_overlap_rs || k->tp_comm_atomic_rs;

  if (!weft_tensor_scatters (s) || !is_named (which))
    return (struct overlaps){ 0 };
  if (k->enable_async_tensor_parallel)
    return (struct overlaps){ .gather = into, .ring = !into };
  if (!k->tp_comm_overlap)
    return (struct overlaps){ 0 };
  return (struct overlaps){ .gather = into && gathers,
                            .split = !into && product == FORWARD && scatters,
                            .ring = !into && product == DGRAD && k->tp_comm_overlap_rs_dgrad &&
                                    !is_plain (s, which) };
}

/* ------------------------------------------------------------------------------- buffers */

static uint32_t
room (struct weft_step *s, enum weft_layer_param which, enum product product, enum weft_dtype dtype,
      uint64_t elements)
{
  static const char *const products[N_PRODUCT] = { "fprop", "dgrad", "wgrad" };
  static const char *const maps[WEFT_N_LAYER_PARAM] = { [WEFT_QKV_WEIGHT] = "qkv",
                                                        [WEFT_PROJ_WEIGHT] = "proj",
                                                        [WEFT_FC1_WEIGHT] = "fc1",
                                                        [WEFT_FC2_WEIGHT] = "fc2" };
  uint32_t *room = &s->shard->overlap_buffer[which * N_PRODUCT + product];
  g_autofree char *name = g_strdup_printf ("%s_%s", maps[which], products[product]);

  /* A delayed weight gradient reads this input after other layers have overwritten the shared
   * buffer. The input therefore needs a buffer of its own. */
  if (product == DGRAD && weft_step_delays (s))
    return weft_step_buffer (s, WEFT_BUF_ACTIVATIONS, dtype, elements, name);
  if (*room == WEFT_NO_BUF)
    *room = weft_step_permanent (s, WEFT_BUF_COMMUNICATION, dtype, elements, name);
  WEFT_INVARIANT (weft_step_elements (s, *room) == elements);
  return *room;
}

/* Returns a view of elements [first, first + n) of `buf`. `buf` may be a view. */
static uint32_t
slice (struct weft_step *s, uint32_t buf, uint64_t first, uint64_t n, const char *name)
{
  const struct weft_buf row = *weft_build_buf_at (s->b, buf);
  uint64_t size = weft_dtype_bytes (row.dtype);
  uint32_t view =
      weft_build_view (s->b, row.base == WEFT_NO_BUF ? buf : row.base,
                       (row.base == WEFT_NO_BUF ? 0 : row.offset) + first * size, n * size, name);

  weft_build_buf_at (s->b, view)->dtype = row.dtype;
  return view;
}

/* Returns a view of `buf` for ops that each access only the rows of one rank: of this rank, or of
 * the op's peer. */
static uint32_t
by_rank (struct weft_step *s, uint32_t buf, const char *name)
{
  uint32_t view = slice (s, buf, 0, weft_step_elements (s, buf), name);

  weft_build_buf_at (s->b, view)->shard = WEFT_GROUP_TP;
  return view;
}

/* ------------------------------------------------------------------------------ products */

uint32_t
weft_piece_multiply (struct weft_step *s, const struct weft_piece *p, uint32_t x, uint32_t y)
{
  gboolean both = p->kind == WEFT_OP_FP8_MATMUL || p->kind == WEFT_OP_FP8_MATMUL_DGRAD;
  gboolean scaled =
      both || p->kind == WEFT_OP_MATMUL_FP8_WEIGHTS || p->kind == WEFT_OP_MATMUL_DGRAD_FP8_WEIGHTS;
  gboolean forward = p->kind == WEFT_OP_MATMUL || p->kind == WEFT_OP_MATMUL_FP8_WEIGHTS ||
                     p->kind == WEFT_OP_FP8_MATMUL;
  struct weft_use use[6];
  uint32_t n = 0;

  use[n++] = (struct weft_use) WEFT_R (x);
  if (both)
    use[n++] = (struct weft_use) WEFT_R (p->x_scale);
  use[n++] = (struct weft_use) WEFT_R (p->w);
  if (scaled)
    use[n++] = (struct weft_use) WEFT_R (p->w_scale);
  if (forward)
    use[n++] = (struct weft_use) WEFT_R (p->bias);
  use[n++] = (struct weft_use) WEFT_W (y);
  return weft_emit (s, p->kind, p->name, p->shape, use, n);
}

/* Appends the matrix product of one piece. `last` is FALSE if another piece of the same matrix
 * product follows. Software that runs pieces on several streams then starts the next piece on SMs
 * that this piece does not use. */
static uint32_t
multiply (struct weft_step *s, const struct weft_piece *p, uint32_t x, uint32_t y, int peer,
          gboolean last)
{
  struct weft_op at = s->at;

  s->at.peer = peer;
  if (!last && s->job->stack.piece_streams > 1)
    s->at.flags |= WEFT_OP_PIECE;
  uint32_t op = weft_piece_multiply (s, p, x, y);
  s->at = at;
  return op;
}

/* Appends the send and receive of one ring step. The caller adds the dependencies on kernels. */
static void
hand_on (struct weft_step *s, const char *name, uint32_t from, uint32_t to, int distance)
{
  struct weft_op row = { .kind = WEFT_OP_SHIFT,
                         .group = WEFT_GROUP_TP,
                         .flags = WEFT_OP_USER_BUFFER | s->at.flags,
                         .peer = distance,
                         .name = weft_build_name (s->b, name) };
  const struct weft_buf *buf = weft_build_buf_at (s->b, from);

  weft_emit_on (s, WEFT_LANE_TP, row, WEFT_SHAPE (buf->dtype, weft_step_elements (s, from)),
                WEFT_USES (WEFT_R (from), WEFT_W (to)));
}

/* Appends a kernel that sorts the received pieces by rank. In the receive buffer slot j has the
 * piece of the rank j places away, so the pieces must be moved. (Transformer Engine's userbuffers
 * receive each piece at its final place.) */
static void
settle (struct weft_step *s, const char *name, uint32_t own, uint32_t all)
{
  uint64_t n = weft_step_elements (s, all), piece = n / s->mesh->tp;
  uint32_t came = slice (s, all, piece, n - piece, name);

  weft_emit (s, WEFT_OP_SETTLE, name,
             WEFT_SHAPE (weft_build_buf_at (s->b, all)->dtype, n, s->mesh->tp),
             WEFT_USES (WEFT_R (own), WEFT_R (came), WEFT_W (all)));
}

/* Appends an all-gather as a ring, overlapped with the matrix product that reads the gathered rows.
 * x has this rank's rows; y receives the product for the rows of all ranks. Returns the gathered
 * x. */
static uint32_t
gather_ring (struct weft_step *s, const struct weft_piece *p, enum product product, uint32_t x,
             uint32_t y)
{
  uint32_t t = s->mesh->tp, at = x, kernel = weft_build_last (s->b, WEFT_LANE_GPU);
  uint64_t n = weft_step_elements (s, x);
  uint32_t all = room (s, p->which, product, weft_build_buf_at (s->b, x)->dtype, n * t);
  uint32_t rows = by_rank (s, y, p->name);

  for (uint32_t j = 0; j < t; j++) {
    uint32_t next = j + 1 < t ? slice (s, all, (j + 1) * n, n, p->name) : WEFT_NO_BUF;
    if (next != WEFT_NO_BUF) {
      hand_on (s, p->name, at, next, 1);
      if (j == 0)
        weft_step_wait_for_stream (s, kernel);
    }
    multiply (s, p, at, rows, -(int) j, j + 1 == t);
    at = next;
  }
  return all;
}

/* Appends a matrix product and its reduce-scatter, pipelined over pieces of columns. y receives
 * this rank's rows of the sum. */
static void
scatter_split (struct weft_step *s, const struct weft_piece *whole, uint32_t x, uint32_t y)
{
  uint64_t columns = whole->shape.dim[1], k = whole->shape.dim[2], splits = SPLITS;
  enum weft_dtype dtype = whole->shape.out_dtype;

  while (columns % splits)
    splits /= 2;
  uint64_t n = columns / splits;
  uint32_t all = room (s, whole->which, FORWARD, dtype, s->tokens * columns);
  uint32_t got =
      weft_step_buffer (s, WEFT_BUF_COMMUNICATION, dtype, s->rows * columns, whole->name);
  for (uint64_t j = 0; j < splits; j++) {
    struct weft_piece p = *whole;
    uint32_t piece = slice (s, all, j * s->tokens * n, s->tokens * n, p.name);
    uint32_t mine = slice (s, got, j * s->rows * n, s->rows * n, p.name);
    p.w = slice (s, whole->w, j * n * k, n * k, p.name);
    p.shape.dim[1] = n;
    uint32_t kernel = multiply (s, &p, x, piece, 0, j + 1 == splits);
    weft_tensor_scatter_into (s, piece, mine, p.name);
    weft_build_dep (s->b, kernel);
  }
  weft_emit (s, WEFT_OP_JOIN_COLUMNS, whole->name, WEFT_SHAPE (dtype, s->rows, n, splits),
             WEFT_USES (WEFT_R (got), WEFT_W (y)));
  weft_build_dep (s->b, weft_build_last (s->b, WEFT_LANE_TP));
}

/* Appends a matrix product and its reduce-scatter as a ring. Each piece has the rows of one rank
 * and is sent to that rank. This rank's own piece is computed last. y receives this rank's rows of
 * the sum. */
static void
scatter_ring (struct weft_step *s, const struct weft_piece *p, enum product product, uint32_t x,
              uint32_t y)
{
  uint32_t t = s->mesh->tp, rows = by_rank (s, x, p->name);
  enum weft_dtype dtype = p->shape.out_dtype;
  uint64_t n = weft_step_elements (s, y);
  uint32_t all = room (s, p->which, product, dtype, (2 * t - 1) * n);
  uint32_t got = slice (s, all, 0, t * n, p->name), own = slice (s, all, 0, n, p->name);

  for (uint32_t j = 1; j < t; j++) {
    uint32_t piece = slice (s, all, (t + j - 1) * n, n, p->name);
    uint32_t kernel = multiply (s, p, rows, piece, (int) j, FALSE);
    hand_on (s, p->name, piece, slice (s, all, j * n, n, p->name), (int) j);
    weft_step_wait_for_stream (s, kernel);
  }
  multiply (s, p, rows, own, 0, TRUE);
  settle (s, p->name, own, got);
  weft_build_dep (s->b, weft_build_last (s->b, WEFT_LANE_TP));
  struct weft_shape shape = WEFT_SHAPE (dtype, n, t);
  weft_emit (s, WEFT_OP_SUM_SLICES, p->name, shape, WEFT_USES (WEFT_R (got), WEFT_W (y)));
}

/* ----------------------------------------------------------------------------- for linear.c */

gboolean
weft_overlap_forward (struct weft_step *s, struct weft_piece *p, uint32_t x, uint32_t *y)
{
  struct overlaps o = overlaps (s, p->which, FORWARD);
  uint64_t columns = p->shape.dim[1];

  if (!o.gather && !o.split && !o.ring)
    return FALSE;
  uint64_t rows = o.gather ? s->tokens : s->rows;
  *y = weft_step_buffer (s, WEFT_BUF_ACTIVATIONS, p->shape.out_dtype, rows * columns, p->name);
  p->shape.dim[0] = o.split ? s->tokens : s->rows;
  if (o.gather)
    gather_ring (s, p, FORWARD, x, *y);
  else if (o.split)
    scatter_split (s, p, x, *y);
  else
    scatter_ring (s, p, FORWARD, x, *y);
  return TRUE;
}

gboolean
weft_overlap_dgrad (struct weft_step *s, struct weft_piece *p, uint32_t *dy, uint32_t *dx)
{
  struct overlaps o = overlaps (s, p->which, DGRAD);
  uint64_t columns = p->shape.dim[2];

  if (!o.gather && !o.ring)
    return FALSE;
  *dx = weft_step_buffer (s, WEFT_BUF_ACTIVATIONS, p->shape.out_dtype,
                          (o.gather ? s->tokens : s->rows) * columns, p->name);
  p->shape.dim[0] = s->rows;
  if (o.gather) {
    uint32_t all = gather_ring (s, p, DGRAD, *dy, *dx);
    settle (s, p->name, *dy, all);
    *dy = all;
  } else {
    scatter_ring (s, p, WGRAD, *dy, *dx);
  }
  return TRUE;
}

gboolean
weft_overlap_is_bulk (const struct weft_step *s, enum weft_layer_param which, gboolean wgrad)
{
  const union weft_strategy *k = s->strategy;

  return k->tp_comm_overlap && weft_tensor_scatters (s) && is_column (which) &&
         !overlaps (s, which, DGRAD).ring &&
         (wgrad ? k->tp_comm_bulk_wgrad : k->tp_comm_bulk_dgrad);
}

uint32_t
weft_overlap_buffer (struct weft_step *s, enum weft_layer_param which, gboolean wgrad,
                     enum weft_dtype dtype, uint64_t elements)
{
  return room (s, which, wgrad ? WGRAD : DGRAD, dtype, elements);
}
