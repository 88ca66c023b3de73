/* With precision = fp8, the linear layers inside transformer layers compute in fp8. fp8_recipe
 * names a recipe of NVIDIA Transformer Engine, which Megatron-Core also uses.
 *
 * A tensor in fp8 is a buffer of codes (fp8 values) and a buffer of scales. The recipe determines
 * from which magnitudes a scale is computed:
 *
 *   delayed     From the largest magnitude in the previous step. Kernels collect the largest
 *               magnitude of the current step. Before the update of weights, its maximum over all
 *               ranks replaces the old value, unless all elements were zero, for example because an
 *               expert received no tokens. In the first step all scales are 1.
 *   tensorwise  From the largest magnitude, which a separate kernel computes. For a weight this
 *               kernel runs once in each step.
 *   blockwise   A power of two, stored as a float, for each 128 elements of a row. Weights have a
 *               scale for each block of 128 x 128 elements.
 *   mxfp8       A power of two, stored in one byte, for each 32 elements of a row.
 *
 * Tensor cores require that both operands are contiguous in memory along the summed dimension.
 * Input gradients therefore read transposed weights, and weight gradients read both operands
 * transposed:
 *
 *   one scale   A kernel transposes the codes before the first read of the transposed tensor.
 *   blocks      The transposed copy has separate blocks and scales. The kernel that quantises the
 *               tensor also writes the transposed copy, if a later kernel reads the copy.
 *
 * Each expert has separate scales, as if each expert were a linear layer (GroupedLinear of
 * Transformer Engine, module/grouped_linear.py: a quantizer for input, weight and gradient of each
 * matrix product). Kernels of experts can read codes in both orientations. Nothing is transposed
 * for these kernels; with block scales a second copy is quantised, whose blocks run down the rows
 * of an expert. In canonical order the rows of every replica have separate scales, as on a single
 * rank.
 *
 *   inputs      Forward stores the codes for the weight gradient. The unquantised input is freed,
 *               unless another kernel reads it later. With cpu_offloading, unquantised inputs are
 *               offloaded, and quantised again in backward. Sequence parallel ranks all-gather
 *               codes. With block scales they all-gather the input and quantise afterwards.
 *   gradients   Gradients of outputs are e5m2 if fp8_format is hybrid. All other tensors are e4m3.
 *   other       The router and the gates of shared experts compute in bf16, as in Megatron-Core. */
#include "core/passes/layer/fp8_products.h"
#include "core/base/invariant.h"

/* Number of elements that share one scale: in blockwise fp8 (Float8BlockScaling of Transformer
 * Engine), and in MXFP8 (OCP Microscaling Formats 1.0). */
#define BLOCK 128
#define MX_BLOCK 32

/* A tensor in fp8. The hash table `copies` maps the buffer of fp8 values to this struct. */
struct copy {
  /* transposed: buffer of the transposed values; WEFT_NO_BUF until a kernel needs them */
  uint32_t scale, transposed, transposed_scale;
  uint64_t rows, columns;
  /* for recipes with block scales: the op that quantised the tensor; for other recipes:
   * WEFT_NO_OP */
  uint32_t op;
};

struct weft_fp8_products {
  GHashTable *copies; /* key: buffer of fp8 values; value: struct copy */
  /* key: buffer of a linear layer's input; value: buffer of the input's fp8 values */
  GHashTable *kept;
  /* for the delayed recipe: arrays with the largest magnitudes of all tensors in the previous step
   * (history) and in the current step (seen) */
  uint32_t history, seen;
  /* place[parameter]: index of the parameter's first entry in the arrays history and seen. A
   * parameter has tensors_of() entries for its input, as many for its weight, and as many for its
   * gradient */
  uint32_t *place;
  /* for the tensorwise recipe, by weight: largest magnitude, or WEFT_NO_BUF until it has been
   * computed */
  uint32_t *magnitude;
};

uint64_t
weft_fp8_block (const struct weft_step *s)
{
  return s->strategy->fp8_recipe == WEFT_FP8_BLOCKWISE ? BLOCK
         : s->strategy->fp8_recipe == WEFT_FP8_MX      ? MX_BLOCK
                                                       : 0;
}

