/* The end of a step in Megatron-Core's order (finalize_model_grads.py, distrib_optimizer.py). The
 * appended ops wait for the reductions of gradients, add the gradients of the copies of a tied
 * embedding, compute the gradient norm, clip, update the weights, and all-gather them. */
#include "core/passes/layer/layer.h"
#include "core/passes/optimizer/states.h"

static uint32_t
flat_state (struct weft_step *s, enum weft_dtype dtype, uint64_t elements, const char *name)
{
  return (s->on_host ? weft_host_permanent : weft_step_permanent) (s, WEFT_BUF_OPTIMIZER, dtype,
                                                                   elements, name);
}

/* Appends a kernel of the optimizer update on the device, or on the CPU if the optimizer state is
 * in host memory. A CPU kernel waits for all copies between device and host. */
static uint32_t
emit_at_state (struct weft_step *s, enum weft_op_kind kind, const char *name,
               struct weft_shape shape, const struct weft_use *uses, uint32_t n_uses)
{
  if (!s->on_host)
    return weft_emit (s, kind, name, shape, uses, n_uses);
  uint32_t op = weft_emit_on_host (s, kind, name, shape, uses, n_uses);
  weft_host_wait_for_copies (s);
  return op;
}

uint64_t
weft_optimizer_slice (const struct weft_step *s, uint32_t k)
{
  const struct weft_buf *view = weft_build_buf_at (s->b, weft_bucket_gradients (s, k));
  return view->bytes / weft_dtype_bytes (view->dtype) / weft_mesh_group_size (s->mesh, view->shard);
}

/* Number of elements in this rank's slice of bucket k that the device updates. */
static uint64_t
device_slice (const struct weft_step *s, uint32_t k)
{
  return weft_optimizer_slice (s, k) - s->optimizer->n_host[k];
}

static gboolean
has_rule (const struct weft_step *s, uint32_t k, enum weft_optimizer rule)
{
  return weft_step_flat (s, k)->rule == rule;
}

/* Filters for optimizer states: whether bucket k has fp32 moments, 8-bit moments, or momentum. */
static gboolean
has_moments (const struct weft_step *s, uint32_t k)
{
  return has_rule (s, k, WEFT_ADAM);
}

static gboolean
has_codes (const struct weft_step *s, uint32_t k)
{
  return has_rule (s, k, WEFT_ADAMW_8BIT);
}

static gboolean
has_momentum (const struct weft_step *s, uint32_t k)
{
  return has_rule (s, k, WEFT_MUON);
}

/* Whether Adam updates fp32 weights. FALSE for Megatron-FSDP without preserve_fp32_weights: Adam
 * then updates the weights that kernels read, from gradients in the gradients' own dtype. */
static gboolean
updates_fp32 (const struct weft_step *s)
{
  return !s->strategy->use_megatron_fsdp || s->strategy->preserve_fp32_weights;
}

static gboolean
is_narrow (const struct weft_step *s, uint32_t k)
{
  return weft_step_flat (s, k)->dtype != WEFT_FP32 && updates_fp32 (s);
}

gboolean
weft_optimizer_copies_gradients (const struct weft_step *s, uint32_t k)
{
  return weft_step_flat (s, k)->grad_dtype != WEFT_FP32 && updates_fp32 (s) &&
         (s->job->stack.copies_gradients || s->scales_loss);
}

uint64_t
weft_optimizer_gradient_bytes (const struct weft_step *s, uint32_t grad)
{
  enum weft_dtype dtype = weft_build_buf_at (s->b, grad)->dtype;

  return s->job->stack.copies_gradients || dtype == WEFT_FP32 ? 0 : weft_dtype_bytes (dtype);
}

/* One optimizer state: name, type, number of elements that share a number of it, the array of its
 * views, and the buckets that have it. */
struct state {
  const char *name;
  enum weft_dtype dtype;
  uint32_t share;
  uint32_t *view;
  gboolean (*wanted) (const struct weft_step *s, uint32_t k);
};

static uint64_t
numbers_of (const struct weft_step *s, const struct state *state, uint32_t k)
{
  return state->wanted (s, k) ? device_slice (s, k) / state->share : 0;
}

