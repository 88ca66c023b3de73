/* moe_router_enable_expert_bias: balances experts without an auxiliary loss. Forward counts how
 * often each expert is chosen. When gradients are complete, one collective adds the counts over all
 * ranks of a stage, for all layers. Each expert's bias is then raised or lowered by a fixed step
 * (Megatron-Core finalize_model_grads.py, _update_router_expert_bias). Biases are not parameters:
 * they have no gradient and no optimizer state. */
#include "core/passes/layer/moe.h"

/* Number of tokens that each expert has received (tally), and bias of each expert. Both are buffers
 * for all MoE layers of this pipeline rank, one model chunk after the other. */
struct weft_balance {
  uint64_t experts;
  uint32_t n; /* number of MoE layers */
  uint32_t tally, bias;
  /* by layer of this pipeline rank: views of the layer's token counts (tally_of) and biases
   * (bias_of), or WEFT_NO_BUF */
  uint32_t *tally_of, *bias_of;
  /* of_chunk: for each model chunk, a view of the chunk's token counts (tally), or WEFT_NO_BUF */
  uint32_t *of_chunk;
};

static uint32_t
view_of (struct weft_step *s, uint32_t base, uint64_t first, uint64_t layers, const char *name)
{
  uint64_t bytes = (uint64_t) s->model->num_moe_experts * weft_dtype_bytes (WEFT_FP32);

  return weft_build_view (s->b, base, first * bytes, layers * bytes, name);
}

/* Returns the number of layers of a model chunk, including those of multi-token prediction. */
static uint32_t
layers_of (const struct weft_chunk *chunk)
{
  return chunk->n_layers + chunk->n_mtp;
}

static uint32_t
count_layers (const struct weft_step *s, const struct weft_chunk *chunk)
{
  uint32_t n = 0;

  for (uint32_t l = 0; l < layers_of (chunk); l++)
    n += weft_model_layer_is_moe (s->model, chunk->first_layer + l);
  return n;
}

static void
add_layers (struct weft_step *s, struct weft_balance *b, const struct weft_chunk *chunk)
{
  for (uint32_t l = 0; l < layers_of (chunk); l++) {
    uint32_t slot = chunk->slot + l, layer = chunk->first_layer + l;
    b->tally_of[slot] = b->bias_of[slot] = WEFT_NO_BUF;
    if (!weft_model_layer_is_moe (s->model, layer))
      continue;
    b->tally_of[slot] = view_of (s, b->tally, b->n, 1, "router.tally");
    b->bias_of[slot] = view_of (s, b->bias, b->n++, 1, WEFT_EXPERT_BIAS);
    weft_build_buf_at (s->b, b->bias_of[slot])->layer = layer;
  }
}

static void
build (struct weft_step *s, uint32_t n)
{
  struct weft_balance *b = s->layer->balance = g_new0 (struct weft_balance, 1);

  b->experts = (uint64_t) s->model->num_moe_experts;
  b->tally =
      weft_step_permanent (s, WEFT_BUF_WORKSPACE, WEFT_FP32, n * b->experts, "expert_tallies");
  b->bias = weft_step_permanent (s, WEFT_BUF_WORKSPACE, WEFT_FP32, n * b->experts, "expert_biases");
  b->tally_of = g_new (uint32_t, s->n_layers);
  b->bias_of = g_new (uint32_t, s->n_layers);
  b->of_chunk = g_new (uint32_t, s->n_chunks);
  for (uint32_t q = 0; q < s->n_chunks; q++) {
    uint32_t few = count_layers (s, &s->chunk[q]);
    b->of_chunk[q] = few ? view_of (s, b->tally, b->n, few, "chunk_tallies") : WEFT_NO_BUF;
    add_layers (s, b, &s->chunk[q]);
  }
}

void
weft_balance_start (struct weft_step *s)
{
  uint32_t n = 0;

  for (uint32_t q = 0; q < s->n_chunks; q++)
    n += count_layers (s, &s->chunk[q]);
  if (!s->model->moe_router_enable_expert_bias || n == 0)
    return;
  build (s, n);
  weft_emit (s, WEFT_OP_ZERO, "zero_tallies",
             WEFT_SHAPE (WEFT_FP32, n * s->layer->balance->experts),
             WEFT_USES (WEFT_W (s->layer->balance->tally)));
}

uint32_t
weft_balance_bias (const struct weft_step *s)
{
  return s->layer->balance ? s->layer->balance->bias_of[weft_step_slot (s, s->at.layer)]
                           : WEFT_NO_BUF;
}

/* Adds the current layer's choices of experts to the number of tokens of each expert. Recompute
 * adds nothing, because forward has already counted these choices. */
void
weft_balance_count (struct weft_step *s, uint32_t choice)
{
  uint64_t topk = (uint64_t) s->model->moe_router_topk;

  if (!s->layer->balance || s->at.phase != WEFT_PHASE_FORWARD)
    return;
  weft_emit (s, WEFT_OP_MOE_TALLY, "tally",
             WEFT_SHAPE (WEFT_FP32, weft_step_elements (s, choice) / topk,
                         s->layer->balance->experts, topk),
             WEFT_USES (WEFT_R (choice),
                        WEFT_RW (s->layer->balance->tally_of[weft_step_slot (s, s->at.layer)])));
}

/* DualPipe only: adds the token counts of the two copies of a stage, because the copies have
 * counted different microbatches. The loop runs over stages, not over model chunks, so that both
 * ranks start these all-reduces in the same order. */
static void
add_mirrors (struct weft_step *s, uint32_t after)
{
  for (uint32_t stage = 0; stage < s->grid->n_stages && s->mesh->mirror; stage++)
    for (uint32_t q = 0; q < s->n_chunks; q++)
      if (s->chunk[q].stage == stage && s->layer->balance->of_chunk[q] != WEFT_NO_BUF &&
          weft_reduce_all (s, WEFT_GROUP_MIRROR, WEFT_REDUCE_SUM, s->layer->balance->of_chunk[q],
                           "mirror of tallies") != WEFT_NO_OP)
        weft_build_dep (s->b, after);
}

void
weft_balance_update (struct weft_step *s)
{
  const struct weft_balance *b = s->layer->balance;
  uint32_t counted = weft_build_last (s->b, WEFT_LANE_GPU);

  if (!b)
    return;
  uint32_t added = weft_reduce_all (s, WEFT_GROUP_STAGE, WEFT_REDUCE_SUM, b->tally, "tallies");
  if (added != WEFT_NO_OP)
    weft_build_dep (s->b, counted);
  add_mirrors (s, added == WEFT_NO_OP ? counted : added);
  uint32_t mirrored = weft_build_last (s->b, WEFT_LANE_DP);
  weft_emit (s, WEFT_OP_MOE_BALANCE, "expert_bias", WEFT_SHAPE (WEFT_FP32, b->n, b->experts),
             WEFT_USES (WEFT_R (b->tally), WEFT_RW (b->bias)));
  if (s->mesh->mirror)
    weft_build_dep (s->b, mirrored);
}

void
weft_balance_free (struct weft_balance *b)
{
  if (!b)
    return;
  g_free (b->tally_of);
  g_free (b->bias_of);
  g_free (b->of_chunk);
  g_free (b);
}
