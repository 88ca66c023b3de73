/* The passes in order, and the few functions through which they append ops. */
#include "core/base/exact.h"
#include "core/passes/rewrite/built.h"
#include "core/passes/pipeline/exchange.h"
#include "core/passes/layer/moe.h"
#include "core/passes/layer/ends.h"
#include "core/passes/layer/turns.h"

uint32_t
weft_step_buffer (struct weft_step *s, enum weft_buf_kind kind, enum weft_dtype dtype,
                  uint64_t elements, const char *name)
{
  struct weft_buf row = { .bytes = elements * weft_dtype_bytes (dtype),
                          .base = WEFT_NO_BUF,
                          .name = weft_build_name (s->b, name),
                          .layer = s->at.layer,
                          .micro = s->at.micro,
                          .kind = kind,
                          .pool = WEFT_POOL_DEVICE,
                          .dtype = dtype };
  return weft_build_buf (s->b, &row);
}

uint32_t
weft_step_permanent (struct weft_step *s, enum weft_buf_kind kind, enum weft_dtype dtype,
                     uint64_t elements, const char *name)
{
  uint32_t buf = weft_step_buffer (s, kind, dtype, elements, name);

  weft_build_buf_at (s->b, buf)->permanent = 1;
  weft_build_buf_at (s->b, buf)->layer = WEFT_NO_LAYER;
  weft_build_buf_at (s->b, buf)->micro = WEFT_NO_MICRO;
  return buf;
}

uint64_t
weft_step_elements (const struct weft_step *s, uint32_t buf)
{
  const struct weft_buf *row = weft_build_buf_at (s->b, buf);

  return row->bytes / weft_dtype_bytes (row->dtype);
}

static uint32_t
append (struct weft_step *s, const struct weft_op *row, struct weft_shape shape,
        const struct weft_use *uses, uint32_t n_uses)
{
  gboolean held = weft_timer_holds (s, row->lane);
  uint32_t op = weft_build_op (s->b, row, &shape);

  if (held)
    weft_build_dep (s->b, s->timed);
  for (uint32_t u = 0; u < n_uses; u++)
    weft_build_use (s->b, uses[u].buf, uses[u].read, uses[u].write);
  return op;
}

/* The first kernel after an exchange waits for it; batch_p2p_sync: for all. */
static void
wait_for_exchange (struct weft_step *s)
{
  gboolean any = FALSE, all = s->strategy->batch_p2p_comm && s->strategy->batch_p2p_sync;

  for (uint32_t i = 0; i < WEFT_N_EXCHANGE; i++) {
    any |= s->exchange[i] != WEFT_NO_OP;
    weft_build_dep (s->b, s->exchange[i]);
    s->exchange[i] = WEFT_NO_OP;
  }
  for (int lane = 0; lane < WEFT_N_LANE && any && all; lane++)
    if (lane != WEFT_LANE_GPU && weft_build_last (s->b, lane) != WEFT_NO_OP)
      weft_build_dep (s->b, weft_build_last (s->b, lane));
}

void
weft_step_wait_for_stream (struct weft_step *s, uint32_t kernel)
{
  weft_build_dep (s->b, kernel);
  for (uint32_t i = 0; i < WEFT_N_EXCHANGE; i++)
    weft_build_dep (s->b, s->exchange[i]);
  weft_build_dep (s->b, s->synced);
}

static void
wait_for_noted (struct weft_step *s)
{
  for (uint32_t i = 0; i < s->wait_for->len; i++)
    weft_build_dep (s->b, g_array_index (s->wait_for, uint32_t, i));
  g_array_set_size (s->wait_for, 0);
}

uint32_t
weft_emit (struct weft_step *s, enum weft_op_kind kind, const char *name, struct weft_shape shape,
           const struct weft_use *uses, uint32_t n_uses)
{
  struct weft_op row = s->at;

  row.kind = kind;
  row.lane = WEFT_LANE_GPU;
  row.name = weft_build_name (s->b, name);
  uint32_t op = append (s, &row, shape, uses, n_uses);
  wait_for_exchange (s);
  wait_for_noted (s);
  return op;
}

