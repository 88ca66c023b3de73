/* Builds the program of one pipeline stage. Creates the state of all subfolders of core/passes,
 * appends the ops of each forward and backward pass of the pipeline schedule, appends the
 * optimizer's ops, and finally fuses ops in the whole program. */
#include "core/passes/roof.h"
#include "core/base/exact.h"
#include "core/passes/layer/layer.h"
#include "core/passes/optimizer/optimizer.h"
#include "core/passes/pipeline/exchange.h"
#include "core/passes/replicas/replicas.h"
#include "core/passes/rewrite/rewrite.h"
#include "core/passes/shard/shard.h"

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
  mesh.stages_inside = k->use_tp_pp_dp_mapping && mesh.pp > 1;
  return mesh;
}

/* The loss and the gradient norm are sums over the whole batch. Each is one float. In canonical
 * order (equal bits for all strategies) each is instead an exact fixed-point sum, which does not
 * depend on the order of additions. */
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

  s->scalars.loss = weft_step_permanent (s, WEFT_BUF_WORKSPACE, dtype, n, "loss");
  s->scalars.squares = weft_step_permanent (s, WEFT_BUF_WORKSPACE, dtype, n, "grad_squares");
  s->scalars.factor = weft_step_permanent (s, WEFT_BUF_WORKSPACE, WEFT_FP32, 1, "clip_factor");
  weft_pipeline_buffers (s);
  s->scalars.count = s->scalars.found = s->scalars.mtp_loss = WEFT_NO_BUF;
  if (s->model->mtp_num_layers > 0 && weft_step_has_head (s))
    s->scalars.mtp_loss = weft_step_permanent (s, WEFT_BUF_WORKSPACE, dtype,
                                               n * s->model->mtp_num_layers, "mtp_loss");
  if (s->scales_loss)
    s->scalars.found = weft_step_permanent (s, WEFT_BUF_WORKSPACE, WEFT_FP32, 1, "found_inf");
  if (s->strategy->calculate_per_token_loss)
    s->scalars.count = weft_step_permanent (s, WEFT_BUF_WORKSPACE, WEFT_FP32, 1, "token_count");
}

/* Like zero_grad_buffer() of Megatron-Core: zeroes the gradients, unless the first microbatch
 * overwrites them. Also zeroes the running sums, such as the loss. */
static void
zero (struct weft_step *s)
{
  struct weft_shape scalar = WEFT_SHAPE (scalar_dtype (s), scalar_words (s));

  s->at.phase = WEFT_PHASE_FORWARD;
  for (uint32_t i = 0; i < s->params->flat->len && !s->canonical && !s->sharding->overwrites; i++) {
    uint32_t grads = g_array_index (s->params->flat, struct weft_flat, i).grads;
    weft_emit (s, WEFT_OP_ZERO, "zero_grad",
               WEFT_SHAPE (s->grad_dtype, weft_step_elements (s, grads)),
               WEFT_USES (WEFT_W (grads)));
  }
  weft_emit (s, WEFT_OP_ZERO, "zero_loss", scalar, WEFT_USES (WEFT_W (s->scalars.loss)));
  weft_emit (s, WEFT_OP_ZERO, "zero_norm", scalar, WEFT_USES (WEFT_W (s->scalars.squares)));
  weft_balance_start (s);
  if (s->scalars.mtp_loss != WEFT_NO_BUF)
    weft_emit (s, WEFT_OP_ZERO, "zero_mtp_loss",
               WEFT_SHAPE (scalar_dtype (s), weft_step_elements (s, s->scalars.mtp_loss)),
               WEFT_USES (WEFT_W (s->scalars.mtp_loss)));
  if (s->scalars.count != WEFT_NO_BUF && weft_step_has_head (s))
    weft_emit (s, WEFT_OP_ZERO, "zero_count", WEFT_SHAPE (WEFT_FP32, 1),
               WEFT_USES (WEFT_W (s->scalars.count)));
}

/* Appends the ops of the pipeline schedule in the order of its cells (passes of one microbatch
 * through one stage). */
static void
play (struct weft_step *s)
{
  weft_timer_start (s, 1, "forward-backward");
  weft_aligned_start (s);
  weft_cells_begin (s);
  for (uint32_t i = 0; i < s->grid->n_cell[s->role];)
    i += weft_cells_play (s, i);
  weft_cells_end (s);
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

/* Sets the first microbatch and the number of microbatches of one copy of the model (DualPipe has
 * two copies). The microbatches of a copy are consecutive. */
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

static void
choose_types (struct weft_step *s)
{
  s->dtype = s->weight_dtype = s->output_dtype = weft_job_dtype (s->job);
  s->product_dtype = weft_job_product_dtype (s->job);
  s->linear_dtype = weft_job_linear_dtype (s->job);
  s->grad_dtype = s->main_dtype = s->strategy->grad_reduce_in_fp32 ? WEFT_FP32 : s->dtype;
}

/* Sets the sizes, the types and the model chunks of *s, and creates the private state of each
 * subfolder of core/passes. Appends no op. */
void
weft_step_begin (struct weft_step *s)
{
  const struct weft_job *job = s->job;

  s->model = &job->model;
  s->strategy = &job->strategy;
  s->n_micro = weft_job_microbatches (job);
  s->tokens = (uint64_t) job->train.micro_batch_size * job->model.seq_length / s->mesh->cp;
  s->canonical = job->train.reduction_order == WEFT_ORDER_CANONICAL;
  s->scales_loss = weft_job_scales_loss (job);
  choose_types (s);
  list_chunks (s);
  weft_emit_begin (s);
  weft_shard_begin (s);
  weft_pipeline_begin (s);
  weft_replicas_begin (s);
  weft_layer_begin (s);
  weft_optimizer_begin (s);
  s->at = (struct weft_op){ .layer = WEFT_NO_LAYER, .micro = WEFT_NO_MICRO };
}

void
weft_step_end (struct weft_step *s)
{
  weft_optimizer_end (s);
  weft_layer_end (s);
  weft_replicas_end (s);
  weft_pipeline_end (s);
  weft_shard_end (s);
  weft_emit_end (s);
  g_free (s->chunk);
  weft_grid_free (s->grid);
}

/* Appends the ops at the start of a step: creates tensors and permanent buffers, and zeroes
 * gradients and running sums. */
static void
start (struct weft_step *s)
{
  weft_replicas_build (s);
  weft_layer_build (s);
  start_buffers (s);
  weft_replicas_start (s);
  zero (s);
  weft_fp8_begin_step (s);
  weft_optimizer_stage_weights (s);
}

weft_program *
weft_step_build (const struct weft_job *job, const struct weft_mesh *mesh, uint32_t role)
{
  g_autoptr (weft_builder) b = weft_builder_new (role, mesh->pp);
  struct weft_step s = { .job = job, .mesh = mesh, .role = role, .b = b };

  weft_step_begin (&s);
  start (&s);
  play (&s);
  weft_optimizer_finish_step (&s);
  weft_step_end (&s);
  weft_program *p = weft_builder_freeze (b);
  weft_join (p, job);
  if (job->strategy.enable_compile)
    weft_fuse (p);
  return p;
}
