/* Context parallel attention. Each rank holds two pieces of every sequence (core/base/zigzag.h).
 * Attention also needs the keys and values of the other ranks:
 *
 *   p2p         ring attention: keys and values are sent around a ring while attention to the
 *               newest received keys is computed, and partial results are merged. Backward sends
 *               keys and values around the ring in the opposite direction, and their gradients one
 *               step later. After forward, the rank stores the keys and values of the last ring
 *               step instead of its own. Backward begins with these, and ends with the rank's own
 *               keys and values
 *   all_gather  keys and values are all-gathered before attention, in both passes; their gradients
 *               are reduce-scattered
 *   a2a         Ulysses: an all-to-all exchanges heads for tokens. Each rank has whole sequences of
 *               some heads, and computes attention as a single rank does
 *   a2a+p2p     Ulysses within groups of neighbouring ranks, rings between these groups
 *
 * (Transformer Engine pytorch/attention/dot_product_attention/context_parallel.py; Liu, Zaharia and
 * Abbeel 2023, arXiv 2310.01889; Jacobs et al. 2023, arXiv 2309.14509.)
 *
 * In canonical order (equal bits for all strategies) a ring only collects keys and values. One
 * attention kernel then reads all keys, as on a single rank. Gradients of keys and values are
 * summed in fp32 as a binary tree over the ranks. */
#include "core/passes/shard/parts.h"

/* Operands of the attention kernels. After the all-to-all of Ulysses a rank has fewer heads and
 * more tokens than before. */
struct part {
  /* width: columns of a key head; value: columns of a value head */
  uint64_t tokens, heads, groups, width, value;
  uint32_t qkv, o, lse;
  uint32_t d_o, dqkv; /* backward */
};

static uint32_t
ring_size (const struct weft_step *s)
{
  return s->mesh->cp / s->mesh->cp_heads;
}

static uint64_t
value_width (const struct weft_step *s)
{
  return s->model->kv_lora_rank ? s->model->v_head_dim : s->model->kv_channels;
}

/* Returns the width of a value head for the shape of attention ops (core/ops.def). 0 means that
 * value heads are as wide as key heads. */
static uint64_t
narrow (const struct weft_step *s)
{
  return s->model->kv_lora_rank ? s->model->v_head_dim : 0;
}

static struct part
part_of (const struct weft_step *s, const struct weft_attention_buffers *a)
{
  uint32_t ways = s->mesh->cp_heads;

  return (struct part){ .tokens = s->tokens * ways,
                        .heads = s->width.heads / ways,
                        .groups = s->width.groups / ways,
                        .width = s->model->kv_channels,
                        .value = value_width (s),
                        .qkv = a->qkv,
                        .o = a->whole_o == WEFT_NO_BUF ? a->o : a->whole_o,
                        .lse = a->lse };
}

static uint64_t
kv_columns (const struct part *p)
{
  return p->groups * (p->width + p->value);
}

/* Returns the number of sequences in a microbatch. */
static uint64_t
batch (const struct weft_step *s)
{
  return s->tokens * s->mesh->cp / s->model->seq_length;
}

static uint32_t
room (struct weft_step *s, enum weft_dtype dtype, uint64_t elements, const char *name)
{
  return weft_step_buffer (s, WEFT_BUF_COMMUNICATION, dtype, elements, name);
}

/* ------------------------------------------------------------------------ communication */

/* Appends a collective that waits for all kernels enqueued so far (c10d ProcessGroupNCCL). A step
 * of a ring can therefore be at most one step ahead of attention, and two buffers for keys and
 * values are enough. */
static uint32_t
communicate (struct weft_step *s, struct weft_op row, const char *name, uint32_t from, uint32_t to)
{
  uint32_t whole = weft_step_elements (s, from) < weft_step_elements (s, to) ? to : from;
  struct weft_shape shape =
      WEFT_SHAPE (weft_build_buf_at (s->b, whole)->dtype, weft_step_elements (s, whole));
  gboolean reduces = row.kind == WEFT_OP_REDUCE_SCATTER;
  uint32_t enqueued = weft_build_last (s->b, WEFT_LANE_GPU);

  row.name = weft_build_name (s->b, name);
  row.flags |= s->at.flags;
  uint32_t op =
      weft_emit_on (s, WEFT_LANE_CP, row, shape,
                    WEFT_USES ({ .buf = from, .read = 1, .write = reduces }, WEFT_W (to)));
  weft_build_dep (s->b, enqueued);
  return op;
}

