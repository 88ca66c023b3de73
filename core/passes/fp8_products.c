/* precision = fp8: linear maps of layers whose products are taken in fp8 (NVIDIA Transformer Engine,
 * whose recipes fp8_recipe names; Megatron-Core takes them over).
 *
 * A tensor in fp8 is codes and, in a buffer of their own, what says their scale:
 *
 *   delayed     its largest magnitude in the step before.  That of this step is noted on the way, agreed
 *               on by all ranks and takes its place before the update; a run begins with scales of 1.
 *   tensorwise  its largest magnitude, found first by a pass of its own; of a weight once a step.
 *   blockwise   powers of two as floats for 128 elements of a row, and of weights for 128 rows and columns.
 *   mxfp8       powers of two of one byte for 32 elements of a row.
 *
 * Tensor cores want the terms of a sum side by side in both factors.  Input gradients read weights the
 * other way round, weight gradients both of their factors:
 *
 *   one scale   the codes are turned by a pass of one byte in and out, where they are asked for.
 *   blocks      the turned copy has blocks of its own: it is made of the same input by the same kernel,
 *               which writes it when somebody will read it.
 *
 *   inputs      forward keeps the codes for the weight gradient: the input itself goes, unless another
 *               kernel reads it later.  With cpu_offloading inputs leave as they are, and are converted
 *               again in backward.  What sequence parallel ranks gather they gather as codes, but for
 *               blocks, which are taken of what was gathered.
 *   gradients   of outputs are e5m2 where fp8_format is hybrid; all else is e4m3.
 *   the rest    router and gates of experts multiply in bf16, as upstream. */
#include "core/passes/step.h"

/* Elements with one scale: Float8BlockScaling of Transformer Engine; OCP Microscaling Formats 1.0. */
#define BLOCK 128
#define MX_BLOCK 32

/* A tensor in fp8, found by its codes. */
struct copy {
  uint32_t scale, turned, turned_scale; /* turned: WEFT_NO_BUF until it is asked for */
  uint64_t rows, columns;
  uint32_t op; /* that made it out of what it is a copy of, with blocks; or WEFT_NO_OP */
};

struct weft_fp8_products {
  GHashTable *copies; /* struct copy, by codes */
  GHashTable *kept;   /* codes, by what they were made of */
  uint32_t history,
      seen;            /* delayed: magnitudes of each tensor, of the step before and of this one */
  uint32_t *place;     /* of each parameter, among those that products read */
  uint32_t *magnitude; /* tensorwise: of each weight, once it is known */
};

static struct weft_param *
param_at (const struct weft_step *s, uint32_t param)
{
  return &g_array_index (s->params, struct weft_param, param);
}

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
  const struct weft_param *row = param_at (s, param);

  if (s->linear_dtype != WEFT_FP8 || row->layer == WEFT_NO_LAYER || row->columns == 1)
    return FALSE;
  const uint32_t *of =
      &s->layer_param[(size_t) weft_step_slot (s, row->layer) * WEFT_N_LAYER_PARAM];
  return of[WEFT_ROUTER_WEIGHT] != param && of[WEFT_SHARED_GATE_WEIGHT] != param;
}

/* --------------------------------------------------------------------- magnitudes */

/* What a checkpoint has of a map: a number for each of its tensors (train/state.c). */
static void
name_history (struct weft_step *s, uint32_t param)
{
  const char *name = weft_build_name_at (s->b, param_at (s, param)->name);
  const char *dot = strrchr (name, '.');
  g_autofree char *map = g_strndup (name, (gsize) (dot - name));
  g_autofree char *own = g_strconcat (map, WEFT_AMAX_SUFFIX, NULL);
  uint32_t view =
      weft_build_view (s->b, s->fp8->history, 4ull * WEFT_N_FP8_ROLE * s->fp8->place[param],
                       4ull * WEFT_N_FP8_ROLE, own);

  weft_build_buf_at (s->b, view)->layer = param_at (s, param)->layer;
}

