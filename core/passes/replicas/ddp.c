/* Megatron-Core's DistributedDataParallel: reductions of gradient buckets and, with the distributed
 * optimizer, all-gathers of weights.
 *
 * Buckets are combined into launch groups (core/program/layout.h); the collectives of a launch
 * group are one launch. Most launch groups have one bucket.
 *
 * With overlap_grad_reduce, the reduction of a launch group starts when its last gradient of the
 * last microbatch is complete. Without overlap_grad_reduce, the reduction starts at the end of the
 * last backward. A collective waits for all kernels enqueued so far and for the previous collective
 * (c10d ProcessGroupNCCL). The first read of a launch group's weights launches the all-gather of
 * the next launch group (Megatron-Core param_and_grad_buffer.py).
 *
 * With reduce_scatter_with_fp32_accumulation, an all-to-all exchanges slices in the buffer's dtype.
 * The owner of a slice adds the received slices at the end of the step.
 *
 * With several instances of the distributed optimizer (copies of its sharded state), a bucket is
 * first reduced among the ranks of one instance. The slice is then reduced between instances, on a
 * separate lane. Hybrid sharding of Megatron-FSDP has a separate lane for collectives between the
 * copies of the shards (fsdp_outer.c). */
#include "core/passes/replicas/fsdp.h"
#include "core/base/invariant.h"

static gboolean
alone (const struct weft_step *s, uint32_t k)
{
  return weft_mesh_group_size (s->mesh, weft_bucket_replicas (s, k)) == 1;
}

/* Returns the number of slices into which the optimizer state of a bucket is divided. */
static uint32_t
slices (const struct weft_step *s, uint32_t k)
{
  return s->shard_optimizer ? weft_mesh_group_size (s->mesh, weft_bucket_sharing (s, k)) : 1;
}

/* Returns the number of optimizer slices of every bucket of a launch group. One group of ranks
 * reduces all these buckets, so the number of the first bucket holds for all. */
static uint32_t
group_slices (const struct weft_step *s, uint32_t g)
{
  return slices (s, s->params->layout.bucket_of[s->params->layout.group[g].first]);
}

/* Returns a new view of the memory of `view`, which is a view of the whole bucket k. An op that
 * uses the new view accesses only this rank's slice of the bucket. */
static uint32_t
shard_of (struct weft_step *s, uint32_t k, uint32_t view)
{
  const struct weft_buf row = *weft_build_buf_at (s->b, view);
  uint32_t shard = weft_build_view (s->b, row.base, row.offset, row.bytes, "shard");

  /* the dtype of the view may differ from the dtype of the base buffer */
  weft_build_buf_at (s->b, shard)->dtype = row.dtype;
  weft_build_buf_at (s->b, shard)->shard = weft_bucket_sharing (s, k);
  return shard;
}

static void
make_views (struct weft_step *s, uint32_t k)
{
  struct weft_bucket_state *state = &s->replicas->bucket[k];
  const struct weft_flat *flat = weft_step_flat (s, k);
  gboolean sharded = slices (s, k) > 1;
  uint64_t n = weft_ddp_bucket_size (s, k);

  if (!flat->cut_grads) {
    state->grads = weft_params_flat_view (s, flat->grads, k, n, "bucket");
    state->grad_shard = sharded ? shard_of (s, k, state->grads) : state->grads;
  }
  if (!flat->cut_weights) {
    state->weights = weft_fp8_weights_is_staged (s, k)
                         ? weft_fp8_weights_staging (s, k)
                         : weft_params_flat_view (s, flat->weights, k, n, "bucket");
    state->weight_shard = sharded ? shard_of (s, k, state->weights) : state->weights;
  }
  state->reduced = state->gathered = WEFT_NO_OP;
  state->exchanged = WEFT_NO_BUF;
}

uint32_t
weft_ddp_group_of (const struct weft_step *s, uint32_t param)
{
  return s->params->layout.bucket[s->params->layout.place[param].bucket].group;
}

const uint32_t *
weft_ddp_members (const struct weft_step *s, uint32_t g, uint32_t *n)
{
  *n = s->params->layout.group[g].n;
  return &s->params->layout.bucket_of[s->params->layout.group[g].first];
}