uint32_t
weft_emit_on (struct weft_step *s, enum weft_lane lane, struct weft_op row, struct weft_shape shape,
              const struct weft_use *uses, uint32_t n_uses)
{
  row.lane = lane;
  row.layer = s->at.layer;
  row.micro = s->at.micro;
  row.chunk = s->at.chunk;
  row.phase = s->at.phase;
  return append (s, &row, shape, uses, n_uses);
}

static void
host_reads (struct weft_step *s, const char *name, const struct weft_use *uses, uint32_t n_uses)
{
  struct weft_op row = { .kind = WEFT_OP_COPY_OUT, .name = weft_build_name (s->b, name) };

  s->synced = weft_emit_on (s, WEFT_LANE_D2H, row, WEFT_SHAPE (WEFT_FP32, 1), uses, n_uses);
  g_array_append_val (s->wait_for, s->synced);
}

void
weft_step_host_reads (struct weft_step *s, const char *name, uint32_t buf)
{
  host_reads (s, name, WEFT_USES (WEFT_R (buf)));
}

void
weft_step_host_reads_both (struct weft_step *s, const char *name, uint32_t a, uint32_t b)
{
  host_reads (s, name, WEFT_USES (WEFT_R (a), WEFT_R (b)));
}

struct weft_op
weft_step_again (struct weft_step *s)
{
  struct weft_op at = s->at;

  s->at.phase = WEFT_PHASE_RECOMPUTE;
  s->at.flags = WEFT_OP_RECOMPUTE;
  return at;
}

struct weft_mesh
weft_step_mesh (const struct weft_job *job)
{
  const union weft_strategy *k = &job->strategy;
  struct weft_mesh mesh = weft_mesh_make (k->tensor_model_parallel_size, k->context_parallel_size,
                                          weft_job_dp (job), k->pipeline_model_parallel_size);

  mesh.cp_heads = weft_job_cp_heads (job);
  if (job->model.num_moe_experts > 0) {
    mesh.ep = k->expert_model_parallel_size;
    mesh.etp = weft_job_expert_tp (job);
  }
  mesh.instances = weft_job_instances (job);
  mesh.expert_instances = weft_job_expert_instances (job);
  mesh.hybrid = mesh.instances > 1 && !k->use_distributed_optimizer;
  if (mesh.hybrid && k->outer_dp_sharding_strategy == WEFT_SHARD_OPTIM)
    mesh.outer_slices = mesh.instances;
  mesh.ring = weft_job_is_ring (job);
  mesh.mirror = weft_job_copies (job) > 1;
  return mesh;
}

gboolean
weft_step_has_embedding (const struct weft_step *s)
{
  for (uint32_t q = 0; q < s->n_chunks; q++)
    if (s->chunk[q].embedding)
      return TRUE;
  return FALSE;
}

const struct weft_chunk *
weft_step_head (const struct weft_step *s)
{
  for (uint32_t q = 0; q < s->n_chunks; q++)
    if (s->chunk[q].head)
      return &s->chunk[q];
  return NULL;
}

gboolean
weft_step_has_head (const struct weft_step *s)
{
  return weft_step_head (s) != NULL;
}

uint32_t
weft_step_slot (const struct weft_step *s, uint32_t layer)
{
  const struct weft_chunk *chunk = s->chunk;

  while (layer < chunk->first_layer || layer >= chunk->first_layer + chunk->n_layers + chunk->n_mtp)
    chunk++;
  return chunk->slot + layer - chunk->first_layer;
}

/* Loss and norm are sums over everything a step sees: one float each, or exact.h where their order
 * must not matter. */
static enum weft_dtype
scalar_dtype (const struct weft_step *s)
{
  return s->canonical ? WEFT_INT64 : WEFT_FP32;
}

static uint64_t
scalar_words (const struct weft_step *s)
{
  return s->canonical ? WEFT_EXACT_WORDS : 1;
}

