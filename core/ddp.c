/* Data parallelism: gradient buckets and, with the distributed optimizer, parameter gathers.
 *
 * A bucket is launched by its last gradient in the last microbatch (overlap_grad_reduce) or after
 * the last backward.  An asynchronous collective waits for everything enqueued on the compute
 * stream so far and for the collective before it (c10d ProcessGroupNCCL); parameters are gathered
 * lazily, the next bucket when the one before it is first used (Megatron-Core
 * param_and_grad_buffer.py).
 *
 * reduce_scatter_with_fp32_accumulation: ranks send each other slices in the buffer's type; the
 * owner adds them where it would wait for the collective, at the end.
 *
 * With several instances of the distributed optimizer a bucket is reduced among the ranks of one
 * instance, then its slice across instances, on one stream that is joined as a whole.  Hybrid sharding
 * of Megatron-FSDP has a stream of its own for the second (fsdp_outer.c). */
#include "core/step.h"

static gboolean
alone (const struct weft_step *s)
{
  return weft_mesh_group_size (s->mesh, WEFT_GROUP_DP) == 1;
}

/* How many slices optimizer state is cut into. */
static uint32_t
slices (const struct weft_step *s)
{
  return s->shard_optimizer ? weft_mesh_group_size (s->mesh, weft_mesh_sharing (s->mesh)) : 1;
}

static uint32_t
bucket_view (struct weft_step *s, uint32_t flat, enum weft_dtype dtype, uint64_t start, uint64_t n)
{
  uint64_t size = weft_dtype_bytes (dtype);
  return weft_build_view (s->b, flat, start * size, n * size, "bucket");
}

/* The slice this rank answers for: the whole bucket, marked as a shard. */
static uint32_t
shard_of (struct weft_step *s, uint32_t view)
{
  const struct weft_buf *row = weft_build_buf_at (s->b, view);
  uint32_t shard = weft_build_view (s->b, row->base, row->offset, row->bytes, "shard");

  weft_build_buf_at (s->b, shard)->shard = weft_mesh_sharing (s->mesh);
  return shard;
}

static void
make_views (struct weft_step *s, struct weft_bucket_state *state, const struct weft_bucket *bucket)
{
  gboolean sharded = slices (s) > 1;
  uint64_t n = bucket->end - bucket->start;

  if (!s->shard_grads) {
    state->grads = bucket_view (s, s->grads, s->grad_dtype, bucket->start, n);
    state->grad_shard = sharded ? shard_of (s, state->grads) : state->grads;
  }
  if (!s->shard_weights) {
    state->weights = bucket_view (s, s->weights, s->dtype, bucket->start, n);
    state->weight_shard = sharded ? shard_of (s, state->weights) : state->weights;
  }
  state->reduced = state->gathered = WEFT_NO_OP;
  state->exchanged = WEFT_NO_BUF;
}

void
weft_ddp_start (struct weft_step *s)
{
  s->bucket = g_new0 (struct weft_bucket_state, s->layout.n_bucket + 1);
  for (uint32_t k = 0; k < s->layout.n_bucket; k++)
    make_views (s, &s->bucket[k], &s->layout.bucket[k]);
  for (uint32_t i = 0; i < s->params->len; i++)
    s->bucket[s->layout.place[i].bucket].n_param++;
  if (s->units)
    weft_fsdp_start (s);
  s->n_gather = s->strategy->overlap_param_gather && slices (s) > 1 ? s->layout.n_bucket : 0;
}

uint64_t
weft_ddp_bucket_size (const struct weft_step *s, uint32_t k)
{
  return s->layout.bucket[k].end - s->layout.bucket[k].start;
}

struct weft_op
weft_ddp_row (struct weft_step *s, enum weft_op_kind kind, const char *name, uint32_t k)
{
  g_autofree char *full = g_strdup_printf ("%s %u", name, k);

  return (struct weft_op){ .kind = kind,
                           .group = kind == WEFT_OP_ALL_REDUCE && !s->mesh->hybrid
                                        ? WEFT_GROUP_DP
                                        : weft_mesh_sharing (s->mesh),
                           .name = weft_build_name (s->b, full),
                           .reduce = s->strategy->average_in_collective ? WEFT_REDUCE_AVG
                                                                        : WEFT_REDUCE_SUM };
}

/* nccl_ub: what the collective reads and writes comes from the pool that is registered with NCCL. */
static void
registered (struct weft_step *s, const struct weft_use *uses, uint32_t n_uses)
{
  for (uint32_t u = 0; u < n_uses; u++) {
    const struct weft_buf *buf = weft_build_buf_at (s->b, uses[u].buf);
    uint32_t owner = buf->base == WEFT_NO_BUF ? uses[u].buf : buf->base;
    weft_build_buf_at (s->b, owner)->pool = WEFT_POOL_SYMMETRIC;
  }
}