/* Returns the model chunk of a launch group. In the layout, launch groups of experts have chunk
 * numbers from n_chunks on. */
static uint32_t
chunk_of (const struct weft_step *s, uint32_t g)
{
  return s->params->layout.group[g].chunk % s->n_chunks;
}

/* Whether the output layer (if tied) and multi-token prediction add their gradients of the
 * embedding to the embedding's sum, on a stage that holds both embedding and output layer. */
static gboolean
shares_sum (const struct weft_step *s)
{
  return weft_step_shares_embedding (s) && weft_step_has_embedding (s) && weft_step_has_head (s) &&
         weft_job_trains (s->job, WEFT_FREEZE_HEAD) && !weft_head_has_own_sum (s);
}

/* Whether any launch group of a chain needs an all-gather. A chain is the dense launch groups of
 * one model chunk, or its expert launch groups. Experts that only one rank holds need no
 * all-gather. */
static gboolean
chain_gathers (const struct weft_step *s, uint32_t chain)
{
  for (uint32_t g = 0; g < s->params->layout.n_group; g++)
    if (s->params->layout.group[g].chunk == chain && group_slices (s, g) > 1)
      return TRUE;
  return FALSE;
}

void
weft_ddp_start (struct weft_step *s)
{
  s->replicas->chain = g_new0 (struct weft_chain, 2 * s->n_chunks);
  s->replicas->bucket = g_new0 (struct weft_bucket_state, s->params->layout.n_bucket + 1);
  for (uint32_t k = 0; k < s->params->layout.n_bucket; k++)
    make_views (s, k);
  s->replicas->group = g_new0 (struct weft_group_state, s->params->layout.n_group + 1);
  for (uint32_t i = 0; i < weft_params_count (s); i++) {
    if (!weft_params_trains (s, i))
      continue;
    s->replicas->bucket[s->params->layout.place[i].bucket].n_param++;
    s->replicas->group[weft_ddp_group_of (s, i)].n_param++;
  }
  for (uint32_t g = 0; g < s->params->layout.n_group; g++) {
    uint32_t q = s->params->layout.group[g].chunk;
    s->replicas->group[g].n_due = s->replicas->group[g].n_param * s->chunk[chunk_of (s, g)].n_micro;
    s->replicas->chain[q].n_gather += s->strategy->overlap_param_gather && chain_gathers (s, q);
  }
  if (shares_sum (s))
    s->replicas->group[weft_ddp_group_of (s, weft_params_of_end (s, WEFT_EMBED_WEIGHT))].n_due +=
        weft_step_head (s)->n_micro;
}

uint64_t
weft_ddp_bucket_size (const struct weft_step *s, uint32_t k)
{
  return s->params->layout.bucket[k].end - s->params->layout.bucket[k].start;
}

/* Whether a separate kernel or the collective divides gradients by the number of replicas. FALSE if
 * the collective averages, if the loss is per token, or in canonical order, where the loss is
 * already the mean over all replicas. */
static gboolean
divides (const struct weft_step *s)
{
  return !s->strategy->average_in_collective && !s->strategy->calculate_per_token_loss &&
         !s->canonical;
}

/* Whether the collective itself divides gradients (gradient_reduce_div_fusion). FALSE for bf16
 * gradients, which would be rounded twice (param_and_grad_buffer.py,
 * gradient_reduce_preprocessing). */
static gboolean
divides_in_sum (const struct weft_step *s)
{
  return s->strategy->use_megatron_fsdp && s->strategy->gradient_reduce_div_fusion &&
         s->grad_dtype != WEFT_BF16 && divides (s);
}

static enum weft_reduce
reduce_of (const struct weft_step *s, enum weft_op_kind kind)
{
  gboolean sums = kind == WEFT_OP_ALL_REDUCE || kind == WEFT_OP_REDUCE_SCATTER;

  if (s->strategy->average_in_collective)
    return WEFT_REDUCE_AVG;
  return sums && divides_in_sum (s) ? WEFT_REDUCE_PREMUL : WEFT_REDUCE_SUM;
}