/* Creates one flat buffer for one optimizer state of all buckets that have this state, and a view
 * of it for each of these buckets. The views of other buckets stay as they are. */
static void
add_state (struct weft_step *s, struct state state)
{
  uint64_t total = 0, start = 0, size = weft_dtype_bytes (state.dtype);
  uint32_t flat = WEFT_NO_BUF;

  for (uint32_t k = 0; k < s->params->layout.n_bucket; k++)
    total += numbers_of (s, &state, k);
  if (total)
    flat = flat_state (s, state.dtype, total, state.name);
  for (uint32_t k = 0; k < s->params->layout.n_bucket; k++) {
    uint64_t n = numbers_of (s, &state, k);
    if (n)
      state.view[k] = weft_build_view (s->b, flat, start * size, n * size, state.name);
    start += n;
  }
}

/* A row of views, one for each bucket, which no state has filled yet. */
static uint32_t *
no_views (const struct weft_step *s)
{
  uint32_t *view = g_new (uint32_t, s->params->layout.n_bucket);

  for (uint32_t k = 0; k < s->params->layout.n_bucket; k++)
    view[k] = WEFT_NO_BUF;
  return view;
}

/* Creates the master weights and the state of the update rules when they are first needed: at the
 * end of the step, or at the start of the step if weights are rounded from master weights at that
 * point. 8-bit moments have the names that bitsandbytes gives them. */
static void
build_states (struct weft_step *s)
{
  struct weft_optimizer_part *o = s->optimizer;
  uint32_t **const views[] = { &o->master, &o->m, &o->v, &o->m_scale, &o->v_scale, &o->grad32 };

  if (o->master)
    return;
  o->n_host = g_new0 (uint64_t, s->params->layout.n_bucket);
  weft_host_optimizer_split (s);
  for (size_t i = 0; i < G_N_ELEMENTS (views); i++)
    *views[i] = no_views (s);
  const struct state states[] = {
    { WEFT_FP32_WEIGHTS, WEFT_FP32, 1, o->master, is_narrow },
    { "exp_avg", WEFT_FP32, 1, o->m, has_moments },
    { "exp_avg_sq", WEFT_FP32, 1, o->v, has_moments },
    { "state1", WEFT_UINT8, 1, o->m, has_codes },
    { "state2", WEFT_UINT8, 1, o->v, has_codes },
    { "absmax1", WEFT_FP32, WEFT_8BIT_BLOCK, o->m_scale, has_codes },
    { "absmax2", WEFT_FP32, WEFT_8BIT_BLOCK, o->v_scale, has_codes },
    { "momentum_buffer", WEFT_FP32, 1, o->m, has_momentum },
    { WEFT_FP32_GRADIENTS, WEFT_FP32, 1, o->grad32, weft_optimizer_copies_gradients },
  };
  for (size_t i = 0; i < G_N_ELEMENTS (states); i++)
    add_state (s, states[i]);
}

void
weft_optimizer_stage_weights (struct weft_step *s)
{
  if (!weft_fp8_weights_stages_ahead (s))
    return;
  build_states (s);
  weft_fp8_weights_stage (s, s->optimizer->master);
}

void
weft_optimizer_begin (struct weft_step *s)
{
  s->optimizer = g_new0 (struct weft_optimizer_part, 1);
}

void
weft_optimizer_end (struct weft_step *s)
{
  struct weft_optimizer_part *o = s->optimizer;

  g_free (o->master);
  g_free (o->m);
  g_free (o->v);
  g_free (o->m_scale);
  g_free (o->v_scale);
  g_free (o->grad32);
  g_free (o->n_host);
  g_free (o);
}

/* Returns the parameter whose gradient is the sum over two copies of an embedding, or WEFT_NO_PARAM
 * if only one copy exists, or if the embedding is frozen. */
static uint32_t
tied_param (const struct weft_step *s)
{
  gboolean both = weft_step_has_embedding (s) && weft_step_has_head (s);

  if (!weft_step_shares_embedding (s) || !weft_job_trains (s->job, WEFT_FREEZE_HEAD) ||
      (both && !weft_head_has_own_sum (s)))
    return WEFT_NO_PARAM;
  return weft_params_of_end (s, WEFT_EMBED_WEIGHT) != WEFT_NO_PARAM
             ? weft_params_of_end (s, WEFT_EMBED_WEIGHT)
             : weft_params_of_end (s, WEFT_HEAD_WEIGHT);
}