void
weft_fp8_start (struct weft_step *s)
{
  uint32_t n = s->params->len, taken = 0;

  if (s->linear_dtype != WEFT_FP8)
    return;
  s->fp8 = g_new0 (struct weft_fp8_products, 1);
  s->fp8->copies = g_hash_table_new_full (NULL, NULL, NULL, g_free);
  s->fp8->kept = g_hash_table_new (NULL, NULL);
  s->fp8->place = g_new (uint32_t, n);
  s->fp8->magnitude = g_new (uint32_t, n);
  s->fp8->history = s->fp8->seen = WEFT_NO_BUF;
  for (uint32_t i = 0; i < n; i++) {
    s->fp8->magnitude[i] = WEFT_NO_BUF;
    s->fp8->place[i] = taken;
    taken += weft_fp8_takes (s, i);
  }
  if (s->strategy->fp8_recipe != WEFT_FP8_DELAYED || taken == 0)
    return;
  s->fp8->history = weft_step_permanent (s, WEFT_BUF_WORKSPACE, WEFT_FP32,
                                         (uint64_t) taken * WEFT_N_FP8_ROLE, "amax_history");
  s->fp8->seen = weft_step_permanent (s, WEFT_BUF_WORKSPACE, WEFT_FP32,
                                      (uint64_t) taken * WEFT_N_FP8_ROLE, "amax_seen");
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
weft_fp8_begin (struct weft_step *s)
{
  if (s->fp8 && s->fp8->seen != WEFT_NO_BUF)
    weft_emit (s, WEFT_OP_ZERO, "zero_amax",
               WEFT_SHAPE (WEFT_FP32, weft_step_elements (s, s->fp8->seen)),
               WEFT_USES (WEFT_W (s->fp8->seen)));
}

/* Over all that share a tensor or have others of the batch; then it is what the next step goes by. */
void
weft_fp8_agree (struct weft_step *s)
{
  static const enum weft_group_kind groups[] = { WEFT_GROUP_TP, WEFT_GROUP_DP, WEFT_GROUP_MIRROR };
  uint32_t kernel = weft_build_last (s->b, WEFT_LANE_GPU);

  if (!s->fp8 || s->fp8->seen == WEFT_NO_BUF)
    return;
  for (size_t i = 0; i < G_N_ELEMENTS (groups); i++)
    if (weft_reduce_all (s, groups[i], WEFT_REDUCE_MAX, s->fp8->seen, "amax") != WEFT_NO_OP)
      weft_build_dep (s->b, kernel);
  weft_emit (s, WEFT_OP_CAST, "amax", WEFT_SHAPE (WEFT_FP32, weft_step_elements (s, s->fp8->seen)),
             WEFT_USES (WEFT_R (s->fp8->seen), WEFT_W (s->fp8->history)));
}

static uint32_t
place_in (struct weft_step *s, uint32_t all, const struct weft_fp8_source *x)
{
  return weft_build_view (s->b, all, 4ull * (WEFT_N_FP8_ROLE * s->fp8->place[x->param] + x->role),
                          4, "amax");
}

/* Ranks that share a tensor out have parts of it: they go by one scale where codes of theirs will lie in
 * one tensor, and in canonical order, where they do as one rank would. */
static void
share (struct weft_step *s, const struct weft_fp8_source *x, uint32_t largest)
{
  gboolean part = x->role != WEFT_FP8_WEIGHT;

  if (s->canonical || (part && weft_tensor_scatters (s)))
    weft_tensor_all_reduce (s, largest, WEFT_REDUCE_MAX, "amax");
  if (s->canonical && part)
    weft_reduce_all (s, WEFT_GROUP_CP, WEFT_REDUCE_MAX, largest, "amax");
}

/* The largest magnitude of a tensor, found by a pass of its own. */
static uint32_t
measure (struct weft_step *s, const struct weft_fp8_source *x)
{
  uint32_t *known = x->role == WEFT_FP8_WEIGHT ? &s->fp8->magnitude[x->param] : NULL;

  if (known && *known != WEFT_NO_BUF)
    return *known;
  uint32_t largest = weft_step_buffer (s, WEFT_BUF_WORKSPACE, WEFT_FP32, 1, "amax");
  weft_emit (s, WEFT_OP_ZERO, "amax", WEFT_SHAPE (WEFT_FP32, 1), WEFT_USES (WEFT_W (largest)));
  weft_emit (s, WEFT_OP_AMAX, "amax",
             WEFT_SHAPE (weft_build_buf_at (s->b, x->buf)->dtype, weft_step_elements (s, x->buf)),
             WEFT_USES (WEFT_R (x->buf), WEFT_RW (largest)));
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
                         .turned = WEFT_NO_BUF,
                         .turned_scale = scale,
                         .rows = rows,
                         .columns = columns,
                         .op = WEFT_NO_OP };
  g_hash_table_insert (s->fp8->copies, GUINT_TO_POINTER (codes), copy);
  return copy;
}

