/* A layer of experts (MoE layer): the router, experts, shared experts.
 *
 * Selective recompute (Megatron-Core moe_layer.py, shared_experts.py, experts.py):
 *   moe             stores only n2. The whole MoE layer runs again before its backward, including
 *                   collectives and the last linear layers, although no kernel reads the outputs of
 *                   these linear layers. The reason: Megatron-Core checkpoints the layer as a whole
 *   shared_experts  shared experts run again before their backward
 *   moe_act         stores the output of fc1, and computes the activation again */
#include "core/passes/layer/moe.h"
#include "core/passes/layer/nodes.h"
#include "core/base/zigzag.h"
#include <math.h>

/* Returns the number of received rows with which costs are computed. This number depends on
 * moe_load_imbalance. Sets *room to the number of rows of buffers. On CPUs *room is the largest
 * possible number, because a rank may receive all tokens of all sources if no tokens are
 * dropped. */
static uint64_t
planned (const struct weft_step *s, const struct weft_moe *z, uint64_t sources, uint64_t *room)
{
  uint64_t most = z->tokens * sources * (uint64_t) weft_job_choices (s->job), n = z->sent;

  if (z->capacity)
    most = MIN (most, z->local * sources * z->capacity);
  n *= sources / s->mesh->ep;
  if (s->mesh->ep > 1)
    n = MIN (most, (uint64_t) ceil ((double) n * s->strategy->moe_load_imbalance));
  *room = s->mesh->ep > 1 && weft_cluster_is_cpu (&s->job->cluster) ? most : n;
  return n;
}

/* For canonical order: sets z->leaves, the number of leaves (partial sums of the tree,
 * kernels/leaves.h) in sums over this rank's tokens, and z->parts, the number of ranks that share
 * one leaf. */
static void
set_leaves (const struct weft_step *s, struct weft_moe *z)
{
  uint64_t length = s->model->seq_length / s->mesh->cp,
           all = s->tokens / length * (weft_chunks ((uint64_t) s->model->seq_length) / s->mesh->cp),
           ranks = s->tokens / s->rows;

  z->leaves = z->parts = 1;
  if (!s->canonical)
    return;
  z->leaves = MAX (1, all / ranks);
  z->parts = MAX (1, ranks / all);
}

struct weft_moe
weft_moe_sizes (const struct weft_step *s)
{
  const union weft_model *m = s->model;
  struct weft_moe z = { .experts = m->num_moe_experts,
                        .topk = m->moe_router_topk,
                        .tokens = s->rows,
                        .h = s->width.h,
                        .f = m->moe_ffn_hidden_size / s->mesh->etp };

  set_leaves (s, &z);
  z.up = weft_model_wide (m) * z.f;
  z.local = z.experts / s->mesh->ep;
  z.inner = s->mesh->etp;
  z.sources = s->mesh->ep * z.inner;
  z.sent = z.tokens * z.topk;
  if (s->strategy->moe_expert_capacity_factor > 0)
    z.capacity = MAX (1, ceil (z.sent * s->strategy->moe_expert_capacity_factor / z.experts));
  if (weft_moe_stride (s, &z)) {
    z.sent = z.got = z.got_room = z.experts * z.capacity;
    z.rows = z.room = z.sent * z.inner;
  } else {
    z.got = planned (s, &z, s->mesh->ep, &z.got_room);
    z.rows = planned (s, &z, z.sources, &z.room);
  }
  return z;
}

uint32_t
weft_moe_rows (struct weft_step *s, enum weft_dtype dtype, uint64_t columns, const char *name)
{
  return weft_step_buffer (s, WEFT_BUF_ACTIVATIONS, dtype, weft_moe_sizes (s).room * columns, name);
}

uint32_t
weft_moe_tokens (struct weft_step *s, uint64_t columns, const char *name)
{
  return weft_step_buffer (s, WEFT_BUF_ACTIVATIONS, s->product_dtype, s->rows * columns, name);
}

/* ------------------------------------------------------------------------- router */

/* Chooses experts for each token. Returns the router weights of the chosen experts. Sets
 * saved->scores and saved->choice. */
