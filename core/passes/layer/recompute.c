/* The layers of a model chunk for one microbatch, and full recompute.
 *
 * Full recompute stores only the input of a block of layers, and runs the forward of the block
 * again inside backward (Megatron-Core recompute_method). Method `uniform` cuts the chunk into
 * blocks of recompute_num_layers. Method `block` recomputes each of the first recompute_num_layers
 * layers separately, and stores the activations of all other layers. layer.c implements selective
 * recompute.
 *
 * num_microbatches_with_partial_activation_checkpoints = K: in each window of forward passes the
 * first K passes are not fully recomputed; recompute_modules, if given, applies to these passes.
 * The length of a window is the number of forward passes before the first backward (Megatron-Core
 * schedules.py, max_outstanding_backprops). If a rank has virtual stages, passes of all chunks
 * count.
 *
 * A layer of multi-token prediction (mtp.c) is a separate block in method `uniform`, and is not
 * recomputed in method `block` (Megatron-Core multi_token_prediction.py).
 *
 * With delay_wgrad_compute, the weight gradients of a layer run after all of its input gradients.
 * Weight gradients of the first layer of every stage but the first run while the gradient for the
 * previous stage is being sent (pipeline/exchange.c). */
#include "core/passes/layer/chunk.h"
#include "core/passes/layer/nodes.h"

/* Returns the number of forward passes of this rank before its first backward pass. */
static uint32_t
window (const weft_grid *grid, uint32_t rank)
{
  uint32_t n = 0;

  while (n < grid->n_cell[rank] && grid->cell[rank][n].phase == WEFT_PHASE_FORWARD)
    n++;
  return n;
}

void
weft_recompute_start (struct weft_step *s)
{
  int64_t first = s->strategy->num_microbatches_with_partial_activation_checkpoints;
  uint32_t width = window (s->grid, s->role), k = 0;

  s->layer->recompute = weft_job_recompute (s->job);
  s->layer->partial = g_new0 (gboolean, (size_t) s->n_chunks * s->n_micro);
  if (first == WEFT_NONE)
    return;
  for (uint32_t i = 0; i < s->grid->n_cell[s->role]; i++) {
    const struct weft_cell *cell = &s->grid->cell[s->role][i];
    if (cell->phase == WEFT_PHASE_FORWARD)
      s->layer->partial[cell->chunk * s->n_micro + cell->micro] = k++ % width < (uint64_t) first;
  }
}

static gboolean
is_partial (const struct weft_step *s)
{
  return s->layer->partial[s->at.chunk * s->n_micro + s->at.micro];
}

gboolean
weft_recomputes (const struct weft_step *s, enum weft_recompute_module module)
{
  gboolean whole = s->layer->recompute.granularity == WEFT_RECOMPUTE_FULL && !is_partial (s);
  return !whole && (s->layer->recompute.modules >> module & 1);
}

/* Returns the number of layers in the recomputed block that contains layer `l`, and sets *first to
 * the block's first layer. Returns 0 if the layer is not fully recomputed. */
static uint32_t
block_of (const struct weft_step *s, uint32_t l, uint32_t *first)
{
  uint32_t n = s->layer->recompute.layers == WEFT_NONE ? 1 : s->layer->recompute.layers;

  if (s->layer->recompute.granularity != WEFT_RECOMPUTE_FULL || is_partial (s))
    return 0;
  if (s->layer->recompute.method == WEFT_RECOMPUTE_BLOCK) {
    *first = l;
    return l < n ? 1 : 0;
  }
  *first = l / n * n;
  return MIN (n, weft_step_chunk (s)->n_layers - *first);
}

static struct weft_saved *
saved_at (struct weft_step *s, uint32_t micro, uint32_t l)
{
  return &s->layer->saved[(size_t) micro * s->n_layers + weft_step_chunk (s)->slot + l];
}

gboolean
weft_recomputes_mtp (const struct weft_step *s)
{
  return s->layer->recompute.granularity == WEFT_RECOMPUTE_FULL && !is_partial (s) &&
         s->layer->recompute.method != WEFT_RECOMPUTE_BLOCK;
}