static uint32_t
shift (struct weft_step *s, const char *name, uint32_t from, uint32_t to, struct weft_op how)
{
  how.kind = WEFT_OP_SHIFT;
  how.group = WEFT_GROUP_CP_RING;
  return communicate (s, how, name, from, to);
}

/* ------------------------------------------------------------------- heads for tokens */

/* Returns the shape of the ops that pack all heads of this rank's tokens for the all-to-all, or
 * unpack them. groups = 0: `heads` are heads of the attention output, as wide as values. */
static struct weft_shape
heads_shape (const struct weft_step *s, enum weft_dtype dtype, uint64_t heads, uint64_t groups)
{
  uint64_t width = groups ? (uint64_t) s->model->kv_channels : value_width (s);

  return WEFT_SHAPE (dtype, s->tokens, s->mesh->cp_heads, heads, groups, width,
                     groups ? narrow (s) : 0);
}

/* Returns the shape of the all-to-all's result: whole sequences for this rank's share of the
 * heads. */
static struct weft_shape
rows_shape (const struct weft_step *s, uint32_t x)
{
  const struct weft_buf *row = weft_build_buf_at (s->b, x);

  return WEFT_SHAPE (row->dtype, s->mesh->cp_heads, batch (s), s->tokens / batch (s),
                     weft_step_elements (s, x) / s->tokens / s->mesh->cp_heads);
}

/* Ulysses: x contains all heads of this rank's tokens. An all-to-all exchanges tokens for heads.
 * Returns a buffer with whole sequences for this rank's share of the heads. */
static uint32_t
heads_to_sequences (struct weft_step *s, uint32_t x, uint64_t heads, uint64_t groups,
                    const char *name)
{
  uint64_t n = weft_step_elements (s, x);
  enum weft_dtype dtype = weft_build_buf_at (s->b, x)->dtype;
  uint32_t packed = room (s, dtype, n, name), got = room (s, dtype, n, name);
  uint32_t y = weft_step_buffer (s, WEFT_BUF_ACTIVATIONS, dtype, n, name);

  weft_emit (s, WEFT_OP_SPLIT_HEADS, name, heads_shape (s, dtype, heads, groups),
             WEFT_USES (WEFT_R (x), WEFT_W (packed)));
  communicate (s, (struct weft_op){ .kind = WEFT_OP_ALL_TO_ALL, .group = WEFT_GROUP_CP_HEADS },
               name, packed, got);
  weft_emit (s, WEFT_OP_JOIN_SEQUENCE, name, rows_shape (s, x),
             WEFT_USES (WEFT_R (got), WEFT_W (y)));
  return y;
}

/* Reverses heads_to_sequences(). x contains whole sequences for this rank's share of the heads. The
 * function writes all heads of this rank's tokens to y. */
static void
sequences_to_heads (struct weft_step *s, uint32_t x, uint32_t y, uint64_t heads, uint64_t groups,
                    const char *name)
{
  uint64_t n = weft_step_elements (s, x);
  enum weft_dtype dtype = weft_build_buf_at (s->b, x)->dtype;
  uint32_t packed = room (s, dtype, n, name), got = room (s, dtype, n, name);

  weft_emit (s, WEFT_OP_SPLIT_SEQUENCE, name, rows_shape (s, x),
             WEFT_USES (WEFT_R (x), WEFT_W (packed)));
  communicate (s, (struct weft_op){ .kind = WEFT_OP_ALL_TO_ALL, .group = WEFT_GROUP_CP_HEADS },
               name, packed, got);
  weft_emit (s, WEFT_OP_JOIN_HEADS, name, heads_shape (s, dtype, heads, groups),
             WEFT_USES (WEFT_R (got), WEFT_W (y)));
}

/* ------------------------------------------------------------------ keys and values */

static struct weft_shape
kv_shape (const struct weft_step *s, const struct part *p)
{
  return WEFT_SHAPE (s->product_dtype, p->tokens, p->heads, p->groups, p->width, narrow (s));
}

static uint32_t
take_kv (struct weft_step *s, const struct part *p, uint32_t to)
{
  weft_emit (s, WEFT_OP_TAKE_KV, "take_kv", kv_shape (s, p),
             WEFT_USES (WEFT_R (p->qkv), WEFT_W (to)));
  return to;
}