struct weft_op
weft_ddp_row (struct weft_step *s, enum weft_op_kind kind, const char *name, uint32_t k)
{
  g_autofree char *full = g_strdup_printf ("%s %u", name, k);

  return (struct weft_op){ .kind = kind,
                           .group = kind == WEFT_OP_ALL_REDUCE && !s->mesh->hybrid
                                        ? weft_bucket_replicas (s, k)
                                        : weft_bucket_sharing (s, k),
                           .name = weft_build_name (s->b, full),
                           .reduce = reduce_of (s, kind) };
}

/* With nccl_ub: moves the buffers of a collective to the memory pool that is registered with
 * NCCL. */
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

  weft_step_wait_for_stream (s, enqueued);
  weft_wait_for_shared_gradients (s);
  return op;
}

/* With check_for_nan_in_grad or check_for_large_grads: the norm of a bucket's gradients is copied
 * to the host before the reduction. The host enqueues no further op until the copy has ended. */
void
weft_ddp_check (struct weft_step *s, uint32_t grads, uint64_t n, uint32_t k)
{
  g_autofree char *name = g_strdup_printf ("norm of bucket %u", k);

  if (!weft_job_checks_nan (s->job) && !s->strategy->check_for_large_grads)
    return;
  uint32_t squares = weft_step_buffer (s, WEFT_BUF_WORKSPACE, WEFT_FP32, 1, "bucket_squares");
  weft_emit (s, WEFT_OP_BUCKET_NORM, "bucket_norm", WEFT_SHAPE (s->grad_dtype, n),
             WEFT_USES (WEFT_R (grads), WEFT_W (squares)));
  weft_step_host_reads (s, name, squares);
}

static void
scale (struct weft_step *s, uint32_t grads, const uint64_t by[2], const char *name)
{
  weft_emit (s, WEFT_OP_SCALE, name,
             WEFT_SHAPE (weft_build_buf_at (s->b, grads)->dtype, weft_step_elements (s, grads), 1,
                         by[0], by[1]),
             WEFT_USES (WEFT_RW (grads), WEFT_R (WEFT_NO_BUF)));
}

struct weft_shape
weft_ddp_shape (const struct weft_step *s, uint64_t n)
{
  return WEFT_SHAPE (s->grad_dtype, n,
                     divides_in_sum (s) ? weft_mesh_group_size (s->mesh, WEFT_GROUP_DP) : 0);
}

/* Returns the row of a collective of bucket k. flags: WEFT_OP_GROUPED if the collective joins the
 * previous launch, else 0. */
static struct weft_op
row_of (struct weft_step *s, enum weft_op_kind kind, const char *name, uint32_t k, uint8_t flags)
{
  struct weft_op row = weft_ddp_row (s, kind, name, k);

  row.flags = flags;
  return row;
}

static struct weft_shape
shape_of (const struct weft_step *s, uint32_t k)
{
  return weft_ddp_shape (s, weft_ddp_bucket_size (s, k));
}

static void
exchange_slices (struct weft_step *s, uint32_t k, uint8_t flags)
{
  struct weft_bucket_state *state = &s->replicas->bucket[k];

  state->exchanged = weft_step_buffer (s, WEFT_BUF_COMMUNICATION, s->grad_dtype,
                                       weft_ddp_bucket_size (s, k), "exchanged");
  state->reduced =
      weft_ddp_collective (s, row_of (s, WEFT_OP_ALL_TO_ALL, "bucket", k, flags), shape_of (s, k),
                           WEFT_USES (WEFT_R (state->grads), WEFT_W (state->exchanged)));
}

static void
sum_slices (struct weft_step *s, uint32_t k)
{
  const struct weft_bucket_state *state = &s->replicas->bucket[k];
  uint64_t n = weft_ddp_bucket_size (s, k) / slices (s, k);

  if (state->exchanged != WEFT_NO_BUF)
    weft_emit (s, WEFT_OP_SUM_SLICES, "sum_slices", WEFT_SHAPE (s->grad_dtype, n, slices (s, k)),
               WEFT_USES (WEFT_R (state->exchanged), WEFT_W (state->grad_shard)));
}