static void
start_buffers (struct weft_step *s)
{
  enum weft_dtype dtype = scalar_dtype (s);
  uint64_t n = scalar_words (s);

  s->loss = weft_step_permanent (s, WEFT_BUF_WORKSPACE, dtype, n, "loss");
  s->squares = weft_step_permanent (s, WEFT_BUF_WORKSPACE, dtype, n, "grad_squares");
  s->factor = weft_step_permanent (s, WEFT_BUF_WORKSPACE, WEFT_FP32, 1, "clip_factor");
  if (s->strategy->variable_seq_lengths && s->mesh->pp > 1)
    s->shape = weft_step_permanent (s, WEFT_BUF_WORKSPACE, WEFT_INT64, 3, "shape");
  s->count = s->found = s->mtp_loss = WEFT_NO_BUF;
  if (s->model->mtp_num_layers > 0 && weft_step_has_head (s))
    s->mtp_loss = weft_step_permanent (s, WEFT_BUF_WORKSPACE, dtype, n * s->model->mtp_num_layers,
                                       "mtp_loss");
  if (s->scales_loss)
    s->found = weft_step_permanent (s, WEFT_BUF_WORKSPACE, WEFT_FP32, 1, "found_inf");
  if (s->strategy->calculate_per_token_loss)
    s->count = weft_step_permanent (s, WEFT_BUF_WORKSPACE, WEFT_FP32, 1, "token_count");
}

/* zero_grad_buffer(): gradients, unless the first microbatch overwrites them, and the two running
 * sums. */
static void
zero (struct weft_step *s)
{
  struct weft_shape scalar = WEFT_SHAPE (scalar_dtype (s), scalar_words (s));

  s->at.phase = WEFT_PHASE_FORWARD;
  for (uint32_t i = 0; i < s->flat->len && !s->canonical && !s->wrapper->overwrites; i++) {
    uint32_t grads = g_array_index (s->flat, struct weft_flat, i).grads;
    weft_emit (s, WEFT_OP_ZERO, "zero_grad",
               WEFT_SHAPE (s->grad_dtype, weft_step_elements (s, grads)),
               WEFT_USES (WEFT_W (grads)));
  }
  weft_emit (s, WEFT_OP_ZERO, "zero_loss", scalar, WEFT_USES (WEFT_W (s->loss)));
  weft_emit (s, WEFT_OP_ZERO, "zero_norm", scalar, WEFT_USES (WEFT_W (s->squares)));
  weft_balance_start (s);
  if (s->mtp_loss != WEFT_NO_BUF)
    weft_emit (s, WEFT_OP_ZERO, "zero_mtp_loss",
               WEFT_SHAPE (scalar_dtype (s), weft_step_elements (s, s->mtp_loss)),
               WEFT_USES (WEFT_W (s->mtp_loss)));
  if (s->count != WEFT_NO_BUF && weft_step_has_head (s))
    weft_emit (s, WEFT_OP_ZERO, "zero_count", WEFT_SHAPE (WEFT_FP32, 1),
               WEFT_USES (WEFT_W (s->count)));
}

/* The neighbour of a chunk may be on the same rank: it finds its input where it will look for it. */
void
weft_cell_hand_over (struct weft_step *s, const struct weft_cell *cell, uint32_t buf)
{
  gboolean forward = cell->phase == WEFT_PHASE_FORWARD;
  uint32_t rank = s->role, chunk = cell->chunk;
  uint32_t *passed = forward ? s->output : s->input_grad;

  passed[weft_step_passed (s, cell->micro, chunk)] = buf;
  if ((forward ? weft_grid_next : weft_grid_prev) (s->grid, &rank, &chunk) && rank == s->role)
    passed[weft_step_passed (s, cell->micro, chunk)] = buf;
}