static void
put_kv (struct weft_step *s, const struct part *p, uint32_t kv, uint32_t qkv)
{
  struct weft_shape shape = kv_shape (s, p);

  shape.dtype = weft_build_buf_at (s->b, kv)->dtype;
  weft_emit (s, WEFT_OP_PUT_KV, "put_kv", shape, WEFT_USES (WEFT_R (kv), WEFT_RW (qkv)));
}

static uint32_t
kv_room (struct weft_step *s, const struct part *p, const char *name)
{
  return room (s, s->product_dtype, p->tokens * kv_columns (p), name);
}

/* Returns the shape of ops that join the keys and values of all ring ranks into whole sequences, or
 * split them. The shape has one slice for each rank of the ring. */
static struct weft_shape
zigzag_shape (const struct weft_step *s, const struct part *p, enum weft_dtype dtype)
{
  return WEFT_SHAPE (dtype, ring_size (s), batch (s), p->tokens / batch (s), kv_columns (p));
}

/* Gathers keys and values with the steps of a ring. Slice j receives the keys and values of the
 * rank j places before this rank. Returns the last step's op. */
static uint32_t
collect_by_ring (struct weft_step *s, const struct part *p, uint32_t slices)
{
  uint64_t bytes = p->tokens * kv_columns (p) * weft_dtype_bytes (s->product_dtype);
  uint32_t at = take_kv (s, p, weft_build_view (s->b, slices, 0, bytes, "kv")), op = WEFT_NO_OP;

  for (uint32_t j = 1; j < ring_size (s); j++) {
    uint32_t next = weft_build_view (s->b, slices, j * bytes, bytes, "kv");
    op = shift (s, "kv", at, next, (struct weft_op){ 0 });
    at = next;
  }
  return op;
}

static uint32_t
collect_at_once (struct weft_step *s, const struct part *p, uint32_t slices)
{
  uint32_t kv = take_kv (s, p, kv_room (s, p, "kv"));

  return communicate (s,
                      (struct weft_op){ .kind = WEFT_OP_ALL_GATHER, .group = WEFT_GROUP_CP_RING },
                      "kv", kv, slices);
}

/* Collects the keys and values of whole sequences from all ring ranks in a new buffer. Returns the
 * buffer. */
static uint32_t
collect (struct weft_step *s, const struct part *p)
{
  uint64_t n = p->tokens * kv_columns (p) * ring_size (s);
  gboolean ring = s->strategy->cp_comm_type != WEFT_CP_ALL_GATHER;
  uint32_t slices = room (s, s->product_dtype, n, "kv_slices");
  uint32_t all = room (s, s->product_dtype, n, "kv_all");
  uint32_t got = (ring ? collect_by_ring : collect_at_once) (s, p, slices);
  struct weft_op at = s->at;

  s->at.peer = ring ? -1 : 0;
  weft_emit (s, WEFT_OP_JOIN_SEQUENCE, "kv", zigzag_shape (s, p, s->product_dtype),
             WEFT_USES (WEFT_R (slices), WEFT_W (all)));
  weft_build_dep (s->b, got);
  s->at = at;
  return all;
}

/* Reduce-scatters the gradients of the keys and values of whole sequences. Each rank receives the
 * gradients for its own tokens. */
static void
scatter_gradients (struct weft_step *s, const struct part *p, uint32_t all, uint32_t dqkv)
{
  enum weft_dtype dtype = weft_build_buf_at (s->b, all)->dtype;
  uint64_t n = weft_step_elements (s, all);
  uint32_t slices = room (s, dtype, n, "dkv_slices");
  uint32_t mine = room (s, dtype, n / ring_size (s), "dkv");

  weft_emit (s, WEFT_OP_SPLIT_SEQUENCE, "dkv", zigzag_shape (s, p, dtype),
             WEFT_USES (WEFT_R (all), WEFT_W (slices)));
  communicate (s, (struct weft_op){ .kind = WEFT_OP_REDUCE_SCATTER, .group = WEFT_GROUP_CP_RING },
               "dkv", slices, mine);
  put_kv (s, p, mine, dqkv);
}

/* -------------------------------------------------------------------- parts of attention */

/* The keys and values that one attention kernel reads. whole = TRUE: keys and values of the whole
 * sequence. FALSE: keys and values of the rank that is `before` places before this rank in the
 * ring. */
struct keys {
  uint32_t kv;
  gboolean whole;
  uint32_t before;
};