gboolean
weft_fp8_takes (const struct weft_step *s, uint32_t param)
{
  const struct weft_param *row = weft_param_at (s, param);

  if (s->linear_dtype != WEFT_FP8 || row->layer == WEFT_NO_LAYER || row->columns == 1)
    return FALSE;
  return weft_params_of_layer (s, row->layer, WEFT_ROUTER_WEIGHT) != param &&
         weft_params_of_layer (s, row->layer, WEFT_SHARED_GATE_WEIGHT) != param;
}

/* --------------------------------------------------------------------- magnitudes */

/* Returns how many tensors of the whole job a parameter number stands for. For an expert weight
 * this is the number of all experts, because every rank stores the largest magnitudes of all
 * experts. */
static uint64_t
tensors_of (const struct weft_step *s, uint32_t param)
{
  return weft_params_is_expert (s, param) ? (uint64_t) s->model->num_moe_experts : 1;
}

/* Names the largest magnitudes of a linear layer, so that checkpoints can store them
 * (train/state.c). */
static void
name_history (struct weft_step *s, uint32_t param)
{
  const char *name = weft_build_name_at (s->b, weft_param_at (s, param)->name);
  const char *dot = strrchr (name, '.');
  g_autofree char *map = g_strndup (name, (gsize) (dot - name));
  g_autofree char *own = g_strconcat (map, WEFT_AMAX_SUFFIX, NULL);
  uint32_t view = weft_build_view (s->b, s->layer->fp8->history, 4ull * s->layer->fp8->place[param],
                                   4 * WEFT_N_FP8_ROLE * tensors_of (s, param), own);

  weft_build_buf_at (s->b, view)->layer = weft_param_at (s, param)->layer;
}

/* Assigns indices in the array of largest magnitudes to all tensors of a model chunk, from index
 * `taken` on. Returns the next free index. */
static uint32_t
place_chunk (struct weft_step *s, uint32_t chunk, uint32_t taken)
{
  for (uint32_t i = 0; i < weft_params_count (s); i++) {
    if (weft_param_at (s, i)->chunk != chunk)
      continue;
    s->layer->fp8->magnitude[i] = WEFT_NO_BUF;
    s->layer->fp8->place[i] = taken;
    if (weft_fp8_takes (s, i))
      taken += (uint32_t) (WEFT_N_FP8_ROLE * tensors_of (s, i));
  }
  return taken;
}

/* Assigns indices in the array of largest magnitudes to all model chunks. The order is that of
 * pipeline stages. With DualPipe a stage is chunk 0 of one rank and chunk 1 of another rank, and
 * the two ranks all-reduce their arrays element by element. Equal elements must therefore belong to
 * equal stages. */
static uint32_t
place_magnitudes (struct weft_step *s)
{
  uint32_t taken = 0;

  for (uint32_t stage = 0; stage < s->grid->n_stages; stage++)
    for (uint32_t q = 0; q < s->n_chunks; q++)
      if (s->chunk[q].stage == stage)
        taken = place_chunk (s, q, taken);
  return taken;
}

void
weft_fp8_start (struct weft_step *s)
{
  uint32_t n = weft_params_count (s);

  if (s->linear_dtype != WEFT_FP8)
    return;
  s->layer->fp8 = g_new0 (struct weft_fp8_products, 1);
  s->layer->fp8->copies = g_hash_table_new_full (NULL, NULL, NULL, g_free);
  s->layer->fp8->kept = g_hash_table_new (NULL, NULL);
  s->layer->fp8->place = g_new (uint32_t, n);
  s->layer->fp8->magnitude = g_new (uint32_t, n);
  s->layer->fp8->history = s->layer->fp8->seen = WEFT_NO_BUF;
  uint32_t taken = place_magnitudes (s);
  if (s->strategy->fp8_recipe != WEFT_FP8_DELAYED || taken == 0)
    return;
  s->layer->fp8->history =
      weft_step_permanent (s, WEFT_BUF_WORKSPACE, WEFT_FP32, taken, "amax_history");
  s->layer->fp8->seen = weft_step_permanent (s, WEFT_BUF_WORKSPACE, WEFT_FP32, taken, "amax_seen");
  for (uint32_t i = 0; i < n; i++)
    if (weft_fp8_takes (s, i))
      name_history (s, i);
}