static uint32_t
route (struct weft_step *s, struct weft_saved *saved)
{
  struct weft_moe z = weft_moe_sizes (s);
  uint32_t logits = weft_linear (s, "router", WEFT_ROUTER_WEIGHT, saved->n2, z.experts, z.h);
  uint32_t prob = weft_moe_tokens (s, z.topk, "prob");

  saved->scores =
      weft_step_buffer (s, WEFT_BUF_ACTIVATIONS, WEFT_FP32, z.tokens * z.experts, "scores");
  saved->choice =
      weft_step_buffer (s, WEFT_BUF_ACTIVATIONS, WEFT_INT32, z.tokens * z.topk, "choice");
  weft_emit (s, WEFT_OP_MOE_ROUTE, "route",
             WEFT_SHAPE (s->product_dtype, z.tokens, z.experts, z.topk),
             WEFT_USES (WEFT_R (logits), WEFT_R (weft_balance_bias (s)), WEFT_W (saved->scores),
                        WEFT_W (saved->choice), WEFT_W (prob)));
  weft_balance_count (s, saved->choice);
  return prob;
}

/* Appends the router's backward. Returns the gradient of n2, the router's input. dprob is the
 * gradient of the router weights. */
static uint32_t
route_backward (struct weft_step *s, const struct weft_saved *saved, uint32_t dprob)
{
  struct weft_moe z = weft_moe_sizes (s);
  uint32_t dlogits = weft_moe_tokens (s, z.experts, "dlogits");

  weft_emit (
      s, WEFT_OP_MOE_ROUTE_BWD, "route", WEFT_SHAPE (s->product_dtype, z.tokens, z.experts, z.topk),
      WEFT_USES (WEFT_R (saved->scores), WEFT_R (saved->choice), WEFT_R (dprob), WEFT_W (dlogits)));
  return weft_linear_backward (s, "router", WEFT_ROUTER_WEIGHT, dlogits, saved->n2, z.experts, z.h);
}

/* ------------------------------------------------------------------ shared experts */

static uint64_t
shared_width (const struct weft_step *s)
{
  return s->width.shared;
}

static uint64_t
shared_up (const struct weft_step *s)
{
  return shared_width (s) * weft_model_wide (s->model);
}

/* Whether kernels of shared experts are issued right after an all-to-all, which they do not depend
 * on and therefore overlap (moe_shared_expert_overlap; Megatron-Core, moe/shared_experts.py). */
static gboolean
overlaps_shared (const struct weft_step *s)
{
  return s->strategy->moe_shared_expert_overlap && shared_width (s) > 0;
}

static void
shared_begin (struct weft_step *s, struct weft_saved *saved)
{
  saved->su =
      weft_linear (s, "shared_fc1", WEFT_SHARED_FC1_WEIGHT, saved->n2, shared_up (s), s->width.h);
  saved->sa = weft_activate (s, shared_width (s), saved->su);
}

static uint32_t
shared_end (struct weft_step *s, struct weft_saved *saved)
{
  uint32_t y = weft_linear (s, "shared_fc2", WEFT_SHARED_FC2_WEIGHT, saved->sa, s->width.h,
                            shared_width (s));
  return weft_moe_gate (s, saved, y);
}

static uint32_t
shared_forward (struct weft_step *s, struct weft_saved *saved)
{
  shared_begin (s, saved);
  return shared_end (s, saved);
}

static gboolean
runs_again (const struct weft_step *s, enum weft_recompute_module module)
{
  return weft_recomputes (s, module) && !weft_recomputes (s, WEFT_MODULE_MOE);
}

static uint32_t
shared_backward (struct weft_step *s, struct weft_saved *saved, uint32_t dy)
{
  if (runs_again (s, WEFT_MODULE_SHARED_EXPERTS)) {
    struct weft_op at = weft_step_again (s);
    shared_forward (s, saved);
    s->at = at;
  }
  uint32_t of_gate, dsy = weft_moe_gate_backward (s, saved, dy, &of_gate);
  uint32_t da = weft_linear_backward (s, "shared_fc2", WEFT_SHARED_FC2_WEIGHT, dsy, saved->sa,
                                      s->width.h, shared_width (s));
  uint32_t du = weft_activate_backward (s, shared_width (s), saved->su, da);
  uint32_t dn2 = weft_linear_backward (s, "shared_fc1", WEFT_SHARED_FC1_WEIGHT, du, saved->n2,
                                       shared_up (s), s->width.h);

  return of_gate == WEFT_NO_BUF ? dn2 : weft_moe_add (s, "dn2", dn2, of_gate);
}

/* ------------------------------------------------------------------------- the layer */