uint32_t
weft_cell_take (struct weft_step *s, const struct weft_cell *cell)
{
  const struct weft_chunk *chunk = weft_step_chunk (s);

  if (cell->phase == WEFT_PHASE_FORWARD)
    return chunk->embedding ? weft_embed_forward (s, cell->micro) : weft_exchange_take (s, cell);
  uint32_t output = s->output[weft_step_passed (s, cell->micro, cell->chunk)];
  uint32_t dy = chunk->head ? weft_head_backward (s, cell->micro) : weft_exchange_take (s, cell);
  /* The graph of the framework holds a stage's output until its backward begins. */
  if (!chunk->head && !s->strategy->deallocate_pipeline_outputs)
    weft_emit (s, WEFT_OP_RELEASE, "release_output", WEFT_SHAPE (s->dtype, 0),
               WEFT_USES (WEFT_R (output)));
  return dy;
}

void
weft_cell_end (struct weft_step *s, const struct weft_cell *cell, uint32_t x)
{
  const struct weft_chunk *chunk = weft_step_chunk (s);

  if (cell->phase == WEFT_PHASE_FORWARD) {
    if (chunk->head)
      weft_head_forward (s, cell->micro, x);
    weft_cast_end_pass (s);
  } else if (chunk->embedding)
    weft_embed_backward (s, cell->micro, x);
}

static void
layers_cell (struct weft_step *s, const struct weft_cell *cell)
{
  gboolean forward = cell->phase == WEFT_PHASE_FORWARD;
  uint32_t x = weft_cell_take (s, cell);

  x = (forward ? weft_chunk_forward : weft_chunk_backward) (s, cell->micro, x);
  weft_cell_hand_over (s, cell, x);
  weft_cell_end (s, cell, x);
}

/* Tokens come one forward cell ahead of their use. */
static void
load_ahead (struct weft_step *s, const struct weft_cell *cell, uint32_t n, uint32_t i)
{
  for (i++; i < n; i++)
    if (cell[i].phase == WEFT_PHASE_FORWARD) {
      weft_ends_load (s, &cell[i]);
      return;
    }
}

static void
weight_grad_cell (struct weft_step *s, const struct weft_cell *cell)
{
  if (weft_step_chunk (s)->head)
    weft_head_delayed (s, cell->micro);
  weft_layer_delayed (s);
}

static weft_exchange_before *
exchange_of (const struct weft_step *s)
{
  const struct weft_schedule_row *row = weft_job_schedule (s->job);

  if (!row || row->exchange == WEFT_EXCHANGE_FREE)
    return weft_exchange_free;
  return s->n_chunks > 1 ? weft_exchange_interleaved : weft_exchange;
}

void
weft_cell_begin (struct weft_step *s, const struct weft_cell *cell)
{
  gboolean whole = cell->phase == WEFT_PHASE_BACKWARD;

  s->at = (struct weft_op){
    .layer = WEFT_NO_LAYER, .micro = cell->micro, .chunk = cell->chunk, .phase = cell->phase
  };
  struct weft_chunk *chunk = weft_step_chunk (s);
  s->pass++;
  s->cell = cell->phase;
  s->last_micro = whole && ++chunk->n_backward == chunk->n_micro;
  if (s->wrapper->enter_pass)
    s->wrapper->enter_pass (s);
  if (cell->phase == WEFT_PHASE_FORWARD)
    weft_aligned_before (s);
}

static void
play_cell (struct weft_step *s, const struct weft_cell *cell)
{
  static void (*const plays[]) (struct weft_step * s, const struct weft_cell *cell) = {
    [WEFT_PHASE_FORWARD] = layers_cell,
    [WEFT_PHASE_BACKWARD] = layers_cell,
    [WEFT_PHASE_INPUT_GRAD] = layers_cell,
    [WEFT_PHASE_WEIGHT_GRAD] = weight_grad_cell,
  };
  const char *timer = cell->phase == WEFT_PHASE_FORWARD ? "forward-compute" : "backward-compute";

  weft_cell_begin (s, cell);
  weft_timer_start (s, 2, timer);
  plays[cell->phase](s, cell);
  weft_timer_stop (s, 2, timer);
  if (s->wrapper->leave_pass)
    s->wrapper->leave_pass (s);
  if (cell->phase != WEFT_PHASE_FORWARD)
    weft_aligned_after (s);
}

