/* Dispatch of tokens to experts, and combine of the experts' outputs. A row is a copy of a token
 * for one of the token's experts.
 *
 *   sort      assigns a row to each pair (token, expert), in the order of experts, and counts the
 *             rows of each expert
 *   permute   copies tokens to their rows
 *
 * With expert parallelism (Megatron-Core token_dispatcher.py, MoEAlltoAllTokenDispatcher):
 *
 *   counts    the row counts of all ranks are all-gathered and transposed. Each rank then has the
 *             row counts of its experts, by expert and source rank
 *   wait      the host reads the counts before it enqueues ops whose sizes depend on these counts.
 *             A fixed capacity needs no wait
 *   exchange  an all-to-all sends rows to the ranks of their experts; received rows are in the
 *             order of source ranks
 *   share     expert tensor parallel ranks all-gather the rows that each of them received
 *   group     rows are put in the order of experts, and within an expert by source rank
 *
 * Outputs of sharded experts are reduce-scattered among expert tensor parallel ranks, and another
 * all-to-all returns the rows. Backward sends gradients through both all-to-alls again.
 *
 * With overlap_moe_expert_parallel_comm the all-to-all runs on a separate lane (stream). The
 * all-to-all then waits only for the kernels whose output it reads, not for all kernels enqueued so
 * far (expert_overlap.c).
 *
 * Rows of an expert are in the order of source ranks, and of the tokens of a source rank. A run on
 * a single rank has this order too. */
#include "core/passes/layer/moe.h"

static gboolean
is_distributed (const struct weft_step *s)
{
  return s->mesh->ep * s->mesh->etp > 1;
}

static uint32_t
table (struct weft_step *s, uint64_t n, const char *name)
{
  return weft_step_buffer (s, WEFT_BUF_ACTIVATIONS, WEFT_INT64, n, name);
}

/* Sorts this rank's tokens by expert. Returns a buffer with the number of rows of each expert. */
static uint32_t
sort_tokens (struct weft_step *s, struct weft_saved *saved, uint32_t prob)
{
  struct weft_moe z = weft_moe_sizes (s);
  uint32_t counts = table (s, z.experts * z.leaves, "counts");

  saved->row = weft_step_buffer (s, WEFT_BUF_ACTIVATIONS, WEFT_INT32, z.tokens * z.topk, "row");
  weft_emit (
      s, WEFT_OP_MOE_SORT, "sort",
      WEFT_SHAPE (s->product_dtype, z.tokens, z.topk, z.experts, z.capacity,
                  weft_moe_stride (s, &z) > 0, s->canonical ? z.leaves : 0),
      WEFT_USES (WEFT_R (saved->choice), WEFT_R (prob), WEFT_W (counts), WEFT_W (saved->row)));
  return counts;
}

/* ------------------------------------------------------------------- between ranks */

static void
communicate (struct weft_step *s, struct weft_op row, struct weft_shape shape,
             const struct weft_use *uses, uint32_t n_uses)
{
  gboolean aside = s->strategy->overlap_moe_expert_parallel_comm && weft_op_swaps (row.kind);
  uint32_t enqueued = aside ? WEFT_NO_OP : weft_build_last (s->b, WEFT_LANE_GPU);

  row.flags = s->at.flags;

  weft_emit_on (s, weft_group_lane (row.group), row, shape, uses, n_uses);
  weft_build_dep (s->b, enqueued);
  weft_wait_for_host (s);
}

static uint32_t
transpose (struct weft_step *s, uint32_t x, const uint64_t n[3], const char *name)
{
  uint32_t y = table (s, n[0] * n[1] * n[2], name);

  weft_emit (s, WEFT_OP_MOE_TURN, name, WEFT_SHAPE (WEFT_INT64, n[0], n[1], n[2]),
             WEFT_USES (WEFT_R (x), WEFT_W (y)));
  return y;
}

/* Returns a view of a buffer that only gives access to this rank's part. */
static uint32_t
shard_of (struct weft_step *s, uint32_t buf, enum weft_group_kind group)
{
  uint32_t shard = weft_build_view (s->b, buf, 0, weft_build_buf_at (s->b, buf)->bytes, "my_part");

  weft_build_buf_at (s->b, shard)->shard = group;
  return shard;
}