uint32_t
weft_ddp_collective (struct weft_step *s, struct weft_op row, struct weft_shape shape,
                     const struct weft_use *uses, uint32_t n_uses)
{
  if (s->strategy->nccl_ub)
    registered (s, uses, n_uses);
  uint32_t enqueued = weft_build_last (s->b, WEFT_LANE_GPU);
  uint32_t op = weft_emit_on (s, weft_group_lane (row.group), row, shape, uses, n_uses);

  if (enqueued != WEFT_NO_OP)
    weft_build_dep (s->b, enqueued);
  if (s->exchange != WEFT_NO_OP)
    weft_build_dep (s->b, s->exchange);
  if (s->synced != WEFT_NO_OP)
    weft_build_dep (s->b, s->synced);
  return op;
}

/* check_for_nan_in_grad, check_for_large_grads: the host looks at the norm of a bucket that is still
 * this rank's own, and enqueues nothing before it has seen it. */
void
weft_ddp_check (struct weft_step *s, uint32_t grads, uint64_t n, uint32_t k)
{
  struct weft_op row = weft_ddp_row (s, WEFT_OP_COPY_OUT, "norm of bucket", k);

  if (!s->strategy->check_for_nan_in_grad && !s->strategy->check_for_large_grads)
    return;
  uint32_t squares = weft_step_buffer (s, WEFT_BUF_WORKSPACE, WEFT_FP32, 1, "bucket_squares");
  weft_emit (s, WEFT_OP_BUCKET_NORM, "bucket_norm", WEFT_SHAPE (s->grad_dtype, n),
             WEFT_USES (WEFT_R (grads), WEFT_W (squares)));
  row.group = WEFT_GROUP_NONE;
  row.reduce = WEFT_REDUCE_SUM;
  s->synced =
      weft_emit_on (s, WEFT_LANE_D2H, row, WEFT_SHAPE (WEFT_FP32, 1), WEFT_USES (WEFT_R (squares)));
  g_array_append_val (s->wait_for, s->synced);
}

/* The mean over replicas: before the sum, in the collective, or in the loss.  A loss per token knows
 * no replicas. */
void
weft_ddp_scale (struct weft_step *s, uint32_t grads, uint64_t n)
{
  if (!s->strategy->average_in_collective && !s->strategy->calculate_per_token_loss &&
      !s->canonical)
    weft_emit (s, WEFT_OP_SCALE, "scale",
               WEFT_SHAPE (s->grad_dtype, n, 1, weft_mesh_group_size (s->mesh, WEFT_GROUP_DP)),
               WEFT_USES (WEFT_RW (grads), WEFT_R (WEFT_NO_BUF)));
}

static void
exchange_slices (struct weft_step *s, uint32_t k, struct weft_shape shape)
{
  struct weft_bucket_state *state = &s->bucket[k];

  state->exchanged =
      weft_step_buffer (s, WEFT_BUF_COMMUNICATION, s->grad_dtype, shape.dim[0], "exchanged");
  state->reduced =
      weft_ddp_collective (s, weft_ddp_row (s, WEFT_OP_ALL_TO_ALL, "bucket", k), shape,
                           WEFT_USES (WEFT_R (state->grads), WEFT_W (state->exchanged)));
}

static void
sum_slices (struct weft_step *s, uint32_t k)
{
  const struct weft_bucket_state *state = &s->bucket[k];
  uint64_t n = weft_ddp_bucket_size (s, k) / slices (s);

  if (state->exchanged != WEFT_NO_BUF)
    weft_emit (s, WEFT_OP_SUM_SLICES, "sum_slices", WEFT_SHAPE (s->grad_dtype, n, slices (s)),
               WEFT_USES (WEFT_R (state->exchanged), WEFT_W (state->grad_shard)));
}

void
weft_ddp_across (struct weft_step *s, uint32_t k, uint64_t n)
{
  struct weft_bucket_state *state = &s->bucket[k];

  if (s->mesh->instances == 1)
    return;
  struct weft_op row =
      weft_ddp_row (s, WEFT_OP_ALL_REDUCE, s->mesh->hybrid ? "outer" : "instances", k);
  row.group = weft_mesh_across (s->mesh);
  state->reduced = weft_ddp_collective (s, row, WEFT_SHAPE (s->grad_dtype, n),
                                        WEFT_USES (WEFT_RW (state->grad_shard)));
}

static void
scatter (struct weft_step *s, uint32_t k, struct weft_shape shape)
{
  struct weft_bucket_state *state = &s->bucket[k];

  state->reduced =
      weft_ddp_collective (s, weft_ddp_row (s, WEFT_OP_REDUCE_SCATTER, "bucket", k), shape,
                           WEFT_USES (WEFT_RW (state->grads), WEFT_W (state->grad_shard)));
  weft_ddp_across (s, k, shape.dim[0] / slices (s));
}

