/* With overlap_moe_expert_parallel_comm, the forward of one microbatch and the backward of another
 * microbatch run together, layer by layer. The all-to-alls of one microbatch then overlap kernels
 * of the other (Megatron-Core combined_1f1b.py, model_chunk_schedule_plan.py). Layer j of the
 * forward is paired with layer n - 1 - j of the backward. If one model chunk has more layers, its
 * other layers run unpaired, those of backward first.
 *
 * The nodes (groups of ops, nodes.h) of a pair run in the following order. b: backward, f: forward,
 * *: on the lane of expert all-to-alls, W: weight gradients that delay_wgrad_compute delays:
 *
 *   combine b*  attention f  mlp b  dispatch f*  W of mlp b  dispatch b*  mlp f  combine f*
 *               attention b
 *   then combine of the next b*, W of attention b, add f
 *
 * Kernels that pack and unpack rows run on lane gpu. (Megatron-Core runs those of combine on the
 * stream of the all-to-all.) The gradients of the next layer are packed before W, so that
 * these gradients are sent as early as in Megatron-Core.
 *
 * After the last layers follow the pipeline transfers of the forward, those of the backward, W of
 * the chunk's first layer, the output layer of the forward, and the embedding of the backward. */
#include "core/passes/layer/cells.h"
#include "core/passes/layer/nodes.h"
#include "core/passes/pipeline/exchange.h"

/* State of one forward or backward pass of a microbatch through a model chunk. */
struct strand {
  struct weft_op at;
  struct weft_layer_pass pass;
  /* n: layers of the model chunk; l: index of the current layer (in forward: of the next layer) */
  uint32_t n, l;
};

static void
follow (struct weft_step *s, const struct strand *strand)
{
  s->at = strand->at;
}

static struct strand
strand_of (const struct weft_step *s, uint32_t x)
{
  return (struct strand){ .at = s->at, .n = weft_step_chunk (s)->n_layers, .pass = { .x = x } };
}

static void
forward (struct weft_step *s, struct strand *f, enum weft_layer_node node)
{
  if (!f)
    return;
  follow (s, f);
  if (node == WEFT_NODE_ATTENTION)
    f->pass = weft_chunk_before_layer (s, f->at.micro, f->l, f->pass.x);
  weft_layer_forward_node (s, &f->pass, node);
  if (node == WEFT_NODE_ADD)
    weft_chunk_after_layer (s, f->l++);
}

static void
backward (struct weft_step *s, struct strand *b, enum weft_layer_node node)
{
  if (!b)
    return;
  follow (s, b);
  weft_layer_backward_node (s, &b->pass, node);
}

/* Begins the backward of the next layer in backward order (layer l - 1), which first sends output
 * gradients to the experts. Does nothing after the first layer of the model chunk. */
static void
begin_backward (struct weft_step *s, struct strand *b)
{
  if (!b || b->l == 0)
    return;
  follow (s, b);
  b->pass = weft_chunk_before_layer (s, b->at.micro, --b->l, b->pass.x);
  s->backward_layer = b->pass.layer;
  backward (s, b, WEFT_NODE_COMBINE);
}

static void
run_delayed (struct weft_step *s, const struct strand *b)
{
  if (!b)
    return;
  follow (s, b);
  weft_layer_run_delayed_wgrads (s);
}

static void
run_layers (struct weft_step *s, struct strand *f, struct strand *b, gboolean keeps_first)
{
  uint32_t l = b ? b->l : 0;

  forward (s, f, WEFT_NODE_ATTENTION);
  backward (s, b, WEFT_NODE_MLP);
  forward (s, f, WEFT_NODE_DISPATCH);
  run_delayed (s, b);
  backward (s, b, WEFT_NODE_DISPATCH);
  forward (s, f, WEFT_NODE_MLP);
  forward (s, f, WEFT_NODE_COMBINE);
  backward (s, b, WEFT_NODE_ATTENTION);
  if (b)
    weft_chunk_after_layer (s, l);
  begin_backward (s, b);
  if (l > 0 || !keeps_first)
    run_delayed (s, b);
  forward (s, f, WEFT_NODE_ADD);
}

static void
go_through (struct weft_step *s, struct strand *f, struct strand *b)
{
  uint32_t n = MIN (f->n, b->n), left = b->n;

  b->l = b->n;
  begin_backward (s, b);
  for (uint32_t i = 0; i < n; i++, left--)
    run_layers (s, f, b, TRUE);
  for (; left > 0; left--)
    run_layers (s, NULL, b, TRUE);
  for (uint32_t i = n; i < f->n; i++)
    run_layers (s, f, NULL, TRUE);
}

uint32_t
weft_expert_overlap_backward (struct weft_step *s, uint32_t dy)
{
  struct strand b = strand_of (s, dy);
  gboolean sends = !weft_step_chunk (s)->embedding;

  b.l = b.n;
  begin_backward (s, &b);
  for (uint32_t left = b.n; left > 0; left--)
    run_layers (s, NULL, &b, sends);
  follow (s, &b);
  return b.pass.x;
}

static void
end (struct weft_step *s, const struct strand *strand, const struct weft_cell *cell)
{
  follow (s, strand);
  weft_cell_end (s, cell, strand->pass.x);
}

void
weft_expert_overlap_pair (struct weft_step *s, uint32_t i)
{
  const struct weft_cell *cell = &s->grid->cell[s->role][i];

  weft_cell_begin (s, &cell[0]);
  weft_timer_start (s, 2, "forward-backward-compute");
  struct strand f = strand_of (s, weft_cell_take (s, &cell[0]));
  weft_cell_begin (s, &cell[1]);
  struct strand b = strand_of (s, weft_cell_take (s, &cell[1]));
  go_through (s, &f, &b);
  weft_exchange_hand_over (s, &cell[0], f.pass.x);
  weft_exchange_hand_over (s, &cell[1], b.pass.x);
  follow (s, &f);
  weft_cells_exchange (s, i + 1);
  follow (s, &b);
  weft_aligned_after (s, weft_layer_run_delayed_wgrads);
  weft_cells_exchange (s, i + 2);
  end (s, &f, &cell[0]);
  end (s, &b, &cell[1]);
  weft_timer_stop (s, 2, "forward-backward-compute");
}