void
weft_fp8_free (struct weft_fp8_products *fp8)
{
  if (!fp8)
    return;
  g_hash_table_unref (fp8->copies);
  g_hash_table_unref (fp8->kept);
  g_free (fp8->place);
  g_free (fp8->magnitude);
  g_free (fp8);
}

void
weft_fp8_begin_step (struct weft_step *s)
{
  if (s->layer->fp8 && s->layer->fp8->seen != WEFT_NO_BUF)
    weft_emit (s, WEFT_OP_ZERO, "zero_amax",
               WEFT_SHAPE (WEFT_FP32, weft_step_elements (s, s->layer->fp8->seen)),
               WEFT_USES (WEFT_W (s->layer->fp8->seen)));
}

/* Delayed scaling: all-reduces amax (the largest magnitudes) over tensor parallel ranks and
 * replicas, and with DualPipe over the two copies of each stage. The next step computes its fp8
 * scales from the result. */
void
weft_fp8_reduce_magnitudes (struct weft_step *s)
{
  static const enum weft_group_kind groups[] = { WEFT_GROUP_TP, WEFT_GROUP_DP, WEFT_GROUP_MIRROR };
  uint32_t kernel = weft_build_last (s->b, WEFT_LANE_GPU);

  if (!s->layer->fp8 || s->layer->fp8->seen == WEFT_NO_BUF)
    return;
  for (size_t i = 0; i < G_N_ELEMENTS (groups); i++)
    if (weft_reduce_all (s, groups[i], WEFT_REDUCE_MAX, s->layer->fp8->seen, "amax") != WEFT_NO_OP)
      weft_build_dep (s->b, kernel);
  weft_emit (s, WEFT_OP_AMAX_UPDATE, "amax",
             WEFT_SHAPE (WEFT_FP32, weft_step_elements (s, s->layer->fp8->seen)),
             WEFT_USES (WEFT_R (s->layer->fp8->seen), WEFT_RW (s->layer->fp8->history)));
}

/* Returns the parameter under which the history of an operand's largest magnitude is stored. If
 * attention and MLP share one norm, qkv and fc1 have one common input. Some strategies quantise
 * this input once, others twice. Both linear layers therefore use one history, so that the contents
 * of checkpoints do not depend on the strategy. */
static uint32_t
history_of (const struct weft_step *s, const struct weft_fp8_source *x)
{
  uint32_t layer = weft_param_at (s, x->param)->layer;

  if (s->model->residual != WEFT_RESIDUAL_ONE_NORM || x->role != WEFT_FP8_INPUT ||
      layer == WEFT_NO_LAYER || x->param != weft_params_of_layer (s, layer, WEFT_FC1_WEIGHT))
    return x->param;
  uint32_t qkv = weft_params_of_layer (s, layer, WEFT_QKV_WEIGHT);
  return weft_fp8_takes (s, qkv) ? qkv : x->param;
}

/* Returns a view of one tensor's entries in `all`, a buffer with the largest magnitudes of all
 * tensors. For an expert weight, each rank uses only the entries of its own experts. */
static uint32_t
place_in (struct weft_step *s, uint32_t all, const struct weft_fp8_source *x)
{
  uint64_t n = tensors_of (s, x->param);
  uint32_t first = s->layer->fp8->place[history_of (s, x)];
  uint32_t view = weft_build_view (s->b, all, 4 * (first + n * x->role), 4 * n, "amax");

  if (x->groups.experts)
    weft_build_buf_at (s->b, view)->shard = WEFT_GROUP_EP;
  return view;
}

/* All-reduces the largest magnitude over the ranks that have parts of one tensor. Ranks need a
 * common scale if their fp8 values are gathered into one tensor. Canonical order always needs a
 * common scale, because its scales must equal those of a run on one rank. */
static void
share (struct weft_step *s, const struct weft_fp8_source *x, uint32_t largest)
{
  gboolean part = x->role != WEFT_FP8_WEIGHT;

  if (x->groups.experts) {
    if (s->canonical)
      weft_reduce_all (s, WEFT_GROUP_ETP, WEFT_REDUCE_MAX, largest, "amax");
    if (s->canonical && part)
      weft_reduce_all (s, WEFT_GROUP_ECP, WEFT_REDUCE_MAX, largest, "amax");
    return;
  }
  if (s->canonical || (part && weft_tensor_scatters (s)))
    weft_tensor_all_reduce (s, largest, WEFT_REDUCE_MAX, "amax");
  if (s->canonical && part)
    weft_reduce_all (s, WEFT_GROUP_CP, WEFT_REDUCE_MAX, largest, "amax");
}