/* Adds the gradient of a tied output layer to the gradient of the embedding. The gradient of the
 * output layer is a separate sum only in canonical order, and only if one stage holds both
 * embedding and output layer. This separate sum has already been reduced, like a bucket. */
static uint32_t
add_tied_head (struct weft_step *s, uint32_t grad)
{
  uint32_t head = weft_replicas_reduced_head (s);
  const struct weft_buf *row = weft_build_buf_at (s->b, head);
  uint64_t n = weft_step_elements (s, head) / weft_mesh_group_size (s->mesh, row->shard);

  return emit_at_state (s, WEFT_OP_GRAD_ADD, "tied head", WEFT_SHAPE (row->dtype, n),
                        WEFT_USES (WEFT_RW (grad), WEFT_R (head)));
}

/* If two stages hold the embedding, appends an all-reduce that adds the gradients of both copies.
 * Gradients in host memory are copied to the device before the all-reduce, and back to the host
 * afterwards. */
static uint32_t
add_stages (struct weft_step *s, uint32_t grad)
{
  const struct weft_buf row = *weft_build_buf_at (s->b, grad);
  struct weft_host_copy copy = { "tied embedding", grad, grad, 0, weft_step_elements (s, grad) };

  if (s->on_host) {
    copy.device = weft_step_buffer (s, WEFT_BUF_COMMUNICATION, row.dtype, copy.n, "tied_gradient");
    const uint32_t newest[] = { weft_build_last (s->b, WEFT_LANE_D2H),
                                weft_build_last (s->b, WEFT_LANE_HOST) };
    weft_from_host (s, &copy);
    for (size_t i = 0; i < G_N_ELEMENTS (newest); i++)
      weft_build_dep (s->b, newest[i]);
  }
  uint32_t op =
      weft_reduce_all (s, WEFT_GROUP_EMBD, WEFT_REDUCE_SUM, copy.device, "tied embedding");
  return s->on_host ? weft_to_host (s, &copy) : op;
}

/* Adds the gradients of the copies of a tied embedding, after the gradients of all buckets have
 * been reduced. The whole gradient is all-reduced, although this rank updates only one slice of it
 * (finalize_model_grads.py, _allreduce_word_embedding_grads). */
static uint32_t
reduce_tied (struct weft_step *s, uint32_t param)
{
  uint32_t kernel = weft_build_last (s->b, WEFT_LANE_GPU);
  uint32_t bucket[] = { weft_build_last (s->b, WEFT_LANE_DP),
                        weft_build_last (s->b, WEFT_LANE_DP_OUTER) };
  uint32_t grad = weft_replicas_reduced (s, param);
  uint32_t op = weft_head_has_own_sum (s) ? add_tied_head (s, grad) : add_stages (s, grad);

  weft_build_dep (s->b, kernel);
  weft_wait_for_shared_gradients (s);
  for (unsigned i = 0; i < G_N_ELEMENTS (bucket); i++)
    weft_build_dep (s->b, bucket[i]);
  return op;
}

/* calculate_per_token_loss: divides all gradients by the number of tokens in the batch
 * (finalize_model_grads.py). The rank with the output layer broadcasts its number of tokens to the
 * other stages, and an all-reduce adds the numbers of all replicas. The division waits for all ops
 * that still write gradients. */