uint32_t
weft_moe_add (struct weft_step *s, const char *name, uint32_t a, uint32_t b)
{
  uint32_t y = weft_moe_tokens (s, s->width.h, name);

  weft_emit (s, WEFT_OP_ADD, name, WEFT_SHAPE (s->product_dtype, s->rows, s->width.h),
             WEFT_USES (WEFT_R (a), WEFT_R (b), WEFT_W (y)));
  return y;
}

/* ------------------------------------------------------------------------- forward */

static void
choose (struct weft_step *s, struct weft_layer_pass *pass)
{
  struct weft_saved *saved = pass->saved;
  uint32_t prob = route (s, saved);

  if (weft_moe_weighs_at_home (s))
    saved->prob = prob;
  weft_moe_sort (s, saved, prob);
  pass->rows = weft_rows_pack (s, saved, weft_rows_tokens (s, "dispatch"), saved->n2);
  pass->weights = weft_rows_pack (s, saved, weft_rows_weights (s, "dispatch_prob"), prob);
}

static void
normalise (struct weft_step *s, struct weft_layer_pass *pass)
{
  pass->saved->n2 = weft_norm (s, "norm2", WEFT_NORM2_WEIGHT, pass->saved->x1);
  choose (s, pass);
}

/* The flex dispatcher sends tokens and router weights in one kernel (DeepEP, fused_a2a.py of
 * Megatron-Core). Sets a flag in s->at that makes the next collective join the previous launch.
 * Returns the previous s->at, which the caller writes back to s->at. */
static struct weft_op
join (struct weft_step *s)
{
  struct weft_op at = s->at;

  if (s->strategy->moe_token_dispatcher_type == WEFT_DISPATCH_FLEX)
    s->at.flags |= WEFT_OP_GROUPED;
  return at;
}

static void
dispatch (struct weft_step *s, struct weft_layer_pass *pass)
{
  pass->rows = weft_rows_go (s, pass->saved, weft_rows_tokens (s, "dispatch"), pass->rows);
  struct weft_op at = join (s);
  pass->weights =
      weft_rows_go (s, pass->saved, weft_rows_weights (s, "dispatch_prob"), pass->weights);
  s->at = at;
  if (overlaps_shared (s))
    shared_begin (s, pass->saved);
}

static void
compute (struct weft_step *s, struct weft_layer_pass *pass)
{
  struct weft_saved *saved = pass->saved;

  saved->xp = weft_rows_arrive (s, saved, weft_rows_tokens (s, "dispatch"), pass->rows);
  saved->pp = weft_rows_arrive (s, saved, weft_rows_weights (s, "dispatch_prob"), pass->weights);
  uint32_t y = weft_experts_forward (s, saved);
  pass->rows = weft_rows_leave (s, saved, weft_rows_tokens (s, "combine"), y);
  pass->mlp =
      shared_width (s) && !overlaps_shared (s) ? shared_forward (s, saved) : WEFT_NO_BUF;
}

static void
combine (struct weft_step *s, struct weft_layer_pass *pass)
{
  pass->rows = weft_rows_return (s, pass->saved, weft_rows_tokens (s, "combine"), pass->rows);
  if (overlaps_shared (s))
    pass->mlp = shared_end (s, pass->saved);
}

static void
add_up (struct weft_step *s, struct weft_layer_pass *pass)
{
  uint32_t y = weft_rows_unpack (s, pass->saved, weft_rows_tokens (s, "combine"), pass->rows);

  pass->mlp = pass->mlp == WEFT_NO_BUF ? y : weft_moe_add (s, "shared", y, pass->mlp);
}

typedef void run_node (struct weft_step *s, struct weft_layer_pass *pass);

void
weft_moe_forward_node (struct weft_step *s, struct weft_layer_pass *pass, enum weft_layer_node node)
{
  static run_node *const nodes[] = {
    [WEFT_NODE_ATTENTION] = normalise, [WEFT_NODE_DISPATCH] = dispatch, [WEFT_NODE_MLP] = compute,
    [WEFT_NODE_COMBINE] = combine,     [WEFT_NODE_ADD] = add_up,
  };
  nodes[node](s, pass);
}

/* ------------------------------------------------------------------------ backward */

static void
normalise_again (struct weft_step *s, struct weft_saved *saved)
{
  if (weft_recomputes (s, WEFT_MODULE_LAYERNORM))
    saved->n2 = weft_norm_again (s, "norm2", WEFT_NORM2_WEIGHT, saved->x1);
}