/* Returns the number of groups of expert rows that have separate scales. With delayed scaling, all
 * rows of one expert are one group. In other recipes an expert has x->groups.each groups. */
static uint64_t
n_groups (const struct weft_step *s, const struct weft_fp8_source *x)
{
  gboolean delayed = s->strategy->fp8_recipe == WEFT_FP8_DELAYED;

  return x->groups.experts * (delayed ? 1 : x->groups.each);
}

static struct weft_shape
groups_shape (const struct weft_step *s, const struct weft_fp8_source *x)
{
  return WEFT_SHAPE (weft_build_buf_at (s->b, x->buf)->dtype, x->groups.rows, x->columns,
                     n_groups (s, x), x->groups.stride);
}

/* Returns the largest magnitude of a tensor, which a separate kernel computes. */
static uint32_t
measure (struct weft_step *s, const struct weft_fp8_source *x)
{
  uint32_t *known = x->role == WEFT_FP8_WEIGHT ? &s->layer->fp8->magnitude[x->param] : NULL;

  if (known && *known != WEFT_NO_BUF)
    return *known;
  uint64_t n = x->groups.experts ? n_groups (s, x) : 1;
  uint32_t largest = weft_step_buffer (s, WEFT_BUF_WORKSPACE, WEFT_FP32, n, "amax");
  if (x->groups.experts) {
    weft_emit (s, WEFT_OP_MOE_AMAX, "amax", groups_shape (s, x),
               WEFT_USES (WEFT_R (x->buf), WEFT_R (x->groups.counts), WEFT_W (largest)));
  } else {
    weft_emit (s, WEFT_OP_ZERO, "amax", WEFT_SHAPE (WEFT_FP32, 1), WEFT_USES (WEFT_W (largest)));
    weft_emit (s, WEFT_OP_AMAX, "amax",
               WEFT_SHAPE (weft_build_buf_at (s->b, x->buf)->dtype, weft_step_elements (s, x->buf)),
               WEFT_USES (WEFT_R (x->buf), WEFT_RW (largest)));
  }
  share (s, x, largest);
  if (known)
    *known = largest;
  return largest;
}

/* -------------------------------------------------------------------------- copies */

static enum weft_dtype
format_of (const struct weft_step *s, enum weft_fp8_role role)
{
  return role == WEFT_FP8_GRADIENT && s->strategy->fp8_format == WEFT_FP8_HYBRID ? WEFT_E5M2
                                                                                 : WEFT_FP8;
}

static gboolean
is_codes (const struct weft_step *s, uint32_t buf)
{
  enum weft_dtype dtype = weft_build_buf_at (s->b, buf)->dtype;
  return dtype == WEFT_FP8 || dtype == WEFT_E5M2;
}

static struct copy *
note (struct weft_step *s, uint32_t codes, uint32_t scale, uint64_t rows, uint64_t columns)
{
  struct copy *copy = g_new (struct copy, 1);

  *copy = (struct copy){ .scale = scale,
                         .transposed = WEFT_NO_BUF,
                         .transposed_scale = scale,
                         .rows = rows,
                         .columns = columns,
                         .op = WEFT_NO_OP };
  g_hash_table_insert (s->layer->fp8->copies, GUINT_TO_POINTER (codes), copy);
  return copy;
}

static struct copy *
copy_of (const struct weft_step *s, uint32_t codes)
{
  struct copy *copy = g_hash_table_lookup (s->layer->fp8->copies, GUINT_TO_POINTER (codes));

  WEFT_INVARIANT (copy);
  return copy;
}

/* In the memory plan, fp8 values of weights count as weights, and all others as activations. */
static enum weft_buf_kind
kind_of (const struct weft_fp8_source *x)
{
  return x->role == WEFT_FP8_WEIGHT ? WEFT_BUF_WEIGHTS : WEFT_BUF_ACTIVATIONS;
}