static void
divide_by_tokens (struct weft_step *s, uint32_t tied_reduced)
{
  /* rank and model chunk of the last stage, which has the output layer: rank * n_chunks + chunk */
  uint32_t place = s->grid->place[s->grid->n_stages - 1];
  struct weft_op row = { .kind = WEFT_OP_BROADCAST,
                         .group = WEFT_GROUP_PP,
                         .peer = place / s->grid->n_chunks == 0 ? 0 : -1,
                         .name = weft_build_name (s->b, "tokens") };

  if (weft_step_has_head (s))
    weft_reduce_all (s, WEFT_GROUP_MIRROR, WEFT_REDUCE_SUM, s->scalars.count, "mirror of tokens");
  if (s->mesh->pp > 1)
    weft_emit_on (s, WEFT_LANE_PP, row, WEFT_SHAPE (WEFT_FP32, 1),
                  WEFT_USES (WEFT_RW (s->scalars.count)));
  weft_reduce_all (s, WEFT_GROUP_DP, WEFT_REDUCE_SUM, s->scalars.count, "tokens");
  uint32_t reduced = weft_build_last (s->b, WEFT_LANE_DP);
  for (uint32_t i = 0; i < s->params->flat->len; i++) {
    uint32_t grads = g_array_index (s->params->flat, struct weft_flat, i).grads;
    weft_emit (s, WEFT_OP_SCALE, "per_token",
               WEFT_SHAPE (s->grad_dtype, weft_step_elements (s, grads), 1, 1),
               WEFT_USES (WEFT_RW (grads), WEFT_R (s->scalars.count)));
    weft_build_dep (s->b, reduced);
    weft_build_dep (s->b, tied_reduced);
    weft_wait_for_shared_gradients (s);
  }
}

/* Returns the buffer with the gradients that Adam on the device reads: the fp32 copy if the bucket
 * has one, otherwise the reduced gradients. */
static uint32_t
owned_grad (const struct weft_step *s, uint32_t k)
{
  return s->optimizer->grad32[k] != WEFT_NO_BUF ? s->optimizer->grad32[k]
                                                : weft_bucket_gradients (s, k);
}

static gboolean
only_duplicates (const struct weft_step *s, uint32_t k)
{
  for (uint32_t i = 0; i < weft_params_count (s); i++)
    if (s->params->layout.place[i].bucket == k && !weft_param_at (s, i)->duplicate)
      return FALSE;
  return TRUE;
}

/* Returns the buffer for the sum of squared gradients. The buffer is in host memory if the
 * gradients are in host memory. */
static uint32_t
start_norm (struct weft_step *s)
{
  const struct weft_buf row = *weft_build_buf_at (s->b, s->scalars.squares);
  uint64_t n = weft_step_elements (s, s->scalars.squares);

  if (!s->on_host || s->job->train.clip_grad == 0)
    return s->scalars.squares;
  uint32_t squares = weft_host_buffer (s, WEFT_BUF_WORKSPACE, row.dtype, n, "host_grad_squares");
  weft_emit_on_host (s, WEFT_OP_ZERO, "zero_norm", WEFT_SHAPE (row.dtype, n),
                     WEFT_USES (WEFT_W (squares)));
  return squares;
}

/* Copies the sum of squares from host memory to the device, if the sum was computed on the host. */
static void
end_norm (struct weft_step *s, uint32_t squares)
{
  struct weft_host_copy copy = { "grad_norm", s->scalars.squares, squares, 0,
                                 weft_step_elements (s, squares) };

  if (squares != s->scalars.squares)
    weft_from_host (s, &copy);
}

/* Adds dependencies to the first op on a bucket after the bucket's reduction. The op also waits for
 * the all-reduces of gradients over tensor parallel ranks, and for the all-reduce of a tied
 * embedding. */
static void
wait_for_finalize (struct weft_step *s, uint32_t k, uint32_t tied, uint32_t tied_reduced)
{
  weft_wait_for_shared_gradients (s);
  /* no op has waited for the all-to-all of bucket k yet */
  if (weft_bucket_is_exchanged (s, k))
    weft_build_dep (s->b, weft_bucket_reduced (s, k));
  if (tied != WEFT_NO_PARAM && s->params->layout.place[tied].bucket == k)
    weft_build_dep (s->b, tied_reduced);
}

/* Appends a conversion of gradients to fp32 for the optimizer, for each bucket that needs one. */
static void
copy_to_main (struct weft_step *s, uint32_t tied, uint32_t tied_reduced)
{
  for (uint32_t k = 0; k < s->params->layout.n_bucket; k++) {
    if (s->optimizer->grad32[k] == WEFT_NO_BUF)
      continue;
    struct weft_shape shape = WEFT_SHAPE (s->main_dtype, device_slice (s, k));
    shape.out_dtype = WEFT_FP32;
    emit_at_state (
        s, WEFT_OP_CAST, "grad_fp32", shape,
        WEFT_USES (WEFT_R (weft_bucket_gradients (s, k)), WEFT_W (s->optimizer->grad32[k])));
    wait_for_finalize (s, k, tied, tied_reduced);
  }
}