/* Reorders row counts to the order in which rows are received: by the expert tensor parallel rank
 * that received the rows, then by source rank, then by expert. */
static uint32_t
in_order_of_arrival (struct weft_step *s, uint32_t counts)
{
  struct weft_moe z = weft_moe_sizes (s);
  uint64_t outer = z.sources / z.inner, leaves = z.leaves;
  uint32_t y = transpose (s, counts, (uint64_t[]){ z.local, z.sources, leaves }, "by_source");

  if (z.inner == 1 || outer == 1)
    return y;
  return transpose (s, y, (uint64_t[]){ outer, z.inner, z.local * leaves }, "by_neighbour");
}

/* All-gathers the counts of rows from this rank's `counts`, which are by expert. Sets saved->counts
 * to the counts of this rank's experts, by expert and source rank; saved->sent to `counts`;
 * saved->back to the counts in the order of received rows. */
static void
exchange_counts (struct weft_step *s, struct weft_saved *saved, uint32_t counts)
{
  struct weft_moe z = weft_moe_sizes (s);
  uint64_t n = z.sources * z.experts * z.leaves;
  uint32_t all = table (s, n, "all_counts");

  communicate (s,
               (struct weft_op){ .kind = WEFT_OP_ALL_GATHER,
                                 .group = WEFT_GROUP_TP_EP,
                                 .name = weft_build_name (s->b, "counts") },
               WEFT_SHAPE (WEFT_INT64, n), WEFT_USES (WEFT_R (counts), WEFT_W (all)));
  uint32_t by_expert =
      transpose (s, all, (uint64_t[]){ z.sources, z.experts, z.leaves }, "by_expert");
  saved->counts = table (s, n / s->mesh->ep, "expert_counts");
  weft_emit (s, WEFT_OP_MOE_TURN, "expert_counts",
             WEFT_SHAPE (WEFT_INT64, 1, z.local * z.sources, z.leaves),
             WEFT_USES (WEFT_R (shard_of (s, by_expert, WEFT_GROUP_EP)), WEFT_W (saved->counts)));
  saved->sent = counts;
  saved->back = in_order_of_arrival (s, saved->counts);
  if (!weft_moe_stride (s, &z))
    weft_step_host_reads_both (s, "splits", saved->sent, saved->back);
}

/* A collective of rows whose number the device computes. counts: buffer with the numbers of rows;
 * in an all-to-all, of the rows that each rank sends. got: in an all-to-all, buffer with the
 * numbers of received rows. With a fixed capacity both buffers are absent. rows: expected number of
 * rows, with which costs are computed. room: number of rows in the output buffer. */
struct row_transfer {
  enum weft_op_kind kind;
  enum weft_group_kind group;
  uint32_t counts, got;
  uint64_t rows, room;
};

static uint32_t
transfer_rows (struct weft_step *s, const struct weft_routed *m, const struct row_transfer *j,
               uint32_t x)
{
  struct weft_moe z = weft_moe_sizes (s);
  enum weft_dtype dtype = weft_build_buf_at (s->b, x)->dtype;
  uint32_t y = weft_step_buffer (s, WEFT_BUF_ACTIVATIONS, dtype, j->room * m->columns, m->name);
  struct weft_op row = { .kind = j->kind,
                         .group = j->group,
                         .name = weft_build_name (s->b, m->name) };

  if (!weft_moe_stride (s, &z)) {
    const struct weft_use uses[] = { WEFT_R (x), WEFT_R (j->counts), WEFT_W (y), WEFT_R (j->got) };
    communicate (s, row, WEFT_SHAPE (dtype, j->rows * m->columns, m->columns), uses,
                 weft_op_swaps (j->kind) ? 4 : 3);
    return y;
  }
  row.kind = weft_op_even (j->kind);
  gboolean reduces = row.kind == WEFT_OP_REDUCE_SCATTER;
  communicate (s, row, WEFT_SHAPE (dtype, j->rows * m->columns),
               WEFT_USES ({ .buf = x, .read = 1, .write = reduces }, WEFT_W (y)));
  return y;
}

