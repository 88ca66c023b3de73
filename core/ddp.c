/* Data parallelism: gradient buckets and, with the distributed optimizer, parameter gathers.
 *
 * A bucket is launched by its last gradient in the last microbatch (overlap_grad_reduce) or after
 * the last backward.  An asynchronous collective waits for everything enqueued on the compute
 * stream so far and for the collective before it (c10d ProcessGroupNCCL); parameters are gathered
 * lazily, the next bucket when the one before it is first used (Megatron-Core
 * param_and_grad_buffer.py). */
#include "core/step.h"

static gboolean
alone (const struct weft_step *s)
{
  return weft_mesh_group_size (s->mesh, WEFT_GROUP_DP) == 1;
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

  weft_build_buf_at (s->b, shard)->shard = WEFT_GROUP_DP;
  return shard;
}

static void
make_views (struct weft_step *s, struct weft_bucket_state *state, const struct weft_bucket *bucket)
{
  gboolean sharded = s->strategy->use_distributed_optimizer && !alone (s);
  uint64_t n = bucket->end - bucket->start;

  state->grads = bucket_view (s, s->grads, s->grad_dtype, bucket->start, n);
  state->weights = bucket_view (s, s->weights, s->dtype, bucket->start, n);
  state->grad_shard = sharded ? shard_of (s, state->grads) : state->grads;
  state->weight_shard = sharded ? shard_of (s, state->weights) : state->weights;
  state->reduced = state->gathered = WEFT_NO_OP;
}

void
weft_ddp_start (struct weft_step *s)
{
  s->bucket = g_new0 (struct weft_bucket_state, s->layout.n_bucket);
  for (uint32_t k = 0; k < s->layout.n_bucket; k++)
    make_views (s, &s->bucket[k], &s->layout.bucket[k]);
  for (uint32_t i = 0; i < s->params->len; i++)
    s->bucket[s->layout.place[i].bucket].n_param++;
  gboolean lazy = s->strategy->overlap_param_gather && !alone (s);
  s->gather_next = lazy ? s->layout.n_bucket : 0;
}

static uint64_t
bucket_size (const struct weft_step *s, uint32_t k)
{
  return s->layout.bucket[k].end - s->layout.bucket[k].start;
}

static uint32_t
collective (struct weft_step *s, enum weft_op_kind kind, const char *name, struct weft_shape shape,
            const struct weft_use *uses, uint32_t n_uses)
{
  struct weft_op row = { .kind = kind,
                         .group = WEFT_GROUP_DP,
                         .name = weft_build_name (s->b, name),
                         .reduce = s->strategy->average_in_collective ? WEFT_REDUCE_AVG
                                                                      : WEFT_REDUCE_SUM };
  uint32_t enqueued = weft_build_last (s->b, WEFT_LANE_GPU);
  uint32_t op = weft_emit_on (s, WEFT_LANE_DP, row, shape, uses, n_uses);

  if (enqueued != WEFT_NO_OP)
    weft_build_dep (s->b, enqueued);
  if (s->exchange != WEFT_NO_OP)
    weft_build_dep (s->b, s->exchange);
  return op;
}

static void
launch_reduce (struct weft_step *s, uint32_t k)
{
  struct weft_bucket_state *state = &s->bucket[k];
  struct weft_shape shape = WEFT_SHAPE (s->grad_dtype, bucket_size (s, k));
  struct weft_op at = s->at;

  s->at.phase = WEFT_PHASE_REDUCE;
  s->at.layer = WEFT_NO_LAYER;
  if (!s->strategy->average_in_collective && !s->canonical)
    weft_emit (
        s, WEFT_OP_SCALE, "scale",
        WEFT_SHAPE (s->grad_dtype, shape.dim[0], 1, weft_mesh_group_size (s->mesh, WEFT_GROUP_DP)),
        WEFT_USES (WEFT_RW (state->grads)));
  g_autofree char *name = g_strdup_printf ("bucket %u", k);
  if (s->strategy->use_distributed_optimizer)
    state->reduced = collective (s, WEFT_OP_REDUCE_SCATTER, name, shape,
                                 WEFT_USES (WEFT_RW (state->grads), WEFT_W (state->grad_shard)));
  else
    state->reduced =
        collective (s, WEFT_OP_ALL_REDUCE, name, shape, WEFT_USES (WEFT_RW (state->grads)));
  s->at = at;
}

void
weft_ddp_grad_ready (struct weft_step *s, uint32_t param)
{
  uint32_t k = s->layout.place[param].bucket;

  if (++s->bucket[k].n_ready == s->bucket[k].n_param && s->strategy->overlap_grad_reduce &&
      !alone (s))
    launch_reduce (s, k);
}

void
weft_ddp_finish (struct weft_step *s)
{
  for (uint32_t k = 0; k < s->layout.n_bucket; k++) {
    g_assert (s->bucket[k].n_ready == s->bucket[k].n_param);
    if (!alone (s) && s->bucket[k].reduced == WEFT_NO_OP)
      launch_reduce (s, k);
  }
}

static void
launch_gather (struct weft_step *s, uint32_t k)
{
  struct weft_bucket_state *state = &s->bucket[k];
  struct weft_op at = s->at;
  g_autofree char *name = g_strdup_printf ("gather %u", k);

  s->at.phase = WEFT_PHASE_OPTIMIZER;
  s->at.layer = s->at.micro = WEFT_NO_LAYER;
  state->gathered =
      collective (s, WEFT_OP_ALL_GATHER, name, WEFT_SHAPE (s->dtype, bucket_size (s, k)),
                  WEFT_USES (WEFT_R (state->weight_shard), WEFT_W (state->weights)));
  s->at = at;
}

/* The lazy chain: the first use of bucket k launches k if nobody has, waits for it and launches
 * bucket k - 1. */
void
weft_ddp_before_use (struct weft_step *s, uint32_t param)
{
  uint32_t k = s->layout.place[param].bucket;

  while (s->gather_next > 0 && s->gather_next + 1 > k)
    launch_gather (s, --s->gather_next);
}

uint32_t
weft_ddp_gather_of (const struct weft_step *s, uint32_t param)
{
  return s->bucket[s->layout.place[param].bucket].gathered;
}

void
weft_ddp_gather_all (struct weft_step *s)
{
  if (!s->strategy->use_distributed_optimizer || s->strategy->overlap_param_gather || alone (s))
    return;
  for (uint32_t k = s->layout.n_bucket; k-- > 0;)
    launch_gather (s, k);
}