/* Returns the number in the whole model of layer `l` of the model chunk. */
static uint32_t
layer_at (const struct weft_step *s, uint32_t l)
{
  return weft_step_chunk (s)->first_layer + l;
}

struct weft_layer_pass
weft_chunk_before_layer (struct weft_step *s, uint32_t micro, uint32_t l, uint32_t x)
{
  weft_before_layer (s, layer_at (s, l));
  return (
      struct weft_layer_pass){ .layer = layer_at (s, l), .saved = saved_at (s, micro, l), .x = x };
}

void
weft_chunk_after_layer (struct weft_step *s, uint32_t l)
{
  weft_after_layer (s, layer_at (s, l));
}

static uint32_t
layer_forward (struct weft_step *s, uint32_t micro, uint32_t l, uint32_t x)
{
  weft_before_layer (s, layer_at (s, l));
  x = weft_layer_forward (s, layer_at (s, l), x, saved_at (s, micro, l));
  weft_after_layer (s, layer_at (s, l));
  return x;
}

/* Converts activation x to dtype `to`. mp_policy_output_dtype sets the dtype of activations between
 * layers and of their gradients. Activations inside layers may have another dtype. */
static uint32_t
cast (struct weft_step *s, uint32_t l, uint32_t x, enum weft_dtype to)
{
  struct weft_shape shape =
      WEFT_SHAPE (weft_build_buf_at (s->b, x)->dtype, weft_step_elements (s, x));

  if (shape.dtype == to)
    return x;
  s->at.layer = layer_at (s, l);
  shape.out_dtype = to;
  uint32_t y = weft_step_buffer (s, WEFT_BUF_ACTIVATIONS, to, shape.dim[0], "cast");
  weft_emit (s, WEFT_OP_CAST, "layer_cast", shape, WEFT_USES (WEFT_R (x), WEFT_W (y)));
  return y;
}

uint32_t
weft_chunk_forward (struct weft_step *s, uint32_t micro, uint32_t x)
{
  uint32_t n = weft_step_chunk (s)->n_layers;

  for (uint32_t l = 0; l < n; l++) {
    weft_offload_before_forward (s, micro, l);
    x = cast (s, l, x, s->dtype);
    x = layer_forward (s, micro, l, x);
    x = cast (s, l, x, s->output_dtype);
    weft_offload_after_forward (s, micro, l);
  }
  return n ? cast (s, n - 1, x, s->dtype) : x;
}

static void
forward_again (struct weft_step *s, uint32_t micro, uint32_t first, uint32_t n)
{
  uint32_t x = saved_at (s, micro, first)->x;
  struct weft_op at = weft_step_again (s);

  for (uint32_t l = first; l < first + n; l++)
    x = layer_forward (s, micro, l, x);
  s->at = at;
}

uint32_t
weft_chunk_backward (struct weft_step *s, uint32_t micro, uint32_t dy)
{
  if (weft_overlaps_experts (s))
    return weft_expert_overlap_backward (s, dy);
  for (uint32_t l = weft_step_chunk (s)->n_layers; l-- > 0 && dy != WEFT_NO_BUF;) {
    uint32_t first = l, n = block_of (s, l, &first);
    weft_offload_before_backward (s, micro, l);
    s->backward_layer = layer_at (s, l);
    weft_before_layer (s, layer_at (s, l));
    dy = cast (s, l, cast (s, l, dy, s->output_dtype), s->dtype);
    if (n && l == first + n - 1)
      forward_again (s, micro, first, n);
    dy = weft_layer_backward (s, layer_at (s, l), saved_at (s, micro, l), dy);
    if ((l > 0 || weft_step_chunk (s)->embedding) && !weft_step_is_split (s))
      weft_layer_run_delayed_wgrads (s);
    weft_after_layer (s, layer_at (s, l));
  }
  weft_offload_after_backward (s, micro);
  return dy;
}
