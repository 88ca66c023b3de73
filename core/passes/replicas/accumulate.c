/* The buffer into which a kernel writes the gradient of one microbatch, and how the gradients of
 * microbatches are added.
 *
 *   fused      The kernel adds the gradient into the flat gradient buffer.
 *   not fused  The kernel writes the gradient in the parameter's dtype, and a second kernel adds
 *              it to the flat gradient buffer (Megatron-Core tensor_parallel/layers.py,
 *              gradient_accumulation_fusion).
 *   canonical  (equal bits for all strategies) Gradients are added along the binary tree of
 *              core/base/fold.h, in the dtype of gradients. The gradient of each microbatch is a
 *              leaf. A node is added to its sibling as soon as both nodes are complete. The first
 *              leaf is in the flat buffer. Every other leaf is in a separate buffer, which is freed
 *              after the addition. */
#include "core/base/fold.h"
#include "core/passes/replicas/buckets.h"

struct node {
  /* first, n: range of leaves, which are microbatches, or pieces of one microbatch */
  uint32_t first, n;
  uint32_t buf;
};

void
weft_sum_start (struct weft_sum *sum, uint32_t main, uint64_t n, enum weft_lane lane)
{
  *sum = (struct weft_sum){ .main = main,
                            .n = n,
                            .lane = lane,
                            .sequence = WEFT_GROUP_CP,
                            .held = g_array_new (FALSE, FALSE, sizeof (struct node)) };
}

gboolean
weft_head_has_own_sum (const struct weft_step *s)
{
  return s->canonical && weft_step_shares_embedding (s) && weft_step_has_embedding (s) &&
         weft_step_has_head (s) && weft_job_trains (s->job, WEFT_FREEZE_HEAD);
}

/* For canonical order: sets how an expert's gradient is summed. An expert may receive tokens of a
 * part of a sequence, of a whole sequence, or of several replicas. Sets the group of ranks that
 * share sequences, and the number of slices of the gradient: one for each replica. If gradients are
 * reduced in every microbatch, all tokens of a microbatch form one node of the tree of
 * additions. */
static void
keep_sources (struct weft_step *s, struct weft_sum *sum)
{
  uint32_t replicas = weft_mesh_expert_sequences (s->mesh);

  sum->sequence = weft_gathers_expert_rows (s) ? WEFT_GROUP_NONE : WEFT_GROUP_ECP;
  if (replicas == 1)
    return;
  sum->sources = replicas;
  sum->total = sum->main;
  sum->each = s->sharding->shard_grads && (weft_job_reduces_each (s->job) || s->n_micro == 1);
  if (sum->each)
    return;
  sum->n *= sum->sources;
  sum->main = weft_step_buffer (s, WEFT_BUF_GRADIENTS, s->grad_dtype, sum->n, "by_source");
}

void
weft_sums_build (struct weft_step *s)
{
  s->replicas->sum = g_new0 (struct weft_sum, weft_params_count (s) + 1);
  for (uint32_t i = 0; i < weft_params_count (s); i++) {
    const struct weft_param *param = weft_param_at (s, i);
    weft_sum_start (&s->replicas->sum[i], param->grad, param->rows * param->columns, WEFT_LANE_GPU);
    s->replicas->sum[i].chunk = &s->chunk[param->chunk];
    if (s->canonical && weft_params_is_expert (s, i))
      keep_sources (s, &s->replicas->sum[i]);
  }
  if (!weft_head_has_own_sum (s))
    return;
  uint64_t n = s->replicas->sum[weft_params_of_end (s, WEFT_EMBED_WEIGHT)].n;
  if (s->sharding->shard_grads) /* the tied output layer has its own bucket */
    return;
  uint32_t main = weft_step_permanent (s, WEFT_BUF_GRADIENTS, s->grad_dtype, n, "head_gradients");
  weft_sum_start (weft_head_sum (s), main, n, WEFT_LANE_GPU);
  weft_head_sum (s)->chunk = weft_step_head (s);
}

/* Returns the buffer for the next leaf (gradient of one microbatch or piece). This is sum->main, or
 * a new buffer if sum->main contains a node of the tree that has not been added to its sibling
 * yet. */
uint32_t
weft_sum_leaf (struct weft_step *s, const struct weft_sum *sum)
{
  for (uint32_t i = 0; i < sum->held->len; i++)
    if (g_array_index (sum->held, struct node, i).buf == sum->main)
      return (sum->lane == WEFT_LANE_HOST ? weft_host_buffer : weft_step_buffer) (
          s, WEFT_BUF_GRADIENTS, s->grad_dtype, sum->n, "leaf");
  return sum->main;
}

void
weft_sum_place (struct weft_sum *sum, uint32_t total)
{
  if (sum->sources)
    sum->total = total;
  if (!sum->sources || sum->each)
    sum->main = total;
}

struct weft_use
weft_sum_sources (struct weft_step *s, const struct weft_sum *sum, struct weft_use to)
{
  if (!sum->sources)
    return to;
  return (struct weft_use) WEFT_W (
      weft_step_buffer (s, WEFT_BUF_GRADIENTS, s->grad_dtype, sum->n * sum->sources, "by_source"));
}

struct weft_use
weft_sum_begin (struct weft_step *s, struct weft_sum *sum)
{
  if (sum->each)
    return weft_sum_sources (s, sum, (struct weft_use){ 0 });
  if (s->canonical)
    return (struct weft_use) WEFT_W (weft_sum_leaf (s, sum));
  if (s->strategy->gradient_accumulation_fusion)
    return (struct weft_use) WEFT_RW (sum->main);
  return (struct weft_use) WEFT_W (
      weft_step_buffer (s, WEFT_BUF_WORKSPACE, s->dtype, sum->n, "grad"));
}