/* Returns a buffer for fp8 values. */
static uint32_t
room (struct weft_step *s, const struct weft_fp8_source *x)
{
  return weft_step_buffer (s, kind_of (x), format_of (s, x->role), weft_step_elements (s, x->buf),
                           x->name);
}

static gboolean
has_squares (const struct weft_step *s, const struct weft_fp8_source *x)
{
  return x->role == WEFT_FP8_WEIGHT && weft_fp8_block (s) == BLOCK;
}

static uint32_t
room_of (struct weft_step *s, const struct weft_fp8_source *x, uint64_t scales)
{
  enum weft_dtype dtype = weft_fp8_block (s) == BLOCK ? WEFT_FP32 : WEFT_E8M0;

  return weft_step_buffer (s, kind_of (x), dtype, scales, "scales");
}

/* Returns an upper limit of the number of quantisation blocks down the rows of all experts. The
 * rows of an expert (in canonical order: of an expert and a replica) begin with a new block, and
 * the last of their blocks may be partly filled (kernels/moe.h). */
static uint64_t
blocks_down (const struct weft_step *s, const struct weft_fp8_source *x, uint64_t rows)
{
  return rows / weft_fp8_block (s) + n_groups (s, x);
}

static uint32_t
room_of_scales (struct weft_step *s, const struct weft_fp8_source *x, uint64_t rows,
                uint64_t columns)
{
  uint64_t block = weft_fp8_block (s), high = has_squares (s, x) ? BLOCK : 1;
  uint64_t lines =
      high > 1 && x->groups.experts ? blocks_down (s, x, rows) : (rows + high - 1) / high;

  return room_of (s, x, lines * ((columns + block - 1) / block));
}

/* Returns a buffer for the scales of the transposed copy. Blocks of weights and activations run
 * along the rows of that copy. For experts, blocks run down the rows of the copy. */
static uint32_t
room_of_transposed_scales (struct weft_step *s, const struct weft_fp8_source *x, uint64_t rows)
{
  return x->groups.experts ? room_of (s, x, blocks_down (s, x, rows) * x->columns)
                           : room_of_scales (s, x, x->columns, rows);
}

static struct weft_shape
blocks_shape (const struct weft_step *s, const struct weft_fp8_source *x, uint64_t copies)
{
  uint64_t block = weft_fp8_block (s), n = weft_step_elements (s, x->buf);
  struct weft_shape shape = WEFT_SHAPE (weft_build_buf_at (s->b, x->buf)->dtype, n / x->columns,
                                        x->columns, block, has_squares (s, x), copies);

  if (x->groups.experts) {
    shape = groups_shape (s, x);
    shape.dim[4] = block;
    shape.dim[5] = has_squares (s, x);
    shape.dim[6] = copies;
  }
  shape.out_dtype = format_of (s, x->role);
  return shape;
}

/* Quantises x by blocks into y, and into a transposed copy. Buffers of y or of the copy that are
 * WEFT_NO_BUF are not written. */
static uint32_t
emit_blocks (struct weft_step *s, const struct weft_fp8_source *x, struct weft_fp8 y,
             struct weft_fp8 transposed)
{
  const struct weft_use uses[] = { WEFT_R (x->buf),           WEFT_R (x->groups.counts),
                                   WEFT_W (y.codes),          WEFT_W (y.scale),
                                   WEFT_W (transposed.codes), WEFT_W (transposed.scale) };
  const struct weft_use whole[] = { uses[0], uses[2], uses[3], uses[4], uses[5] };

  if (x->groups.experts)
    return weft_emit (s, WEFT_OP_MOE_QUANTISE_BLOCKS, x->name, blocks_shape (s, x, 1), uses,
                      G_N_ELEMENTS (uses));
  return weft_emit (s, WEFT_OP_QUANTISE_BLOCKS, x->name, blocks_shape (s, x, 1), whole,
                    G_N_ELEMENTS (whole));
}