/* Returns the buffer with the gradients of this rank's slice of bucket k, including elements that
 * the host updates. */
static uint32_t
slice_grad (const struct weft_step *s, uint32_t k)
{
  return s->optimizer->n_host[k] ? weft_bucket_gradients (s, k) : owned_grad (s, k);
}

/* Whether squared gradients of distributed experts and of dense weights are summed over different
 * groups for the gradient norm. TRUE without a sharded optimizer, because expert parallel ranks
 * hold different experts, but copies of the same dense weights. FALSE with a sharded optimizer,
 * because every slice is on one rank only, and one all-reduce is enough. Exception: TRUE if the
 * optimizer state of experts has fewer instances (copies) than the state of dense weights. */
static gboolean
has_experts_apart (const struct weft_step *s)
{
  return !s->shard_optimizer || s->mesh->expert_instances < s->mesh->instances;
}

static gboolean
measures_apart (const struct weft_step *s, uint32_t k)
{
  return weft_step_flat (s, k)->expert && has_experts_apart (s);
}

static uint32_t
expert_squares (struct weft_step *s)
{
  const struct weft_buf row = *weft_build_buf_at (s->b, s->scalars.squares);
  uint64_t n = weft_step_elements (s, s->scalars.squares);

  if (s->optimizer->expert_squares == WEFT_NO_BUF) {
    s->optimizer->expert_squares =
        weft_step_buffer (s, WEFT_BUF_WORKSPACE, row.dtype, n, "expert_grad_squares");
    weft_emit (s, WEFT_OP_ZERO, "zero_norm", WEFT_SHAPE (row.dtype, n),
               WEFT_USES (WEFT_W (s->optimizer->expert_squares)));
  }
  return s->optimizer->expert_squares;
}

/* Returns the buffer to which the squared gradients of bucket k are added. */
static uint32_t
squares_of (struct weft_step *s, uint32_t k, uint32_t squares)
{
  return measures_apart (s, k) ? expert_squares (s) : squares;
}

/* Adds the sum of squared gradients of experts to the sum of dense weights, after a separate
 * all-reduce of the experts' sum (Megatron-Core optimizer.py, ChainedOptimizer). A stage without
 * experts also joins the all-reduce, because the group spans all stages. */
static void
add_experts (struct weft_step *s)
{
  const struct weft_buf row = *weft_build_buf_at (s->b, s->scalars.squares);

  if (s->optimizer->expert_squares == WEFT_NO_BUF &&
      (!weft_mesh_deals_experts (s->mesh) || !has_experts_apart (s)))
    return;
  weft_reduce_all (s, s->shard_optimizer ? WEFT_GROUP_WORLD : WEFT_GROUP_EMP, WEFT_REDUCE_SUM,
                   expert_squares (s), "expert_grad_norm");
  weft_emit (s, WEFT_OP_MOE_SQUARES, "add_squares",
             WEFT_SHAPE (row.dtype, weft_step_elements (s, s->scalars.squares)),
             WEFT_USES (WEFT_RW (s->scalars.squares), WEFT_R (s->optimizer->expert_squares)));
}

static void
measure_norm (struct weft_step *s, uint32_t tied, uint32_t tied_reduced)
{
  uint32_t squares = start_norm (s);

  s->optimizer->expert_squares = WEFT_NO_BUF;

  for (uint32_t k = 0; k < s->params->layout.n_bucket; k++) {
    if (only_duplicates (s, k) || s->job->train.clip_grad == 0)
      continue;
    uint32_t grad = slice_grad (s, k);
    enum weft_dtype dtype = weft_build_buf_at (s->b, grad)->dtype;
    emit_at_state (s, WEFT_OP_GRAD_NORM, "grad_norm",
                   WEFT_SHAPE (dtype, weft_optimizer_slice (s, k)),
                   WEFT_USES (WEFT_R (grad), WEFT_RW (squares_of (s, k, squares))));
    if (s->optimizer->grad32[k] == WEFT_NO_BUF && !s->scales_loss)
      wait_for_finalize (s, k, tied, tied_reduced);
  }
  end_norm (s, squares);
}