gboolean
weft_step_interleaves (const struct weft_step *s)
{
  return exchange_of (s) == weft_exchange_interleaved;
}

static void
play (struct weft_step *s)
{
  const struct weft_cell *cell = s->grid->cell[s->role];
  uint32_t n = s->grid->n_cell[s->role];
  weft_exchange_before *exchange = exchange_of (s);

  weft_timer_start (s, 1, "forward-backward");
  weft_aligned_start (s);
  weft_ends_load (s, &cell[0]);
  exchange (s, 0);
  for (uint32_t i = 0; i < n; i++) {
    if (cell[i].phase == WEFT_PHASE_FORWARD)
      load_ahead (s, cell, n, i);
    if (cell[i].paired && weft_step_combines (s)) {
      weft_combined_pair (s, i++, exchange);
      continue;
    }
    play_cell (s, &cell[i]);
    exchange (s, i + 1);
  }
  weft_head_deferred (s);
}

struct weft_stage
weft_stage_at (const struct weft_job *job, const weft_grid *grid, uint32_t rank, uint32_t chunk)
{
  g_autofree uint32_t *rank_of = g_new (uint32_t, grid->n_stages);
  uint32_t stage = weft_grid_stage (grid, rank, chunk);

  for (uint32_t i = 0; i < grid->n_stages; i++)
    rank_of[i] = grid->place[i] / grid->n_chunks;
  g_autofree uint32_t *layers = weft_job_stage_layers (job, rank_of, grid->n_stages);
  struct weft_stage at = { .n_layers = layers[stage],
                           .embedding = stage == 0,
                           .head = stage + 1 == grid->n_stages };
  for (uint32_t before = 0; before < stage; before++)
    at.first_layer += layers[before];
  return at;
}

/* Those of a copy of the model follow each other. */
static void
count_micros (const weft_grid *grid, uint32_t copy, struct weft_chunk *chunk)
{
  for (uint32_t micro = grid->n_micro; micro-- > 0;)
    if (weft_grid_micro_copy (grid, micro) == copy) {
      chunk->first_micro = micro;
      chunk->n_micro++;
    }
}

static void
list_chunks (struct weft_step *s)
{
  s->grid = weft_job_grid (s->job, NULL);
  s->n_chunks = s->grid->n_chunks;
  s->chunk = g_new0 (struct weft_chunk, s->n_chunks);
  s->chain = g_new0 (struct weft_chain, 2 * s->n_chunks);
  for (uint32_t q = 0; q < s->n_chunks; q++) {
    struct weft_stage stage = weft_stage_at (s->job, s->grid, s->role, q);
    uint32_t copy = weft_grid_copy (s->grid, s->role, q);
    s->chunk[q] = (struct weft_chunk){ .stage = weft_grid_stage (s->grid, s->role, q),
                                       .copy = copy,
                                       .first_layer = stage.first_layer,
                                       .n_layers = stage.n_layers,
                                       .n_mtp = stage.head ? s->model->mtp_num_layers : 0,
                                       .slot = s->n_layers,
                                       .embedding = stage.embedding,
                                       .head = stage.head };
    count_micros (s->grid, copy, &s->chunk[q]);
    s->n_layers += s->chunk[q].n_layers + s->chunk[q].n_mtp;
  }
}