static struct copy *
copy_of (const struct weft_step *s, uint32_t codes)
{
  struct copy *copy = g_hash_table_lookup (s->fp8->copies, GUINT_TO_POINTER (codes));

  g_assert (copy);
  return copy;
}

/* Matrices with the numbers of a gradient are gone when a pass is, those of a weight with its layer. */
static uint32_t
room (struct weft_step *s, const struct weft_fp8_source *x)
{
  enum weft_buf_kind kind = x->role == WEFT_FP8_WEIGHT ? WEFT_BUF_WEIGHTS : WEFT_BUF_ACTIVATIONS;

  return weft_step_buffer (s, kind, format_of (s, x->role), weft_step_elements (s, x->buf),
                           x->name);
}

static uint32_t
room_of_scales (struct weft_step *s, const struct weft_fp8_source *x, uint64_t rows,
                uint64_t columns)
{
  uint64_t block = weft_fp8_block (s),
           high = x->role == WEFT_FP8_WEIGHT && block == BLOCK ? BLOCK : 1;
  enum weft_buf_kind kind = x->role == WEFT_FP8_WEIGHT ? WEFT_BUF_WEIGHTS : WEFT_BUF_ACTIVATIONS;

  return weft_step_buffer (s, kind, block == BLOCK ? WEFT_FP32 : WEFT_E8M0,
                           (rows + high - 1) / high * ((columns + block - 1) / block), "scales");
}

static struct weft_shape
blocks_shape (const struct weft_step *s, const struct weft_fp8_source *x, uint64_t copies)
{
  uint64_t block = weft_fp8_block (s), n = weft_step_elements (s, x->buf);
  struct weft_shape shape =
      WEFT_SHAPE (weft_build_buf_at (s->b, x->buf)->dtype, n / x->columns, x->columns, block,
                  x->role == WEFT_FP8_WEIGHT && block == BLOCK, copies);

  shape.out_dtype = format_of (s, x->role);
  return shape;
}

/* A scale for a tensor. */
static struct copy *
round_whole (struct weft_step *s, const struct weft_fp8_source *x, uint32_t codes)
{
  gboolean delayed = s->strategy->fp8_recipe == WEFT_FP8_DELAYED;
  uint64_t n = weft_step_elements (s, x->buf);
  uint32_t scale = delayed ? place_in (s, s->fp8->history, x) : measure (s, x);
  struct weft_shape shape = WEFT_SHAPE (weft_build_buf_at (s->b, x->buf)->dtype, n);

  shape.out_dtype = format_of (s, x->role);
  if (delayed) {
    uint32_t seen = place_in (s, s->fp8->seen, x);
    weft_emit (s, WEFT_OP_QUANTISE_DELAYED, x->name, shape,
               WEFT_USES (WEFT_R (x->buf), WEFT_R (scale), WEFT_W (codes), WEFT_RW (seen)));
  } else {
    weft_emit (s, WEFT_OP_QUANTISE, x->name, shape,
               WEFT_USES (WEFT_R (x->buf), WEFT_R (scale), WEFT_W (codes)));
  }
  return note (s, codes, scale, n / x->columns, x->columns);
}

/* A scale for each block of a row. */
static struct copy *
round_blocks (struct weft_step *s, const struct weft_fp8_source *x, uint32_t codes)
{
  uint64_t rows = weft_step_elements (s, x->buf) / x->columns;
  uint32_t scale = room_of_scales (s, x, rows, x->columns);
  struct copy *copy = note (s, codes, scale, rows, x->columns);

  copy->op = weft_emit (s, WEFT_OP_QUANTISE_BLOCKS, x->name, blocks_shape (s, x, 1),
                        WEFT_USES (WEFT_R (x->buf), WEFT_W (codes), WEFT_W (scale),
                                   WEFT_W (WEFT_NO_BUF), WEFT_W (WEFT_NO_BUF)));
  return copy;
}

static uint32_t
round_to (struct weft_step *s, const struct weft_fp8_source *x, uint32_t codes)
{
  (weft_fp8_block (s) ? round_blocks : round_whole) (s, x, codes);
  return codes;
}

/* Whether the codes of an input stay for backward. */
static gboolean
keeps (const struct weft_step *s, const struct weft_fp8_source *x)
{
  return x->role == WEFT_FP8_INPUT && !s->strategy->cpu_offloading;
}