/* Returns the group of ranks whose squared gradients are added for the norm. With a distributed
 * optimizer, this group includes the ranks with different slices of the gradients. Without it all
 * replicas have equal gradients, so the group is the ranks of one replica. */
static enum weft_group_kind
norm_group (const struct weft_step *s)
{
  if (!s->shard_optimizer)
    return WEFT_GROUP_MP;
  return s->mesh->instances > s->mesh->outer_slices ? WEFT_GROUP_INSTANCE : WEFT_GROUP_WORLD;
}

/* Divides gradients by the loss scale, and all-reduces a flag that is set if any gradient is not
 * finite. With the flag set, no rank updates its weights. The host reads the flag before it
 * enqueues further ops (Megatron-Core optimizer.py, _unscale_main_grads_and_check_for_nan). */
static void
unscale (struct weft_step *s, uint32_t tied, uint32_t tied_reduced)
{
  if (!s->scales_loss)
    return;
  weft_emit (s, WEFT_OP_ZERO, "zero_found", WEFT_SHAPE (WEFT_FP32, 1),
             WEFT_USES (WEFT_W (s->scalars.found)));
  for (uint32_t k = 0; k < s->params->layout.n_bucket; k++) {
    uint32_t grad = slice_grad (s, k);
    enum weft_dtype dtype = weft_build_buf_at (s->b, grad)->dtype;
    weft_emit (s, WEFT_OP_UNSCALE, "unscale", WEFT_SHAPE (dtype, weft_optimizer_slice (s, k)),
               WEFT_USES (WEFT_RW (grad), WEFT_RW (s->scalars.found)));
    /* Without finalize_model_grads(), no earlier op has waited for the gradient reduction. */
    weft_build_dep (s->b, weft_bucket_reduced (s, k));
    if (s->optimizer->grad32[k] == WEFT_NO_BUF)
      wait_for_finalize (s, k, tied, tied_reduced);
  }
  weft_reduce_all (s, norm_group (s), WEFT_REDUCE_MAX, s->scalars.found, "found_inf");
  weft_step_host_reads (s, "found_inf", s->scalars.found);
}

static void
clip (struct weft_step *s)
{
  gboolean clips = s->job->train.clip_grad > 0;

  if (!weft_step_has_factor (s))
    return;
  if (clips) {
    weft_reduce_all (s, norm_group (s), WEFT_REDUCE_SUM, s->scalars.squares, "grad_norm");
    add_experts (s);
  }
  weft_emit (s, WEFT_OP_CLIP, "clip", WEFT_SHAPE (WEFT_FP32, 0),
             WEFT_USES (WEFT_R (clips ? s->scalars.squares : WEFT_NO_BUF),
                        WEFT_R (s->scalars.found), WEFT_W (s->scalars.factor)));
}

/* The buffer of the clip factor that updates on the device read, or WEFT_NO_BUF. */
static uint32_t
factor_buffer (const struct weft_step *s)
{
  return s->on_host                 ? s->optimizer->host_factor
         : weft_step_has_factor (s) ? s->scalars.factor
                                    : WEFT_NO_BUF;
}

static void
add_momentum (struct weft_step *s, uint32_t k)
{
  uint32_t grad = owned_grad (s, k);

  weft_emit (s, WEFT_OP_MUON_MOMENTUM, "momentum",
             WEFT_SHAPE (WEFT_FP32, device_slice (s, k), weft_optimizer_gradient_bytes (s, grad)),
             WEFT_USES (WEFT_R (grad), WEFT_R (factor_buffer (s)), WEFT_RW (s->optimizer->m[k])));
}