static void
reduce_whole (struct weft_step *s, uint32_t k, struct weft_shape shape)
{
  struct weft_bucket_state *state = &s->bucket[k];

  state->reduced = weft_ddp_collective (s, weft_ddp_row (s, WEFT_OP_ALL_REDUCE, "bucket", k), shape,
                                        WEFT_USES (WEFT_RW (state->grads)));
  if (s->mesh->hybrid)
    weft_ddp_across (s, k, shape.dim[0]);
}

static void
launch_collective (struct weft_step *s, uint32_t k, struct weft_shape shape)
{
  struct weft_bucket_state *state = &s->bucket[k];

  weft_ddp_scale (s, state->grads, shape.dim[0]);
  if (slices (s) > 1 && s->strategy->reduce_scatter_with_fp32_accumulation)
    exchange_slices (s, k, shape);
  else if (slices (s) > 1)
    scatter (s, k, shape);
  else
    reduce_whole (s, k, shape);
}

static void
launch_reduce (struct weft_step *s, uint32_t k)
{
  struct weft_shape shape = WEFT_SHAPE (s->grad_dtype, weft_ddp_bucket_size (s, k));
  struct weft_op at = s->at;

  s->at.phase = WEFT_PHASE_REDUCE;
  s->at.layer = WEFT_NO_LAYER;
  weft_ddp_check (s, s->bucket[k].grads, shape.dim[0], k);
  if (!alone (s))
    launch_collective (s, k, shape);
  s->bucket[k].launched = TRUE;
  s->at = at;
}

void
weft_ddp_grad_ready (struct weft_step *s, uint32_t param)
{
  uint32_t k = s->layout.place[param].bucket;

  if (++s->bucket[k].n_ready == s->bucket[k].n_param && s->strategy->overlap_grad_reduce)
    launch_reduce (s, k);
}

/* The lane on which instances meet is joined as a whole. */
static void
join_across (struct weft_step *s)
{
  if (s->mesh->instances == 1)
    return;
  uint32_t newest = weft_build_last (s->b, weft_group_lane (weft_mesh_across (s->mesh)));
  g_array_append_val (s->wait_for, newest);
}

void
weft_ddp_finish (struct weft_step *s)
{
  if (s->shard_grads) { /* every microbatch has been reduced */
    weft_fsdp_finish (s);
    join_across (s);
    return;
  }
  for (uint32_t k = 0; k < s->layout.n_bucket; k++) {
    g_assert (s->bucket[k].n_ready == s->bucket[k].n_param);
    if (!s->bucket[k].launched)
      launch_reduce (s, k);
    sum_slices (s, k);
  }
  join_across (s);
}

static void
launch_gather (struct weft_step *s, uint32_t k)
{
  struct weft_bucket_state *state = &s->bucket[k];
  struct weft_op at = s->at;

  s->at.phase = WEFT_PHASE_OPTIMIZER;
  s->at.layer = s->at.micro = WEFT_NO_LAYER;
  state->gathered =
      weft_ddp_collective (s, weft_ddp_row (s, WEFT_OP_ALL_GATHER, "gather", k),
                           WEFT_SHAPE (s->dtype, weft_ddp_bucket_size (s, k)),
                           WEFT_USES (WEFT_R (state->weight_shard), WEFT_W (state->weights)));
  s->at = at;
}

/* Buckets of the wrapper lie in reverse order, of units in order: the one that forward needs first,
 * and the one after k. */
static uint32_t
first_gathered (const struct weft_step *s, uint32_t i)
{
  return s->units ? i : s->layout.n_bucket - 1 - i;
}

static gboolean
is_due (const struct weft_step *s, uint32_t place, uint32_t next)
{
  if (next <= place)
    return TRUE;
  return s->units ? weft_fsdp_reaches (s, place, next) : next == place + 1;
}

/* The lazy chain: the first use of a bucket launches it if nobody has, waits for it and launches the
 * one that comes after it, or the several that Megatron-FSDP keeps on their way. */
void
weft_ddp_before_use (struct weft_step *s, uint32_t param)
{
  uint32_t k = s->layout.place[param].bucket, place = first_gathered (s, k);

  if (s->shard_weights) {
    weft_fsdp_before_use (s, param);
    return;
  }
  while (s->gather_next < s->n_gather && is_due (s, place, s->gather_next))
    launch_gather (s, first_gathered (s, s->gather_next++));
  if (s->bucket[k].gathered != WEFT_NO_OP)
    g_array_append_val (s->wait_for, s->bucket[k].gathered);
}

void
weft_ddp_gather_all (struct weft_step *s)
{
  if (slices (s) == 1 || s->shard_weights || s->strategy->overlap_param_gather)
    return;
  for (uint32_t i = 0; i < s->layout.n_bucket; i++)
    launch_gather (s, first_gathered (s, i));
}