static gboolean
is_kept (const struct weft_step *s, const struct weft_fp8_source *x, uint32_t *codes)
{
  gpointer found;

  if (!g_hash_table_lookup_extended (s->fp8->kept, GUINT_TO_POINTER (x->buf), NULL, &found))
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
      g_hash_table_insert (s->fp8->kept, GUINT_TO_POINTER (x->buf), GUINT_TO_POINTER (codes));
  }
  return (struct weft_fp8){ codes, copy_of (s, codes)->scale };
}

/* ------------------------------------------------------------- the other way round */

/* The kernel that has made the codes makes the other copy too. */
static void
also_turned (struct weft_step *s, const struct weft_fp8_source *x, struct copy *copy)
{
  enum { YT = 3, SCALE_T };
  struct weft_op at = s->at;

  if (x->role == WEFT_FP8_INPUT)
    s->at.phase = WEFT_PHASE_FORWARD;
  copy->turned = weft_step_buffer (s, WEFT_BUF_ACTIVATIONS, format_of (s, x->role),
                                   copy->rows * copy->columns, x->name);
  copy->turned_scale = room_of_scales (s, x, copy->columns, copy->rows);
  s->at = at;
  weft_build_more (s->b, copy->op, YT, copy->turned);
  weft_build_more (s->b, copy->op, SCALE_T, copy->turned_scale);
  struct weft_shape shape = *weft_build_shape_at (s->b, copy->op);
  shape.dim[4] = 2;
  weft_build_reshape (s->b, copy->op, &shape);
}

static void
turn (struct weft_step *s, const struct weft_fp8_source *x, uint32_t codes, struct copy *copy)
{
  struct weft_fp8_source of = *x;

  of.buf = codes;
  copy->turned = room (s, &of);
  weft_emit (s, WEFT_OP_TRANSPOSE, x->name,
             WEFT_SHAPE (weft_build_buf_at (s->b, codes)->dtype, copy->rows, copy->columns),
             WEFT_USES (WEFT_R (codes), WEFT_W (copy->turned)));
}

/* Only the turned copy, with blocks of its own. */
static struct weft_fp8
round_turned (struct weft_step *s, const struct weft_fp8_source *x)
{
  uint64_t rows = weft_step_elements (s, x->buf) / x->columns;
  struct weft_fp8 t = { room (s, x), room_of_scales (s, x, x->columns, rows) };

  weft_emit (s, WEFT_OP_QUANTISE_BLOCKS, x->name, blocks_shape (s, x, 1),
             WEFT_USES (WEFT_R (x->buf), WEFT_W (WEFT_NO_BUF), WEFT_W (WEFT_NO_BUF),
                        WEFT_W (t.codes), WEFT_W (t.scale)));
  return t;
}

struct weft_fp8
weft_fp8_columns (struct weft_step *s, const struct weft_fp8_source *x)
{
  uint32_t codes = x->buf;

  if (!is_codes (s, x->buf) && !is_kept (s, x, &codes)) {
    if (weft_fp8_block (s))
      return round_turned (s, x);
    round_to (s, x, codes = room (s, x));
  }
  struct copy *copy = copy_of (s, codes);
  if (copy->turned == WEFT_NO_BUF && weft_fp8_block (s))
    also_turned (s, x, copy);
  else if (copy->turned == WEFT_NO_BUF)
    turn (s, x, codes, copy);
  return (struct weft_fp8){ copy->turned, copy->turned_scale };
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
  return (struct weft_fp8_source){ .buf = weft_params_weight (s, param),
                                   .param = param,
                                   .role = WEFT_FP8_WEIGHT,
                                   .columns = param_at (s, param)->columns,
                                   .name = "cast_weight" };
}

struct weft_fp8
weft_fp8_weight (struct weft_step *s, uint32_t param)
{
  uint32_t known = weft_cast_known (s, param);

  if (weft_params_scale (s, param) != WEFT_NO_BUF)
    return (struct weft_fp8){ weft_params_weight (s, param), weft_params_scale (s, param) };
  if (known == WEFT_NO_BUF) {
    struct weft_fp8_source x = weight_source (s, param);
    known = round_to (s, &x, weft_cast_room (s, param));
  }
  return (struct weft_fp8){ known, copy_of (s, known)->scale };
}

struct weft_fp8
weft_fp8_weight_turned (struct weft_step *s, uint32_t param)
{
  struct weft_fp8_source x = weight_source (s, param); /* which is gathered if need be */

  if (weft_params_scale (s, param) != WEFT_NO_BUF) {
    uint32_t turned = weft_fp8_turned (s, param);
    return (struct weft_fp8){ turned, s->turned_scale[param] };
  }
  return weft_fp8_columns (s, &x);
}