static struct weft_shape
part_shape (const struct weft_step *s, const struct part *p, const struct keys *keys)
{
  uint64_t n = keys->whole ? (uint64_t) s->model->seq_length : p->tokens / batch (s);

  return WEFT_SHAPE (s->product_dtype, p->tokens, n, p->heads, p->groups, p->width,
                     weft_layer_window (s), narrow (s));
}

static void
attend (struct weft_step *s, const struct part *p, const struct keys *keys)
{
  struct weft_op at = s->at;

  s->at.peer = (int8_t) - (int) keys->before;
  weft_emit (s, WEFT_OP_ATTENTION_PART, "attention", part_shape (s, p, keys),
             WEFT_USES (WEFT_R (p->qkv), WEFT_R (keys->kv), WEFT_W (p->o), WEFT_W (p->lse)));
  s->at = at;
}

/* Appends the backward of attention to one block of keys and values. The kernel writes the
 * gradients of keys and values to dkv, and the gradients of queries to dqkv. With `first` the
 * gradients of queries overwrite dqkv; otherwise they are added to dqkv. */
static void
attend_backward (struct weft_step *s, const struct part *p, const struct keys *keys, uint32_t dkv,
                 gboolean first)
{
  struct weft_shape shape = part_shape (s, p, keys);
  struct weft_op at = s->at;

  shape.out_dtype = weft_build_buf_at (s->b, dkv)->dtype;
  s->at.peer = (int8_t) - (int) keys->before;
  weft_emit (s, WEFT_OP_ATTENTION_PART_BWD, "attention", shape,
             WEFT_USES (WEFT_R (p->qkv), WEFT_R (keys->kv), WEFT_R (p->o), WEFT_R (p->lse),
                        WEFT_R (p->d_o), { .buf = p->dqkv, .read = !first, .write = 1 },
                        WEFT_W (dkv)));
  s->at = at;
}

/* -------------------------------------------------------------------------------- a ring */

static void
merge_part (struct weft_step *s, const struct part *p, const struct keys *keys)
{
  struct part next = *p;
  uint64_t n = p->tokens * p->heads;

  next.o = weft_step_buffer (s, WEFT_BUF_ACTIVATIONS, s->product_dtype, n * p->value, "part");
  next.lse = weft_step_buffer (s, WEFT_BUF_ACTIVATIONS, WEFT_FP32, n, "part_lse");
  attend (s, &next, keys);
  weft_emit (s, WEFT_OP_ATTENTION_MERGE, "merge",
             WEFT_SHAPE (s->product_dtype, p->tokens, p->heads, p->value),
             WEFT_USES (WEFT_RW (p->o), WEFT_RW (p->lse), WEFT_R (next.o), WEFT_R (next.lse)));
}

static void
ring_forward (struct weft_step *s, const struct part *p)
{
  struct keys keys = { .kv = take_kv (s, p, kv_room (s, p, "kv")) };

  for (uint32_t n = ring_size (s); keys.before < n; keys.before++) {
    gboolean last = keys.before + 1 == n;
    uint32_t next = last ? keys.kv : kv_room (s, p, "kv");
    if (!last)
      shift (s, "kv", keys.kv, next, (struct weft_op){ 0 });
    (keys.before ? merge_part : attend) (s, p, &keys);
    keys.kv = next;
  }
  put_kv (s, p, keys.kv, p->qkv);
}

static void
ring_backward (struct weft_step *s, const struct part *p)
{
  uint32_t n = ring_size (s), kv = take_kv (s, p, kv_room (s, p, "kv")), dkv = WEFT_NO_BUF;

  for (uint32_t left = n; left-- > 0;) {
    struct keys keys = { .kv = kv, .before = left };
    gboolean first = dkv == WEFT_NO_BUF;
    uint32_t got = WEFT_NO_BUF, mine = kv_room (s, p, "dkv");
    if (left)
      shift (s, "kv", keys.kv, kv = kv_room (s, p, "kv"), (struct weft_op){ .peer = -1 });
    if (!first)
      shift (s, "dkv", dkv, got = kv_room (s, p, "dkv"),
             (struct weft_op){ .peer = -1, .flags = left ? WEFT_OP_GROUPED : 0 });
    attend_backward (s, p, &keys, mine, first);
    if (!first)
      weft_emit (s, WEFT_OP_GRAD_ADD, "dkv",
                 WEFT_SHAPE (s->product_dtype, p->tokens * kv_columns (p)),
                 WEFT_USES (WEFT_RW (got), WEFT_R (mine)));
    dkv = first ? mine : got;
  }
  put_kv (s, p, dkv, p->dqkv);
}