static void
scatter (struct weft_step *s, uint32_t k, uint8_t flags)
{
  struct weft_bucket_state *state = &s->replicas->bucket[k];

  state->reduced = weft_ddp_collective (
      s, row_of (s, WEFT_OP_REDUCE_SCATTER, "bucket", k, flags), shape_of (s, k),
      WEFT_USES (WEFT_RW (state->grads), WEFT_W (state->grad_shard)));
}

/* The collective within an optimizer instance has already divided the gradients. The collective
 * between instances therefore only adds. */
void
weft_ddp_go_across (const struct weft_step *s, struct weft_op *row)
{
  row->group = weft_mesh_across (s->mesh);
  if (row->reduce == WEFT_REDUCE_PREMUL)
    row->reduce = WEFT_REDUCE_SUM;
}

void
weft_ddp_across (struct weft_step *s, uint32_t k, uint64_t n, uint8_t flags)
{
  struct weft_bucket_state *state = &s->replicas->bucket[k];
  struct weft_op row =
      row_of (s, WEFT_OP_ALL_REDUCE, s->mesh->hybrid ? "outer" : "instances", k, flags);

  weft_ddp_go_across (s, &row);
  state->reduced = weft_ddp_collective (s, row, WEFT_SHAPE (s->grad_dtype, n),
                                        WEFT_USES (WEFT_RW (state->grad_shard)));
}

static void
add_instances (struct weft_step *s, uint32_t k, uint8_t flags)
{
  weft_ddp_across (s, k, weft_ddp_bucket_size (s, k) / slices (s, k), flags);
}

static void
add_replicas (struct weft_step *s, uint32_t k, uint8_t flags)
{
  struct weft_bucket_state *state = &s->replicas->bucket[k];

  state->reduced = weft_ddp_collective (s, row_of (s, WEFT_OP_ALL_REDUCE, "bucket", k, flags),
                                        shape_of (s, k), WEFT_USES (WEFT_RW (state->grads)));
}

/* Appends one collective for each bucket of a launch group, all in one launch. */
static void
launch (struct weft_step *s, uint32_t g,
        void (*collective) (struct weft_step *s, uint32_t k, uint8_t flags))
{
  uint32_t n;
  const uint32_t *bucket = weft_ddp_members (s, g, &n);

  for (uint32_t i = 0; i < n; i++)
    collective (s, bucket[i], i ? WEFT_OP_GROUPED : 0);
}

static void
launch_collectives (struct weft_step *s, uint32_t g)
{
  if (group_slices (s, g) == 1)
    launch (s, g, add_replicas);
  else if (s->strategy->reduce_scatter_with_fp32_accumulation)
    launch (s, g, exchange_slices);
  else
    launch (s, g, scatter);
  if (s->mesh->hybrid || (group_slices (s, g) > 1 && s->mesh->instances > 1))
    launch (s, g, add_instances);
}

void
weft_ddp_scale_experts (struct weft_step *s, uint32_t grads, uint32_t few)
{
  uint32_t all = weft_mesh_group_size (s->mesh, WEFT_GROUP_DP);

  if (few != all)
    scale (s, grads,
           all % few ? (const uint64_t[]){ all, few } : (const uint64_t[]){ all / few, 0 },
           "scale_experts");
}

/* Divides the gradients of a bucket, which must become a mean over all replicas. The division takes
 * place here before the sum, in the collective, or in the loss.
 *
 * An expert receives tokens from all ranks of its expert parallel group. A collective that averages
 * over the ranks that hold the same expert therefore gives a gradient that is too large, by the
 * number of replicas in the expert parallel group. If tensor parallel ranks hold whole experts, the
 * gradient is too small (Megatron-Core distributed_data_parallel.py,
 * expert_gradient_scaling_factor). */
void
weft_ddp_scale_bucket (struct weft_step *s, uint32_t k)
{
  uint32_t all = weft_mesh_group_size (s->mesh, WEFT_GROUP_DP);
  uint32_t few = weft_mesh_group_size (s->mesh, weft_bucket_replicas (s, k));

  if (s->strategy->average_in_collective && few != all)
    weft_ddp_scale_experts (s, s->replicas->bucket[k].grads, few);
  else if (all > 1 && divides (s) && (few == 1 || !divides_in_sum (s)))
    scale (s, s->replicas->bucket[k].grads, (const uint64_t[]){ all, 0 }, "scale");
}