static void
emit_add (struct weft_step *s, const struct weft_sum *sum, uint32_t into, uint32_t from,
          enum weft_dtype dtype)
{
  struct weft_shape shape = WEFT_SHAPE (dtype, sum->n);
  struct weft_op row = { .kind = WEFT_OP_GRAD_ADD, .name = weft_build_name (s->b, "grad_add") };

  shape.out_dtype = s->grad_dtype;
  if (sum->lane == WEFT_LANE_GPU)
    weft_emit (s, row.kind, "grad_add", shape, WEFT_USES (WEFT_RW (into), WEFT_R (from)));
  else
    weft_emit_on (s, sum->lane, row, shape, WEFT_USES (WEFT_RW (into), WEFT_R (from)));
  if (sum->lane == WEFT_LANE_HOST)
    weft_host_wait_for_copies (s);
}

/* Returns the root node of the tree of additions. Its leaves are all pieces, or all microbatches of
 * the model chunk or of the step. */
static struct node
root_of (const struct weft_step *s, const struct weft_sum *sum)
{
  if (sum->pieces)
    return (struct node){ 0, sum->pieces, WEFT_NO_BUF };
  return sum->chunk ? (struct node){ sum->chunk->first_micro, sum->chunk->n_micro, WEFT_NO_BUF }
                    : (struct node){ 0, s->n_micro, WEFT_NO_BUF };
}

/* Returns the sibling of a node in the tree of additions. Sets *parent to the parent of the
 * node. */
static struct node
sibling_of (struct node node, struct node root, struct node *parent)
{
  struct node at = root;

  for (;;) {
    uint32_t left = weft_fold_split (at.n);
    struct node child[2] = { { at.first, left, WEFT_NO_BUF },
                             { at.first + left, at.n - left, WEFT_NO_BUF } };
    int side = node.first >= child[1].first;
    *parent = at;
    if (child[side].first == node.first && child[side].n == node.n)
      return child[!side];
    at = child[side];
  }
}

static gboolean
take_held (struct weft_sum *sum, struct node *wanted)
{
  for (uint32_t i = 0; i < sum->held->len; i++) {
    struct node *held = &g_array_index (sum->held, struct node, i);
    if (held->first == wanted->first && held->n == wanted->n) {
      *wanted = *held;
      g_array_remove_index_fast (sum->held, i);
      return TRUE;
    }
  }
  return FALSE;
}

/* Adds the slices of an expert's gradient, one for each replica whose tokens the expert received.
 * Slices are separate because sequences of different replicas are at different places of the tree
 * of additions. The slices are added in every microbatch if sum->each, otherwise after all
 * microbatches. */
static void
fold_sources (struct weft_step *s, const struct weft_sum *sum, uint32_t from, uint32_t to)
{
  weft_emit (s, WEFT_OP_MOE_FOLD, "fold_sources",
             WEFT_SHAPE (s->grad_dtype, sum->each ? sum->n : sum->n / sum->sources, sum->sources),
             WEFT_USES (WEFT_R (from), WEFT_W (to)));
}

void
weft_sum_join_sources (struct weft_step *s, const struct weft_sum *sum, struct weft_use grad,
                       uint32_t to)
{
  if (sum->sources)
    fold_sources (s, sum, grad.buf, to);
}

static void
add_leaf (struct weft_step *s, struct weft_sum *sum, struct node node)
{
  const struct node root = root_of (s, sum);

  while (node.n < root.n) {
    struct node parent, other = sibling_of (node, root, &parent);
    if (!take_held (sum, &other)) {
      g_array_append_val (sum->held, node);
      return;
    }
    gboolean stays = node.buf == sum->main || (other.buf != sum->main && node.first < other.first);
    parent.buf = stays ? node.buf : other.buf;
    emit_add (s, sum, parent.buf, stays ? other.buf : node.buf, s->grad_dtype);
    node = parent;
  }
  if (sum->sources && !sum->each)
    fold_sources (s, sum, sum->main, sum->total);
}

void
weft_sum_add (struct weft_step *s, struct weft_sum *sum, uint32_t leaf)
{
  if (s->canonical)
    add_leaf (s, sum, (struct node){ s->at.micro, 1, leaf });
  else
    emit_add (s, sum, sum->main, leaf, s->grad_dtype);
}

void
weft_sum_add_piece (struct weft_step *s, struct weft_sum *sum, uint32_t i, uint32_t leaf)
{
  add_leaf (s, sum, (struct node){ i, 1, leaf });
}

void
weft_sum_end (struct weft_step *s, struct weft_sum *sum, struct weft_use grad)
{
  if (s->canonical) {
    weft_context_sum (s, grad.buf, sum->sequence);
    uint32_t leaf = sum->each ? weft_sum_leaf (s, sum) : grad.buf;
    if (sum->each)
      weft_sum_join_sources (s, sum, grad, leaf);
    add_leaf (s, sum, (struct node){ s->at.micro, 1, leaf });
  } else if (grad.buf != sum->main)
    emit_add (s, sum, sum->main, grad.buf, s->dtype);
}

struct weft_sum *
weft_sum_new_pieces (struct weft_step *s, uint32_t main, uint32_t n_pieces)
{
  struct weft_sum *sum = g_new (struct weft_sum, 1);

  weft_sum_start (sum, main, weft_step_elements (s, main), WEFT_LANE_GPU);
  sum->pieces = n_pieces;
  return sum;
}

void
weft_sum_free (struct weft_sum *sum)
{
  g_array_unref (sum->held);
  g_free (sum);
}