/* Appends the first op of the update of bucket k: Adam is the only one. */
static void
update_bucket (struct weft_step *s, uint32_t k)
{
  const struct weft_optimizer_part *o = s->optimizer;
  gboolean itself = s->weight_dtype != WEFT_FP32 && !updates_fp32 (s);
  gboolean later = weft_step_flat (s, k)->dtype == WEFT_FP8; /* fp8_weights.c */
  gboolean stochastic =
      itself && s->weight_dtype == WEFT_BF16 && s->job->train.bf16_stochastic_round;
  uint32_t grad = owned_grad (s, k);
  const struct weft_use uses[] = { WEFT_R (grad), WEFT_R (factor_buffer (s)),
                                   WEFT_RW (later ? WEFT_NO_BUF : weft_bucket_weights (s, k)),
                                   WEFT_RW (o->master[k]), WEFT_RW (o->m[k]), WEFT_RW (o->v[k]),
                                   WEFT_RW (o->m_scale[k]), WEFT_RW (o->v_scale[k]) };
  gboolean codes = has_codes (s, k);

  if (has_momentum (s, k)) {
    add_momentum (s, k);
    return;
  }
  emit_at_state (s, codes ? WEFT_OP_ADAM_8BIT : WEFT_OP_ADAM, codes ? "adam_8bit" : "adam",
                 WEFT_SHAPE (later ? WEFT_FP32 : s->weight_dtype, device_slice (s, k), itself,
                             stochastic, weft_optimizer_gradient_bytes (s, grad)),
                 uses, codes ? 8 : 6);
}

static void
update (struct weft_step *s, uint32_t tied, uint32_t tied_reduced)
{
  uint32_t bucket = tied == WEFT_NO_PARAM ? WEFT_NO_OP : s->params->layout.place[tied].bucket;

  if (s->on_host)
    s->optimizer->host_factor = weft_host_optimizer_factor (s);
  weft_host_optimizer_send (s, bucket, tied_reduced);
  for (uint32_t k = 0; k < s->params->layout.n_bucket; k++) {
    if (device_slice (s, k)) {
      update_bucket (s, k);
      wait_for_finalize (s, k, tied, tied_reduced);
      if (has_momentum (s, k))
        weft_muon_update (s, k, owned_grad (s, k), factor_buffer (s));
    }
    weft_host_optimizer_update (s, k);
  }
  weft_host_optimizer_finish (s);
}

/* After the update, the ranks of one replica (tp x pp) agree on two scalars by all-reduce
 * (Megatron-LM training.py, train_step). They take the smallest clip factor, which is 0 if a rank
 * did not update, and the largest gradient norm. Without clip_grad there is no norm. Without a loss
 * scale every update succeeds. */
static void
agree (struct weft_step *s)
{
  if (weft_step_has_factor (s))
    weft_reduce_all (s, WEFT_GROUP_MP, WEFT_REDUCE_MIN, s->scalars.factor, "update_successful");
  if (s->job->train.clip_grad > 0)
    weft_reduce_all (s, WEFT_GROUP_MP, WEFT_REDUCE_MAX, s->scalars.squares, "largest_norm");
}

/* Averages the losses of multi-token prediction over data parallel replicas. Kernels have written
 * these losses through views of one buffer, so the collectives need explicit dependencies on the
 * kernels. */
static void
report_mtp (struct weft_step *s)
{
  uint32_t kernel = weft_build_last (s->b, WEFT_LANE_GPU);

  if (s->scalars.mtp_loss == WEFT_NO_BUF)
    return;
  if (weft_reduce_all (s, WEFT_GROUP_MIRROR, WEFT_REDUCE_SUM, s->scalars.mtp_loss,
                       "mirror of the loss") != WEFT_NO_OP)
    weft_build_dep (s->b, kernel);
  if (weft_reduce_all (s, WEFT_GROUP_DP, s->canonical ? WEFT_REDUCE_SUM : WEFT_REDUCE_AVG,
                       s->scalars.mtp_loss, "mtp loss") != WEFT_NO_OP)
    weft_build_dep (s->b, kernel);
}

/* Averages the loss over data parallel replicas, and copies loss and gradient norm to the host. In
 * canonical order the host receives exact sums, and the code that reads the sums divides them. */