/* DualPipe only: an all-reduce adds the gradients of the two copies of a stage, which have
 * processed different microbatches. `i`: number of the bucket within its launch group. */
static void
add_mirror (struct weft_step *s, uint32_t grads, uint32_t i)
{
  if (!s->mesh->mirror)
    return;
  struct weft_op at = s->at;
  g_autofree char *name = g_strdup_printf ("mirror %u of stage %u", i, weft_step_chunk (s)->stage);
  struct weft_op row = { .kind = WEFT_OP_ALL_REDUCE,
                         .group = WEFT_GROUP_MIRROR,
                         .name = weft_build_name (s->b, name) };

  s->at.micro = WEFT_NO_MICRO;
  weft_ddp_collective (
      s, row, WEFT_SHAPE (weft_build_buf_at (s->b, grads)->dtype, weft_step_elements (s, grads)),
      WEFT_USES (WEFT_RW (grads)));
  s->at = at;
}

static void
launch_reduce (struct weft_step *s, uint32_t g)
{
  struct weft_op at = s->at;
  uint32_t n;
  const uint32_t *bucket = weft_ddp_members (s, g, &n);

  s->at.phase = WEFT_PHASE_REDUCE;
  s->at.layer = WEFT_NO_LAYER;
  s->at.chunk = chunk_of (s, g);
  for (uint32_t i = 0; i < n; i++) {
    uint64_t size = weft_ddp_bucket_size (s, bucket[i]);
    weft_ddp_check (s, s->replicas->bucket[bucket[i]].grads, size, bucket[i]);
    weft_ddp_scale_bucket (s, bucket[i]);
    add_mirror (s, s->replicas->bucket[bucket[i]].grads, i);
  }
  if (!alone (s, bucket[0]))
    launch_collectives (s, g);
  s->replicas->group[g].launched = TRUE;
  s->at = at;
}

struct weft_use
weft_ddp_grad_begin (struct weft_step *s, uint32_t param)
{
  return weft_sum_begin (s, &s->replicas->sum[param]);
}

/* Counts a gradient that is complete in its bucket. The last gradient of a launch group launches
 * the reduction of the launch group. */
static void
note_ready (struct weft_step *s, uint32_t param)
{
  uint32_t g = weft_ddp_group_of (s, param);

  if (++s->replicas->group[g].n_ready == s->replicas->group[g].n_due &&
      s->strategy->overlap_grad_reduce && !weft_aligned_holds (s))
    launch_reduce (s, g);
}

void
weft_ddp_reduce_chunk (struct weft_step *s, uint32_t chunk)
{
  for (uint32_t g = 0; g < s->params->layout.n_group; g++)
    if (chunk_of (s, g) == chunk && !s->replicas->group[g].launched &&
        s->replicas->group[g].n_ready == s->replicas->group[g].n_due)
      launch_reduce (s, g);
}

void
weft_ddp_grad_end (struct weft_step *s, uint32_t param, struct weft_use grad)
{
  weft_sum_end (s, &s->replicas->sum[param], grad);
  note_ready (s, param);
}

static void
finish_group (struct weft_step *s, uint32_t g)
{
  uint32_t n;
  const uint32_t *bucket = weft_ddp_members (s, g, &n);

  WEFT_INVARIANT (s->replicas->group[g].n_ready == s->replicas->group[g].n_due);
  if (!s->replicas->group[g].launched)
    launch_reduce (s, g);
  for (uint32_t i = 0; i < n; i++)
    sum_slices (s, bucket[i]);
}

static struct weft_sum *
head_sum (struct weft_step *s)
{
  return weft_head_has_own_sum (s) ? weft_head_sum (s)
                                   : &s->replicas->sum[weft_params_of_end (s, WEFT_EMBED_WEIGHT)];
}

struct weft_use
weft_ddp_head_begin (struct weft_step *s)
{
  return weft_sum_begin (s, head_sum (s));
}

void
weft_ddp_head_end (struct weft_step *s, struct weft_use grad)
{
  weft_sum_end (s, head_sum (s), grad);
  if (!weft_head_has_own_sum (s))
    note_ready (s, weft_params_of_end (s, WEFT_EMBED_WEIGHT));
}