void
weft_step_begin (struct weft_step *s)
{
  const struct weft_job *job = s->job;

  s->model = &job->model;
  s->strategy = &job->strategy;
  s->n_micro = weft_job_microbatches (job);
  s->tokens = (uint64_t) job->train.micro_batch_size * job->model.seq_length / s->mesh->cp;
  s->canonical = job->train.reduction_order == WEFT_ORDER_CANONICAL;
  s->dtype = weft_job_dtype (job);
  s->product_dtype = weft_job_product_dtype (job);
  s->linear_dtype = weft_job_linear_dtype (job);
  weft_tensor_start (s);
  s->scales_loss = weft_job_scales_loss (job);
  s->cast_cache = WEFT_NO_BUF;
  s->grad_dtype = s->strategy->grad_reduce_in_fp32 ? WEFT_FP32 : s->dtype;
  s->main_dtype = s->grad_dtype;
  s->weight_dtype = s->output_dtype = s->dtype;
  s->p2p_dtype = s->strategy->pipeline_dtype == WEFT_NONE
                     ? s->dtype
                     : (enum weft_dtype) s->strategy->pipeline_dtype;
  list_chunks (s);
  s->saved = g_new0 (struct weft_saved, (size_t) s->n_micro * s->n_layers);
  s->saved_end = g_new0 (struct weft_saved_end, s->n_micro);
  s->saved_mtp = g_new0 (struct weft_saved_mtp, s->n_micro * s->model->mtp_num_layers);
  weft_offload_start (s);
  s->output = g_new0 (uint32_t, s->n_micro * s->n_chunks);
  s->input_grad = g_new0 (uint32_t, s->n_micro * s->n_chunks);
  for (uint32_t i = 0; i < WEFT_N_EXCHANGE; i++)
    s->exchange[i] = WEFT_NO_OP;
  s->synced = s->timed = WEFT_NO_OP;
  s->barrier = WEFT_NO_BUF;
  s->posting.queue = g_array_new (FALSE, FALSE, sizeof (struct weft_transfer));
  s->wait_for = g_array_new (FALSE, FALSE, sizeof (uint32_t));
  s->reducing = g_array_new (FALSE, FALSE, sizeof (struct weft_reduction));
  s->deferred = g_array_new (FALSE, FALSE, sizeof (uint32_t));
  s->delayed = g_array_new (FALSE, FALSE, sizeof (struct weft_delayed));
  weft_recompute_start (s);
  weft_wrapper_choose (s);
  s->at = (struct weft_op){ .layer = WEFT_NO_LAYER, .micro = WEFT_NO_MICRO };
}

void
weft_step_end (struct weft_step *s)
{
  for (uint32_t i = 0; i <= s->params->len; i++)
    g_clear_pointer (&s->sum[i].held, g_array_unref);
  for (uint32_t k = 0; k <= s->layout.n_bucket; k++)
    g_clear_pointer (&s->bucket[k].sum.held, g_array_unref);
  g_array_unref (s->posting.queue);
  weft_fp8_free (s->fp8);
  g_array_unref (s->wait_for);
  g_array_unref (s->reducing);
  g_array_unref (s->deferred);
  g_array_unref (s->delayed);
  g_free (s->partial);
  g_free (s->weight_view);
  g_free (s->grad_view);
  g_free (s->grad_left);
  g_free (s->grad_shared);
  g_free (s->turned);
  g_free (s->turned_scale);
  g_free (s->cast_view);
  g_free (s->own);
  weft_balance_free (s->balance);
  weft_layout_release (&s->layout);
  g_array_unref (s->flat);
  g_free (s->group);
  g_free (s->sum);
  g_array_unref (s->params);
  g_free (s->layer_param);
  g_free (s->bucket);
  g_free (s->saved);
  g_free (s->saved_end);
  g_free (s->saved_mtp);
  weft_offload_end (s);
  g_free (s->output);
  g_free (s->input_grad);
  g_free (s->chunk);
  g_free (s->chain);
  weft_grid_free (s->grid);
}

weft_program *
weft_step_build (const struct weft_job *job, const struct weft_mesh *mesh, uint32_t role)
{
  g_autoptr (weft_builder) b = weft_builder_new (role, mesh->pp);
  struct weft_step s = { .job = job, .mesh = mesh, .role = role, .b = b };

  weft_step_begin (&s);
  weft_params_build (&s);
  weft_fp8_start (&s);
  start_buffers (&s);
  s.wrapper->start (&s);
  zero (&s);
  weft_fp8_begin (&s);
  weft_fp8_stage (&s);
  play (&s);
  weft_finish (&s);
  weft_step_end (&s);
  weft_program *p = weft_builder_freeze (b);
  weft_join (p, job);
  if (job->strategy.enable_compile)
    weft_fuse (p);
  return p;
}