static uint32_t
exchange (struct weft_step *s, const struct weft_saved *saved, const struct weft_routed *m,
          gboolean returns, uint32_t x)
{
  struct weft_moe z = weft_moe_sizes (s);
  gboolean shares = z.inner > 1;
  struct row_transfer j = { .kind = WEFT_OP_ALL_TO_ALL_V,
                            .group = WEFT_GROUP_EP,
                            .counts = saved->sent,
                            .rows = z.got,
                            .room = z.got_room };

  if (s->mesh->ep == 1)
    return x;
  j.got = shares ? shard_of (s, saved->back, WEFT_GROUP_ETP) : saved->back;
  if (returns) {
    j.counts = j.got;
    j.got = saved->sent;
    j.room = z.sent;
  }
  return transfer_rows (s, m, &j, x);
}

static uint32_t
gather_neighbours (struct weft_step *s, const struct weft_saved *saved, const struct weft_routed *m,
                   uint32_t x)
{
  struct weft_moe z = weft_moe_sizes (s);
  struct row_transfer j = { .kind = WEFT_OP_ALL_GATHER_V,
                            .group = WEFT_GROUP_ETP,
                            .counts = saved->back,
                            .rows = z.rows,
                            .room = z.room };

  return z.inner == 1 ? x : transfer_rows (s, m, &j, x);
}

/* Reduce-scatters partial sums among expert tensor parallel ranks. If the sums are fp32, a kernel
 * afterwards converts them to the dtype of matrix products. */
static uint32_t
sum_neighbours (struct weft_step *s, const struct weft_saved *saved, const struct weft_routed *m,
                uint32_t x)
{
  struct weft_moe z = weft_moe_sizes (s);
  struct row_transfer j = { .kind = WEFT_OP_REDUCE_SCATTER_V,
                            .group = WEFT_GROUP_ETP,
                            .counts = saved->back,
                            .rows = z.rows,
                            .room = z.got_room };

  return z.inner == 1 ? x : weft_cast_to_compute (s, transfer_rows (s, m, &j, x), m->name);
}

/* Reorders rows between the order of source ranks and the order of experts. Returns x if the rank
 * has one expert whose rows are already in both orders. */
static uint32_t
regroup (struct weft_step *s, enum weft_op_kind kind, const struct weft_saved *saved, uint32_t x,
         uint64_t columns)
{
  struct weft_moe z = weft_moe_sizes (s);
  enum weft_dtype dtype = weft_build_buf_at (s->b, x)->dtype;

  if (z.local == 1 && (z.inner == 1 || z.inner == z.sources))
    return x;
  uint32_t y = weft_moe_rows (s, dtype, columns, "grouped");
  weft_emit (s, kind, weft_op_info[kind].word,
             WEFT_SHAPE (dtype, z.rows, columns, z.local, z.sources, weft_moe_stride (s, &z),
                         z.inner > 1 ? z.inner : 0),
             WEFT_USES (WEFT_R (saved->counts), WEFT_R (x), WEFT_W (y)));
  return y;
}

/* ---------------------------------------------------------------- of a whole sequence */

struct weft_peers
weft_rows_peers (struct weft_step *s, uint32_t counts)
{
  struct weft_moe z = weft_moe_sizes (s);
  struct weft_peers p = { .n = weft_mesh_group_size (s->mesh, WEFT_GROUP_ECP) };
  uint64_t each = z.sources * z.leaves, n = p.n * z.local * each;

  p.came = table (s, n, "all_counts");
  communicate (s,
               (struct weft_op){ .kind = WEFT_OP_ALL_GATHER,
                                 .group = WEFT_GROUP_ECP,
                                 .name = weft_build_name (s->b, "counts") },
               WEFT_SHAPE (WEFT_INT64, n), WEFT_USES (WEFT_R (counts), WEFT_W (p.came)));
  if (!weft_moe_stride (s, &z))
    weft_step_host_reads (s, "splits", p.came);
  p.counts = transpose (s, p.came, (uint64_t[]){ p.n, z.local, each }, "by_expert");
  return p;
}