uint32_t
weft_ddp_reduced (struct weft_step *s, uint32_t param)
{
  return s->params->grad_view[param];
}

uint32_t
weft_ddp_reduced_head (struct weft_step *s)
{
  uint32_t head = weft_head_sum (s)->main;

  weft_reduce_all (s, WEFT_GROUP_MIRROR, WEFT_REDUCE_SUM, head, "mirror of the tied head");
  weft_reduce_all (s, WEFT_GROUP_DP,
                   s->strategy->average_in_collective ? WEFT_REDUCE_AVG : WEFT_REDUCE_SUM, head,
                   "tied head");
  return head;
}

void
weft_ddp_join_across (struct weft_step *s)
{
  if (s->mesh->instances == 1)
    return;
  uint32_t newest = weft_build_last (s->b, weft_group_lane (weft_mesh_across (s->mesh)));
  weft_next_kernel_waits_for (s, newest);
}

/* Launch groups are finished in the order of stages, so that the two ranks with copies of a stage
 * (DualPipe) start their collectives in the same order. */
void
weft_ddp_finish (struct weft_step *s)
{
  for (uint32_t stage = 0; stage < s->grid->n_stages; stage++)
    for (uint32_t g = 0; g < s->params->layout.n_group; g++)
      if (s->chunk[chunk_of (s, g)].stage == stage)
        finish_group (s, g);
  weft_ddp_join_across (s);
}

void
weft_ddp_finish_whole (struct weft_step *s)
{
  for (uint32_t g = 0; g < s->params->layout.n_group; g++)
    if (!weft_step_flat (s, s->params->layout.bucket_of[s->params->layout.group[g].first])
             ->cut_grads)
      finish_group (s, g);
}

static void
gather_bucket (struct weft_step *s, uint32_t k, uint8_t flags)
{
  struct weft_bucket_state *state = &s->replicas->bucket[k];

  state->gathered = weft_ddp_collective (
      s, row_of (s, WEFT_OP_ALL_GATHER, "gather", k, flags),
      WEFT_SHAPE (weft_build_buf_at (s->b, state->weights)->dtype, weft_ddp_bucket_size (s, k)),
      WEFT_USES (WEFT_R (state->weight_shard), WEFT_W (state->weights)));
}

/* Appends the all-gathers of a launch group. Appends nothing if only one rank holds its weights. */
static void
launch_gather (struct weft_step *s, uint32_t g)
{
  struct weft_op at = s->at;

  if (group_slices (s, g) == 1)
    return;
  s->at.phase = WEFT_PHASE_OPTIMIZER;
  s->at.layer = s->at.micro = WEFT_NO_LAYER;
  launch (s, g, gather_bucket);
  s->at = at;
}

/* Returns the first launch group of a chunk, and sets *n to the number of its launch groups. Launch
 * groups of experts have separate chunk numbers (chunk_of). */
static uint32_t
first_group (const struct weft_step *s, uint32_t chunk, uint32_t *n)
{
  uint32_t first = 0;

  while (first < s->params->layout.n_group && s->params->layout.group[first].chunk != chunk)
    first++;
  for (*n = 0; first + *n < s->params->layout.n_group &&
               s->params->layout.group[first + *n].chunk == chunk;)
    (*n)++;
  return first;
}

/* Returns the i-th launch group of a chunk in the order in which forward reads the weights. The
 * layout has buckets in reverse order of registration, and FSDP units in order of registration. */
static uint32_t
gathered_at (const struct weft_step *s, uint32_t chunk, uint32_t i)
{
  uint32_t n, first = first_group (s, chunk, &n);

  return s->sharding->unit_of ? first + i : first + n - 1 - i;
}

/* Returns the index i for which gathered_at() returns launch group g. */
static uint32_t
place_of (const struct weft_step *s, uint32_t g)
{
  uint32_t n, first = first_group (s, s->params->layout.group[g].chunk, &n);

  return s->sharding->unit_of ? g - first : first + n - 1 - g;
}

/* Whether the first read of launch group g also launches the all-gather of the launch group that
 * forward reads as number `next`. */