static void
report (struct weft_step *s)
{
  struct weft_op row = { .kind = WEFT_OP_COPY_OUT, .name = weft_build_name (s->b, "metrics") };

  if (weft_step_has_head (s))
    weft_reduce_all (s, WEFT_GROUP_MIRROR, WEFT_REDUCE_SUM, s->scalars.loss, "mirror of the loss");
  if (weft_step_has_head (s))
    weft_reduce_all (s, WEFT_GROUP_DP, s->canonical ? WEFT_REDUCE_SUM : WEFT_REDUCE_AVG,
                     s->scalars.loss, "loss");
  report_mtp (s);
  const struct weft_buf *loss = weft_build_buf_at (s->b, s->scalars.loss);
  uint64_t more =
      s->scalars.mtp_loss == WEFT_NO_BUF ? 0 : weft_step_elements (s, s->scalars.mtp_loss);
  const struct weft_use uses[] = { WEFT_R (s->scalars.loss), WEFT_R (s->scalars.squares),
                                   WEFT_R (s->scalars.mtp_loss) };
  weft_emit_on (s, WEFT_LANE_D2H, row,
                WEFT_SHAPE (loss->dtype, 2 * loss->bytes / weft_dtype_bytes (loss->dtype) + more),
                uses, more ? 3 : 2);
  if (more)
    weft_build_dep (s->b, weft_build_last (s->b, WEFT_LANE_GPU));
}

/* Completes gradients in the order of Megatron-Core's finalize_model_grads(). PyTorch's wrappers
 * (DDP, FSDP2) do not call finalize_model_grads(). For them, this function only adds the separate
 * gradient of a tied output layer to the gradient of the embedding. */
static uint32_t
finalize (struct weft_step *s, uint32_t tied)
{
  uint32_t tied_reduced = WEFT_NO_OP;

  if (s->strategy->finalize_model_grads_func == WEFT_FINALIZE_NONE)
    return tied != WEFT_NO_PARAM && weft_head_has_own_sum (s) ? reduce_tied (s, tied) : WEFT_NO_OP;

  s->at.phase = WEFT_PHASE_REDUCE;
  weft_timer_start (s, 1, "all-grads-sync");
  weft_replicas_finish (s);
  weft_timer_stop (s, 1, "all-grads-sync");
  s->at.phase = WEFT_PHASE_FINALIZE;
  weft_timer_start (s, 1, "non-tensor-parallel-grads-all-reduce");
  weft_tensor_reduce_gradients (s, weft_replicas_reduced);
  weft_timer_stop (s, 1, "non-tensor-parallel-grads-all-reduce");
  weft_timer_start (s, 1, "embedding-grads-all-reduce");
  if (tied != WEFT_NO_PARAM)
    tied_reduced = reduce_tied (s, tied);
  weft_timer_stop (s, 1, "embedding-grads-all-reduce");
  weft_balance_update (s);
  if (s->scalars.count != WEFT_NO_BUF)
    divide_by_tokens (s, tied_reduced);
  return tied_reduced;
}

static void
optimize (struct weft_step *s, uint32_t tied, uint32_t tied_reduced)
{
  weft_timer_start (s, 1, "optimizer");
  weft_fp8_reduce_magnitudes (s);
  weft_timer_start (s, 1, "optimizer-copy-to-main-grad");
  build_states (s);
  copy_to_main (s, tied, tied_reduced);
  weft_timer_stop (s, 1, "optimizer-copy-to-main-grad");
  weft_timer_start (s, 1, "optimizer-unscale-and-check-inf");
  unscale (s, tied, tied_reduced);
  weft_timer_stop (s, 1, "optimizer-unscale-and-check-inf");
  weft_timer_start (s, 1, "optimizer-clip-main-grad");
  measure_norm (s, tied, tied_reduced);
  clip (s);
  weft_timer_stop (s, 1, "optimizer-clip-main-grad");
  weft_timer_start (s, 1, "optimizer-inner-step");
  update (s, tied, tied_reduced);
  weft_fp8_weights_update (s, s->optimizer->master);
  weft_timer_stop (s, 1, "optimizer-inner-step");
  weft_timer_start (s, 1, "params-all-gather");
  weft_replicas_gather_weights (s);
  weft_timer_stop (s, 1, "params-all-gather");
  weft_timer_stop (s, 1, "optimizer");
}

void
weft_optimizer_finish_step (struct weft_step *s)
{
  uint32_t tied = tied_param (s);

  s->at = (struct weft_op){ .layer = WEFT_NO_LAYER,
                            .micro = WEFT_NO_MICRO,
                            .phase = WEFT_PHASE_FINALIZE };
  uint32_t tied_reduced = finalize (s, tied);
  weft_timer_stop (s, 1, "forward-backward");
  s->at.phase = WEFT_PHASE_OPTIMIZER;
  optimize (s, tied, tied_reduced);
  agree (s);
  report (s);
}