uint32_t
weft_rows_of_peers (struct weft_step *s, const struct weft_peers *p, struct weft_routed m,
                    uint32_t x)
{
  struct weft_moe z = weft_moe_sizes (s);
  enum weft_dtype dtype = weft_build_buf_at (s->b, x)->dtype;
  struct row_transfer j = { .kind = WEFT_OP_ALL_GATHER_V,
                            .group = WEFT_GROUP_ECP,
                            .counts = p->came,
                            .rows = p->n * z.rows,
                            .room = p->n * z.room };
  uint32_t all = transfer_rows (s, &m, &j, x);

  if (z.local == 1)
    return all;
  uint32_t y = weft_step_buffer (s, WEFT_BUF_ACTIVATIONS, dtype, j.room * m.columns, "grouped");
  weft_emit (
      s, WEFT_OP_MOE_GROUP, weft_op_info[WEFT_OP_MOE_GROUP].word,
      WEFT_SHAPE (dtype, j.rows, m.columns, z.local, p->n, z.sources * weft_moe_stride (s, &z)),
      WEFT_USES (WEFT_R (p->counts), WEFT_R (all), WEFT_W (y)));
  return y;
}

/* ------------------------------------------------------------------ there and back */

struct weft_routed
weft_rows_tokens (const struct weft_step *s, const char *name)
{
  return (struct weft_routed){ name, s->rows, s->width.h, (uint64_t) s->model->moe_router_topk };
}

struct weft_routed
weft_rows_weights (const struct weft_step *s, const char *name)
{
  return (struct weft_routed){ name, s->rows * (uint64_t) s->model->moe_router_topk, 1, 1 };
}

uint32_t
weft_rows_pack (struct weft_step *s, const struct weft_saved *saved, struct weft_routed m,
                uint32_t x)
{
  struct weft_moe z = weft_moe_sizes (s);
  uint32_t y =
      weft_step_buffer (s, WEFT_BUF_ACTIVATIONS, s->product_dtype, z.sent * m.columns, m.name);

  weft_emit (s, WEFT_OP_MOE_PERMUTE, m.name,
             WEFT_SHAPE (s->product_dtype, m.things, m.columns, m.each, z.sent),
             WEFT_USES (WEFT_R (x), WEFT_R (saved->row), WEFT_W (y)));
  return y;
}

uint32_t
weft_rows_go (struct weft_step *s, const struct weft_saved *saved, struct weft_routed m, uint32_t x)
{
  if (!is_distributed (s))
    return x;
  return gather_neighbours (s, saved, &m, exchange (s, saved, &m, FALSE, x));
}

uint32_t
weft_rows_arrive (struct weft_step *s, const struct weft_saved *saved, struct weft_routed m,
                  uint32_t x)
{
  return is_distributed (s) ? regroup (s, WEFT_OP_MOE_GROUP, saved, x, m.columns) : x;
}

uint32_t
weft_rows_leave (struct weft_step *s, const struct weft_saved *saved, struct weft_routed m,
                 uint32_t x)
{
  return is_distributed (s) ? regroup (s, WEFT_OP_MOE_UNGROUP, saved, x, m.columns) : x;
}

uint32_t
weft_rows_return (struct weft_step *s, const struct weft_saved *saved, struct weft_routed m,
                  uint32_t x)
{
  if (!is_distributed (s))
    return x;
  return exchange (s, saved, &m, TRUE, sum_neighbours (s, saved, &m, x));
}

uint32_t
weft_rows_unpack (struct weft_step *s, const struct weft_saved *saved, struct weft_routed m,
                  uint32_t x)
{
  struct weft_moe z = weft_moe_sizes (s);
  uint32_t choice = m.each > 1 ? saved->choice : WEFT_NO_BUF;
  uint32_t y =
      weft_step_buffer (s, WEFT_BUF_ACTIVATIONS, s->product_dtype, m.things * m.columns, m.name);

  weft_emit (s, WEFT_OP_MOE_UNPERMUTE, m.name,
             WEFT_SHAPE (s->product_dtype, m.things, m.columns, m.each, z.sent, z.experts),
             WEFT_USES (WEFT_R (x), WEFT_R (saved->row), WEFT_R (choice), WEFT_W (y)));
  return y;
}

void
weft_moe_sort (struct weft_step *s, struct weft_saved *saved, uint32_t prob)
{
  uint32_t counts = sort_tokens (s, saved, prob);

  if (is_distributed (s))
    exchange_counts (s, saved, counts);
  else
    saved->counts = counts;
}
