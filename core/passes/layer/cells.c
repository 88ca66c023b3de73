/* Appends one cell of the pipeline schedule: a forward pass, a backward pass, or one half of a
 * split backward pass, of one model chunk and microbatch. */
#include "core/passes/layer/cells.h"
#include "core/passes/layer/chunk.h"
#include "core/passes/layer/ends.h"
#include "core/passes/layer/fp8_products.h"
#include "core/passes/layer/moe.h"
#include "core/passes/layer/nodes.h"
#include "core/passes/pipeline/exchange.h"

void
weft_cell_begin (struct weft_step *s, const struct weft_cell *cell)
{
  gboolean whole = cell->phase == WEFT_PHASE_BACKWARD;

  s->at = (struct weft_op){
    .layer = WEFT_NO_LAYER, .micro = cell->micro, .chunk = cell->chunk, .phase = cell->phase
  };
  struct weft_chunk *chunk = weft_step_chunk (s);
  s->cell = cell->phase;
  s->last_micro = whole && ++chunk->n_backward == chunk->n_micro;
  weft_replicas_begin_cell (s);
  if (cell->phase == WEFT_PHASE_FORWARD)
    weft_aligned_before (s);
}

uint32_t
weft_cell_take (struct weft_step *s, const struct weft_cell *cell)
{
  const struct weft_chunk *chunk = weft_step_chunk (s);

  if (cell->phase == WEFT_PHASE_FORWARD)
    return chunk->embedding ? weft_embed_forward (s, cell->micro) : weft_exchange_take (s, cell);
  uint32_t output = weft_exchange_output (s, cell);
  uint32_t dy = chunk->head ? weft_head_backward (s, cell->micro) : weft_exchange_take (s, cell);
  /* Autograd keeps the output of a pipeline stage in memory until the stage's backward begins. */
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
  } else if (chunk->embedding && x != WEFT_NO_BUF)
    weft_embed_backward (s, cell->micro, x);
}

void
weft_cells_exchange (struct weft_step *s, uint32_t i)
{
  weft_exchange (s, i, weft_layer_run_delayed_wgrads);
}

static void
layers_cell (struct weft_step *s, const struct weft_cell *cell)
{
  gboolean forward = cell->phase == WEFT_PHASE_FORWARD;
  uint32_t x = weft_cell_take (s, cell);

  x = (forward ? weft_chunk_forward : weft_chunk_backward) (s, cell->micro, x);
  weft_exchange_hand_over (s, cell, x);
  weft_cell_end (s, cell, x);
}

static void
weight_grad_cell (struct weft_step *s, const struct weft_cell *cell)
{
  if (weft_step_chunk (s)->head)
    weft_head_delayed_wgrad (s, cell->micro);
  weft_layer_run_delayed_wgrads (s);
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
  weft_replicas_end_cell (s);
  if (cell->phase != WEFT_PHASE_FORWARD)
    weft_aligned_after (s, weft_layer_run_delayed_wgrads);
}

/* Copies the tokens of the next forward pass after cell `i` to the device, so that the copy
 * overlaps kernels of the passes before it. */
static void
load_ahead (struct weft_step *s, uint32_t i)
{
  const struct weft_cell *cell = s->grid->cell[s->role];

  for (i++; i < s->grid->n_cell[s->role]; i++)
    if (cell[i].phase == WEFT_PHASE_FORWARD) {
      weft_ends_load (s, &cell[i]);
      return;
    }
}

void
weft_cells_begin (struct weft_step *s)
{
  weft_ends_load (s, &s->grid->cell[s->role][0]);
  weft_cells_exchange (s, 0);
}

uint32_t
weft_cells_play (struct weft_step *s, uint32_t i)
{
  const struct weft_cell *cell = &s->grid->cell[s->role][i];

  if (cell->phase == WEFT_PHASE_FORWARD)
    load_ahead (s, i);
  if (cell->paired && weft_overlaps_experts (s)) {
    weft_expert_overlap_pair (s, i);
    return 2;
  }
  play_cell (s, cell);
  weft_cells_exchange (s, i + 1);
  return 1;
}

void
weft_cells_end (struct weft_step *s)
{
  weft_head_run_deferred_wgrads (s);
}

/* ------------------------------------------------------------------------- the part */

void
weft_layer_begin (struct weft_step *s)
{
  struct weft_layer *layer = s->layer = g_new0 (struct weft_layer, 1);

  layer->saved = g_new0 (struct weft_saved, (size_t) s->n_micro * s->n_layers);
  layer->adapted = g_new (uint32_t, (size_t) s->n_micro * s->n_layers * WEFT_N_LORA);
  layer->saved_end = g_new0 (struct weft_saved_end, s->n_micro);
  layer->saved_mtp = g_new0 (struct weft_saved_mtp, s->n_micro * s->model->mtp_num_layers);
  layer->cast_cache = WEFT_NO_BUF;
  layer->deferred = g_array_new (FALSE, FALSE, sizeof (uint32_t));
  layer->delayed = g_array_new (FALSE, FALSE, sizeof (struct weft_delayed));
  weft_offload_start (s);
  weft_recompute_start (s);
}

void
weft_layer_build (struct weft_step *s)
{
  uint32_t n = weft_params_count (s);

  s->layer->cast_view = g_new (uint32_t, n);
  for (uint32_t i = 0; i < n; i++)
    s->layer->cast_view[i] = WEFT_NO_BUF;
  weft_fp8_start (s);
}

void
weft_layer_end (struct weft_step *s)
{
  struct weft_layer *layer = s->layer;

  weft_fp8_free (layer->fp8);
  weft_balance_free (layer->balance);
  weft_offload_end (s);
  g_array_unref (layer->deferred);
  g_array_unref (layer->delayed);
  g_free (layer->partial);
  g_free (layer->cast_view);
  g_free (layer->saved);
  g_free (layer->adapted);
  g_free (layer->saved_end);
  g_free (layer->saved_mtp);
  g_free (layer);
}