/* Quantises a tensor that has one scale. */
static struct copy *
round_whole (struct weft_step *s, const struct weft_fp8_source *x, uint32_t codes)
{
  gboolean delayed = s->strategy->fp8_recipe == WEFT_FP8_DELAYED;
  uint64_t n = weft_step_elements (s, x->buf);
  uint32_t scale = delayed ? place_in (s, s->layer->fp8->history, x) : measure (s, x);
  uint32_t seen = delayed ? place_in (s, s->layer->fp8->seen, x) : WEFT_NO_BUF;
  struct weft_shape shape = x->groups.experts
                                ? groups_shape (s, x)
                                : WEFT_SHAPE (weft_build_buf_at (s->b, x->buf)->dtype, n);

  shape.out_dtype = format_of (s, x->role);
  if (x->groups.experts) {
    weft_emit (s, WEFT_OP_MOE_QUANTISE, x->name, shape,
               WEFT_USES (WEFT_R (x->buf), WEFT_R (x->groups.counts), WEFT_R (scale),
                          WEFT_W (codes), WEFT_RW (seen)));
  } else if (delayed) {
    weft_emit (s, WEFT_OP_QUANTISE_DELAYED, x->name, shape,
               WEFT_USES (WEFT_R (x->buf), WEFT_R (scale), WEFT_W (codes), WEFT_RW (seen)));
  } else {
    weft_emit (s, WEFT_OP_QUANTISE, x->name, shape,
               WEFT_USES (WEFT_R (x->buf), WEFT_R (scale), WEFT_W (codes)));
  }
  return note (s, codes, scale, n / x->columns, x->columns);
}

/* Quantises the rows of a tensor by blocks. */
static struct copy *
round_blocks (struct weft_step *s, const struct weft_fp8_source *x, uint32_t codes)
{
  uint64_t rows = weft_step_elements (s, x->buf) / x->columns;
  uint32_t scale = room_of_scales (s, x, rows, x->columns);
  struct copy *copy = note (s, codes, scale, rows, x->columns);

  copy->op = emit_blocks (s, x, (struct weft_fp8){ codes, scale },
                          (struct weft_fp8){ WEFT_NO_BUF, WEFT_NO_BUF });
  return copy;
}

static uint32_t
round_to (struct weft_step *s, const struct weft_fp8_source *x, uint32_t codes)
{
  (weft_fp8_block (s) ? round_blocks : round_whole) (s, x, codes);
  return codes;
}

/* Whether the fp8 values of an operand are stored for backward. TRUE for the input of a linear
 * layer, unless activations are offloaded. */
static gboolean
keeps (const struct weft_step *s, const struct weft_fp8_source *x)
{
  return x->role == WEFT_FP8_INPUT && !s->strategy->cpu_offloading;
}

static gboolean
is_kept (const struct weft_step *s, const struct weft_fp8_source *x, uint32_t *codes)
{
  gpointer found;

  if (!g_hash_table_lookup_extended (s->layer->fp8->kept, GUINT_TO_POINTER (x->buf), NULL, &found))
    return FALSE;
  *codes = GPOINTER_TO_UINT (found);
  return TRUE;
}

struct weft_fp8
weft_fp8_rows (struct weft_step *s, const struct weft_fp8_source *x)
{
  uint32_t codes = x->buf;

  if (!is_codes (s, x->buf) && !is_kept (s, x, &codes)) {
    codes = round_to (s, x, room (s, x));
    if (keeps (s, x))
      g_hash_table_insert (s->layer->fp8->kept, GUINT_TO_POINTER (x->buf),
                           GUINT_TO_POINTER (codes));
  }
  return (struct weft_fp8){ codes, copy_of (s, codes)->scale };
}

/* ------------------------------------------------------------- the other way round */

/* Changes the op that quantised the tensor by blocks, so that the op also writes the transposed
 * copy. */
static void
also_transposed (struct weft_step *s, const struct weft_fp8_source *x, struct copy *copy)
{
  enum { YT = 3, COPIES };
  gboolean grouped = x->groups.experts > 0;
  uint32_t to = YT + grouped;
  struct weft_op at = s->at;

  if (x->role == WEFT_FP8_INPUT)
    s->at.phase = WEFT_PHASE_FORWARD;
  copy->transposed = weft_step_buffer (s, kind_of (x), format_of (s, x->role),
                                       copy->rows * copy->columns, x->name);
  copy->transposed_scale = room_of_transposed_scales (s, x, copy->rows);
  s->at = at;
  weft_build_more (s->b, copy->op, to, copy->transposed);
  weft_build_more (s->b, copy->op, to + 1, copy->transposed_scale);
  struct weft_shape shape = *weft_build_shape_at (s->b, copy->op);
  shape.dim[grouped ? COPIES + 2 : COPIES] = 2;
  weft_build_reshape (s->b, copy->op, &shape);
}