static gboolean
is_due (const struct weft_step *s, uint32_t g, uint32_t next)
{
  uint32_t place = place_of (s, g);

  if (next <= place)
    return TRUE;
  return s->sharding->unit_of
             ? weft_fsdp_reaches (s, g, gathered_at (s, s->params->layout.group[g].chunk, next))
             : next == place + 1;
}

/* Returns the op of the last all-gather of a launch group. When this op has ended, all buckets of
 * the launch group are gathered. */
static uint32_t
gathered (const struct weft_step *s, uint32_t g)
{
  uint32_t n;
  const uint32_t *bucket = weft_ddp_members (s, g, &n);

  return s->replicas->bucket[bucket[n - 1]].gathered;
}

void
weft_ddp_gather_ahead (struct weft_step *s, uint32_t chain)
{
  struct weft_chain *c = &s->replicas->chain[chain];

  if (c->next == 0 && c->n_gather > 0)
    launch_gather (s, gathered_at (s, chain, c->next++));
}

/* Launches the all-gathers that the first read of launch group g must launch. */
static void
launch_due (struct weft_step *s, uint32_t g)
{
  uint32_t q = s->params->layout.group[g].chunk;
  struct weft_chain *chain = &s->replicas->chain[q];

  while (chain->next < chain->n_gather && is_due (s, g, chain->next))
    launch_gather (s, gathered_at (s, q, chain->next++));
  if (place_of (s, g) + 1 == chain->n_gather && (q + 1) % s->n_chunks &&
      weft_aligned_runs_ahead (s))
    weft_ddp_gather_ahead (s, q + 1);
}

/* Called before a kernel reads a weight of a launch group. Launches the all-gather of this launch
 * group, if it was not launched before, and makes kernels wait for this all-gather. Also launches
 * the all-gather of the next launch group, for which kernels do not wait yet. Megatron-FSDP
 * launches the all-gathers of several next launch groups. If the software stack gathers ahead, the
 * next launch group may be the first one of the next model chunk. */
void
weft_ddp_before_read (struct weft_step *s, uint32_t param)
{
  uint32_t g = weft_ddp_group_of (s, param), op;

  launch_due (s, g);
  if ((op = gathered (s, g)) == WEFT_NO_OP)
    return;
  weft_next_kernel_waits_for (s, op);
  if (!s->replicas->group[g].gathered)
    weft_fp8_weights_gathered (s, g);
  s->replicas->group[g].gathered = TRUE;
}

void
weft_ddp_gather_chunk (struct weft_step *s, uint32_t chunk)
{
  for (uint32_t q = chunk; q < 2 * s->n_chunks; q += s->n_chunks)
    while (s->replicas->chain[q].next < s->replicas->chain[q].n_gather)
      launch_gather (s, gathered_at (s, q, s->replicas->chain[q].next++));
}

void
weft_ddp_gather_first (struct weft_step *s, uint32_t chunk)
{
  for (uint32_t q = chunk; q < 2 * s->n_chunks; q += s->n_chunks)
    if (s->replicas->chain[q].n_gather > 0)
      launch_due (s, gathered_at (s, q, 0));
}

uint32_t
weft_ddp_first_group (const struct weft_step *s, uint32_t chunk)
{
  uint32_t n, first = first_group (s, chunk, &n);

  return n > 0 ? first : WEFT_NO_GROUP;
}

/* After the update of weights: all-gathers the launch groups of a chunk in the order in which
 * forward reads them. */
static void
gather_chunk (struct weft_step *s, uint32_t chunk)
{
  uint32_t n;

  first_group (s, chunk, &n);
  for (uint32_t i = 0; i < n; i++)
    launch_gather (s, gathered_at (s, chunk, i));
  for (uint32_t i = 0; i < n; i++) {
    uint32_t g = gathered_at (s, chunk, i), op = gathered (s, g);
    if (op != WEFT_NO_OP && s->strategy->fp8_param_gather)
      weft_next_kernel_waits_for (s, op);
    weft_fp8_weights_gathered (s, g);
  }
}

void
weft_ddp_gather_weights (struct weft_step *s)
{
  for (uint32_t q = 0; q < 2 * s->n_chunks; q++)
    if (s->replicas->chain[q].n_gather == 0)
      gather_chunk (s, q);
}