/* ------------------------------------------------------------------------- all keys at once */

static void
whole_forward (struct weft_step *s, const struct part *p)
{
  struct keys keys = { .kv = collect (s, p), .whole = TRUE };

  attend (s, p, &keys);
}

static void
whole_backward (struct weft_step *s, const struct part *p)
{
  struct keys keys = { .kv = collect (s, p), .whole = TRUE };
  enum weft_dtype dtype = s->canonical ? WEFT_FP32 : s->product_dtype;
  uint32_t dkv = room (s, dtype, weft_step_elements (s, keys.kv), "dkv_all");

  attend_backward (s, p, &keys, dkv, TRUE);
  scatter_gradients (s, p, dkv, p->dqkv);
}

static gboolean
collects (const struct weft_step *s)
{
  return s->canonical || s->strategy->cp_comm_type == WEFT_CP_ALL_GATHER;
}

/* ------------------------------------------------------------------- whole sequences here */

static void
local_forward (struct weft_step *s, const struct part *p)
{
  weft_emit (s, WEFT_OP_ATTENTION, "attention",
             weft_layer_attention_shape (s, p->tokens, p->heads, p->groups),
             WEFT_USES (WEFT_R (p->qkv), WEFT_W (p->o), WEFT_W (p->lse)));
}

static void
local_backward (struct weft_step *s, const struct part *p)
{
  weft_emit (s, WEFT_OP_ATTENTION_BWD, "attention",
             weft_layer_attention_shape (s, p->tokens, p->heads, p->groups),
             WEFT_USES (WEFT_R (p->qkv), WEFT_R (p->o), WEFT_R (p->lse), WEFT_R (p->d_o),
                        WEFT_W (p->dqkv)));
}

/* --------------------------------------------------------------------------------- passes */

void
weft_context_attention (struct weft_step *s, struct weft_attention_buffers *a)
{
  gboolean ulysses = s->mesh->cp_heads > 1;

  if (ulysses) {
    a->qkv = heads_to_sequences (s, a->qkv, s->width.heads, s->width.groups, "qkv");
    a->whole_o = weft_product (s, s->width.q, "attention");
  }
  struct part p = part_of (s, a);
  (ring_size (s) == 1 ? local_forward : collects (s) ? whole_forward : ring_forward) (s, &p);
  if (ulysses)
    sequences_to_heads (s, a->whole_o, a->o, s->width.heads, 0, "attention");
}

void
weft_context_attention_backward (struct weft_step *s, const struct weft_attention_buffers *a,
                                 uint32_t d_o, uint32_t dqkv)
{
  gboolean ulysses = s->mesh->cp_heads > 1;
  struct part p = part_of (s, a);

  p.d_o = ulysses ? heads_to_sequences (s, d_o, s->width.heads, 0, "do") : d_o;
  p.dqkv = ulysses ? weft_product (s, s->width.qkv, "dqkv") : dqkv;
  (ring_size (s) == 1 ? local_backward : collects (s) ? whole_backward : ring_backward) (s, &p);
  if (ulysses)
    sequences_to_heads (s, p.dqkv, dqkv, s->width.heads, s->width.groups, "dqkv");
}

/* ------------------------------------------------------------------ gradients of weights */

void
weft_context_keep (struct weft_step *s, uint32_t grad, uint32_t pieces)
{
  weft_emit (
      s, WEFT_OP_KEEP_PIECE, "sequence",
      WEFT_SHAPE (weft_build_buf_at (s->b, grad)->dtype, weft_step_elements (s, grad), pieces),
      WEFT_USES (WEFT_RW (grad)));
}

void
weft_context_sum (struct weft_step *s, uint32_t grad, enum weft_group_kind group)
{
  uint32_t pieces = weft_mesh_group_size (s->mesh, group);
  const struct weft_buf row = *weft_build_buf_at (s->b, grad);
  gboolean view = row.base != WEFT_NO_BUF;

  if (pieces == 1 || s->n_micro == 1)
    return;
  uint32_t piece =
      weft_build_view (s->b, view ? row.base : grad, view ? row.offset : 0, row.bytes, "piece");
  weft_build_buf_at (s->b, piece)->dtype = row.dtype;
  weft_build_buf_at (s->b, piece)->shard = group;
  communicate (s, (struct weft_op){ .kind = WEFT_OP_REDUCE_SCATTER, .group = group }, "sequence",
               grad, piece);
  weft_context_keep (s, grad, pieces);
}