static void
transpose (struct weft_step *s, const struct weft_fp8_source *x, uint32_t codes, struct copy *copy)
{
  struct weft_fp8_source of = *x;

  of.buf = codes;
  copy->transposed = room (s, &of);
  weft_emit (s, WEFT_OP_TRANSPOSE, x->name,
             WEFT_SHAPE (weft_build_buf_at (s->b, codes)->dtype, copy->rows, copy->columns),
             WEFT_USES (WEFT_R (codes), WEFT_W (copy->transposed)));
}

/* Quantises a tensor by blocks into a transposed copy only. */
static struct weft_fp8
round_transposed (struct weft_step *s, const struct weft_fp8_source *x)
{
  uint64_t rows = weft_step_elements (s, x->buf) / x->columns;
  struct weft_fp8 t = { room (s, x), room_of_transposed_scales (s, x, rows) };

  emit_blocks (s, x, (struct weft_fp8){ WEFT_NO_BUF, WEFT_NO_BUF }, t);
  return t;
}

struct weft_fp8
weft_fp8_columns (struct weft_step *s, const struct weft_fp8_source *x)
{
  uint32_t codes = x->buf;

  if (!is_codes (s, x->buf) && !is_kept (s, x, &codes)) {
    if (weft_fp8_block (s))
      return round_transposed (s, x);
    round_to (s, x, codes = room (s, x));
  }
  struct copy *copy = copy_of (s, codes);
  if (copy->transposed == WEFT_NO_BUF && weft_fp8_block (s))
    also_transposed (s, x, copy);
  else if (x->groups.experts && !weft_fp8_block (s))
    return (struct weft_fp8){ codes, copy->scale };
  else if (copy->transposed == WEFT_NO_BUF)
    transpose (s, x, codes, copy);
  return (struct weft_fp8){ copy->transposed, copy->transposed_scale };
}

uint32_t
weft_fp8_gathered (struct weft_step *s, uint32_t part, uint32_t all)
{
  const struct copy *copy = copy_of (s, part);

  if (all != part)
    note (s, all, copy->scale, weft_step_elements (s, all) / copy->columns, copy->columns);
  return all;
}

/* -------------------------------------------------------------------------- weights */

static struct weft_fp8_source
weight_source (struct weft_step *s, uint32_t param)
{
  struct weft_fp8_source x = { .buf = weft_weight_read (s, param),
                               .param = param,
                               .role = WEFT_FP8_WEIGHT,
                               .columns = weft_param_at (s, param)->columns,
                               .name = "cast_weight" };

  if (weft_params_is_expert (s, param))
    x.groups = (struct weft_fp8_groups){ .experts = tensors_of (s, param) / s->mesh->ep,
                                         .each = 1,
                                         .rows = weft_param_at (s, param)->rows,
                                         .counts = WEFT_NO_BUF };
  return x;
}

struct weft_fp8
weft_fp8_weight (struct weft_step *s, uint32_t param)
{
  uint32_t known = weft_cast_known (s, param);

  if (weft_params_scale (s, param) != WEFT_NO_BUF)
    return (struct weft_fp8){ weft_weight_read (s, param), weft_params_scale (s, param) };
  if (known == WEFT_NO_BUF) {
    struct weft_fp8_source x = weight_source (s, param);
    known = round_to (s, &x, weft_cast_buffer (s, param));
  }
  return (struct weft_fp8){ known, copy_of (s, known)->scale };
}

struct weft_fp8
weft_fp8_weight_transposed (struct weft_step *s, uint32_t param)
{
  struct weft_fp8_source x = weight_source (s, param); /* all-gathers the weight if it is sharded */

  if (x.groups.experts && weft_fp8_block (s) != MX_BLOCK)
    return weft_fp8_weight (s, param);
  if (weft_params_scale (s, param) != WEFT_NO_BUF) {
    uint32_t scale, transposed = weft_fp8_weights_transposed (s, param, &scale);
    return (struct weft_fp8){ transposed, scale };
  }
  if (weft_cast_is_kept (s, param))
    x.buf = weft_fp8_weight (s, param).codes;
  return weft_fp8_columns (s, &x);
}