static void
layer_again (struct weft_step *s, struct weft_saved *saved)
{
  static run_node *const nodes[] = { choose, dispatch, compute, combine, add_up };
  struct weft_layer_pass pass = { .saved = saved };

  normalise_again (s, saved);
  struct weft_op at = weft_step_again (s);
  for (unsigned i = 0; i < G_N_ELEMENTS (nodes); i++)
    nodes[i](s, &pass);
  s->at = at;
}

static void
shared_gradients (struct weft_step *s, struct weft_layer_pass *pass)
{
  if (!weft_recomputes (s, WEFT_MODULE_MOE))
    normalise_again (s, pass->saved);
  pass->mlp = shared_backward (s, pass->saved, pass->mlp);
}

static void
gradients_to_experts (struct weft_step *s, struct weft_layer_pass *pass)
{
  if (weft_recomputes (s, WEFT_MODULE_MOE))
    layer_again (s, pass->saved);
  const struct weft_routed move = weft_rows_tokens (s, "combine");
  uint32_t dropped = weft_drop_backward (s, WEFT_DROP_MLP, pass->x, pass->saved->mask_y);

  pass->mlp = weft_cast_to_compute (s, dropped, "dmoe");
  pass->rows =
      weft_rows_go (s, pass->saved, move, weft_rows_pack (s, pass->saved, move, pass->mlp));
  if (overlaps_shared (s))
    shared_gradients (s, pass);
}

static void
compute_gradients (struct weft_step *s, struct weft_layer_pass *pass)
{
  struct weft_saved *saved = pass->saved;
  uint32_t dy = weft_rows_arrive (s, saved, weft_rows_tokens (s, "combine"), pass->rows), dpp;
  uint32_t dxp = weft_experts_backward (s, saved, dy, &dpp);

  pass->rows = weft_rows_leave (s, saved, weft_rows_tokens (s, "dispatch"), dxp);
  if (!weft_moe_weighs_at_home (s))
    pass->weights = weft_rows_leave (s, saved, weft_rows_weights (s, "dispatch_prob"), dpp);
  if (shared_width (s) && !overlaps_shared (s))
    shared_gradients (s, pass);
}

static void
gradients_from_experts (struct weft_step *s, struct weft_layer_pass *pass)
{
  pass->rows = weft_rows_return (s, pass->saved, weft_rows_tokens (s, "dispatch"), pass->rows);
  if (weft_moe_weighs_at_home (s))
    return;
  struct weft_op at = join (s);
  pass->weights =
      weft_rows_return (s, pass->saved, weft_rows_weights (s, "dispatch_prob"), pass->weights);
  s->at = at;
}

static void
choose_backward (struct weft_step *s, struct weft_layer_pass *pass)
{
  struct weft_saved *saved = pass->saved;

  if (!shared_width (s) && !weft_recomputes (s, WEFT_MODULE_MOE))
    normalise_again (s, saved);
  if (weft_moe_weighs_at_home (s))
    pass->rows = weft_moe_weigh_at_home (s, saved, pass->rows, &pass->weights);
  uint32_t dn2 = weft_rows_unpack (s, saved, weft_rows_tokens (s, "dispatch"), pass->rows);
  uint32_t dprob =
      weft_rows_unpack (s, saved, weft_rows_weights (s, "dispatch_prob"), pass->weights);

  dn2 = weft_moe_add (s, "dn2", dn2, route_backward (s, saved, dprob));
  if (shared_width (s))
    dn2 = weft_moe_add (s, "dn2", dn2, pass->mlp);
  pass->x = weft_norm_backward (s, "norm2", WEFT_NORM2_WEIGHT, dn2, saved->x1, pass->x);
}

static void
nothing (struct weft_step *s, struct weft_layer_pass *pass)
{
  (void) s, (void) pass;
}

void
weft_moe_backward_node (struct weft_step *s, struct weft_layer_pass *pass,
                        enum weft_layer_node node)
{
  static run_node *const nodes[] = {
    [WEFT_NODE_ATTENTION] = choose_backward,
    [WEFT_NODE_DISPATCH] = gradients_from_experts,
    [WEFT_NODE_MLP] = compute_gradients,
    [WEFT_NODE_COMBINE] = gradients_to_experts,
    [WEFT_NODE_ADD] = nothing,
  };
  nodes[node](s, pass);
}
