#include "tests/made/expert_layer.h"
#include "core/base/zigzag.h"
#include "kernels/float.h"
#include <inttypes.h>
#include <math.h>

static const char *const array_names[] = {
#define NAME(name, size) #name,
  ARRAYS (NAME)
#undef NAME
};

enum size { T_, E_, K_, H_, F_, UP_, R_, C_, PAD_, STRIDE_, W_, TK_, ONE_, ZERO_, N_SIZE };

struct line {
  enum weft_op_kind kind;
  enum size dim[5];
  enum array operand[6];
};
static const struct line lines[] = {
  { WEFT_OP_MATMUL, { T_, E_, H_, ZERO_, ZERO_ }, { X, WR, NONE, LOGITS, NONE, NONE } },
  { WEFT_OP_MOE_ROUTE, { T_, E_, K_, ZERO_, ZERO_ }, { LOGITS, NONE, SCORES, CHOICE, PROB, NONE } },
  { WEFT_OP_MOE_SORT, { T_, K_, E_, C_, PAD_ }, { CHOICE, PROB, COUNTS, ROW, NONE, NONE } },
  { WEFT_OP_MOE_PERMUTE, { T_, H_, K_, R_, ZERO_ }, { X, ROW, XP, NONE, NONE, NONE } },
  { WEFT_OP_MOE_PERMUTE, { TK_, ONE_, ONE_, R_, ZERO_ }, { PROB, ROW, PP, NONE, NONE, NONE } },
  { WEFT_OP_MOE_MATMUL, { R_, UP_, H_, E_, STRIDE_ }, { XP, W1, COUNTS, U, NONE, NONE } },
  { WEFT_OP_MOE_ACT, { R_, F_, E_, STRIDE_, W_ }, { U, PP, COUNTS, ACT, NONE, NONE } },
  { WEFT_OP_MOE_MATMUL, { R_, H_, F_, E_, STRIDE_ }, { ACT, W2, COUNTS, YP, NONE, NONE } },
  { WEFT_OP_MOE_UNPERMUTE, { T_, H_, K_, R_, E_ }, { YP, ROW, CHOICE, M, NONE, NONE } },
  { WEFT_OP_MOE_PERMUTE, { T_, H_, K_, R_, ZERO_ }, { DM, ROW, DYP, NONE, NONE, NONE } },
  { WEFT_OP_MOE_MATMUL_WGRAD, { R_, H_, F_, E_, STRIDE_ }, { DYP, ACT, COUNTS, DW2, NONE, NONE } },
  { WEFT_OP_MOE_MATMUL_DGRAD, { R_, H_, F_, E_, STRIDE_ }, { DYP, W2, COUNTS, DACT, NONE, NONE } },
  { WEFT_OP_MOE_ACT_BWD, { R_, F_, E_, STRIDE_, W_ }, { U, PP, COUNTS, DACT, DU, DPP } },
  { WEFT_OP_MOE_MATMUL_WGRAD, { R_, UP_, H_, E_, STRIDE_ }, { DU, XP, COUNTS, DW1, NONE, NONE } },
  { WEFT_OP_MOE_MATMUL_DGRAD, { R_, UP_, H_, E_, STRIDE_ }, { DU, W1, COUNTS, DXP, NONE, NONE } },
  { WEFT_OP_MOE_UNPERMUTE, { T_, H_, K_, R_, E_ }, { DXP, ROW, CHOICE, DX, NONE, NONE } },
  { WEFT_OP_MOE_UNPERMUTE, { TK_, ONE_, ONE_, R_, E_ }, { DPP, ROW, NONE, DPROB, NONE, NONE } },
  { WEFT_OP_MOE_ROUTE_BWD,
    { T_, E_, K_, ZERO_, ZERO_ },
    { SCORES, CHOICE, DPROB, DLOGITS, NONE, NONE } },
  { WEFT_OP_MATMUL_DGRAD, { T_, E_, H_, ZERO_, ZERO_ }, { DLOGITS, WR, DXR, NONE, NONE, NONE } },
  { WEFT_OP_MATMUL_WGRAD, { T_, E_, H_, ZERO_, ZERO_ }, { DLOGITS, X, DWR, NONE, NONE, NONE } },
};

static enum weft_dtype
dtype_of (const struct layer *l, enum array a)
{
  switch (a) {
  case CHOICE:
  case ROW:
    return WEFT_INT32;
  case COUNTS:
    return WEFT_INT64;
  case SCORES:
    return WEFT_FP32;
  case DW1:
  case DW2:
  case DWR:
    return l->grad_dtype;
  default:
    return l->dtype;
  }
}

static gboolean
is_whole (enum array a)
{
  return a == CHOICE || a == ROW || a == COUNTS;
}

static uint64_t
extent_of (const struct sizes *s, enum array a)
{
  uint64_t T = s->t, E = s->e, K = s->k, H = s->h, F = s->f, W = s->w, L = s->l, R = s->r;
  const uint64_t extent[] = {
#define EXTENT(name, size) [name] = size,
    ARRAYS (EXTENT)
#undef EXTENT
  };

  return extent[a];
}

void
expert_layer_open (struct layer *l)
{
  for (uint32_t a = 0; a < N_ARRAY; a++) {
    struct weft_operand *o = &l->at[a];
    *o = (struct weft_operand){ .n = extent_of (&l->s, a), .dtype = dtype_of (l, a) };
    o->data = g_malloc (o->n * sizeof (double));
    memset (o->data, 0xff, o->n * sizeof (double));
  }
}

void
expert_layer_close (struct layer *l)
{
  for (uint32_t a = 0; a < N_ARRAY; a++)
    g_free (l->at[a].data);
}

void
expert_layer_run (struct layer *l)
{
  const struct sizes *s = &l->s;
  const uint64_t size[N_SIZE] = { [T_] = s->t,        [E_] = s->e,
                                  [K_] = s->k,        [H_] = s->h,
                                  [F_] = s->f,        [UP_] = s->w * s->f,
                                  [R_] = s->r,        [C_] = s->capacity,
                                  [PAD_] = s->padded, [STRIDE_] = s->padded ? s->capacity : 0,
                                  [W_] = s->w,        [TK_] = s->t * s->k,
                                  [ONE_] = 1 };

  for (unsigned i = 0; i < G_N_ELEMENTS (lines); i++) {
    struct weft_kernel k = { .kind = lines[i].kind,
                             .shape = { .dtype = l->dtype, .out_dtype = l->grad_dtype },
                             .model = &l->model,
                             .canonical = l->canonical };
    for (int d = 0; d < 5; d++)
      k.shape.dim[d] = size[lines[i].dim[d]];
    for (int o = 0; o < 6; o++)
      k.operand[o] = l->at[lines[i].operand[o]];
    const struct weft_kernel_row *row = &weft_kernels[k.kind];
    uint32_t parts = weft_op_info[k.kind].serial ? 1 : l->parts;
    if (l->doubles)
      row->reference (&k);
    else if (l->device && cuda_case_has (l->device, k.kind))
      l->device->launch (l->device->user, &k, l->again);
    else
      for (uint32_t part = parts; part-- > 0;)
        row->cpu (&k, part, parts);
  }
}

const char *
expert_layer_name (enum array a)
{
  return array_names[a];
}

double
expert_layer_get (const struct layer *l, enum array a, uint64_t i)
{
  float room;

  if (a == COUNTS)
    return (double) ((const int64_t *) l->at[a].data)[i];
  if (is_whole (a))
    return ((const int32_t *) l->at[a].data)[i];
  if (l->doubles)
    return ((const double *) l->at[a].data)[i];
  return (double) *weft_floats (l->at[a].data, l->at[a].dtype, i, 1, &room);
}

void
expert_layer_set (struct layer *l, enum array a, uint64_t i, double value)
{
  float rounded = (float) value;

  if (l->doubles)
    ((double *) l->at[a].data)[i] = value;
  else
    weft_store (l->at[a].data, l->at[a].dtype, i, 1, &rounded);
}

/* Copies weights, and inputs from token number `token` on, into a layer that may have fewer
 * tokens. */
void
expert_layer_copy_inputs (const struct layer *from, struct layer *to, uint64_t token)
{
  static const enum array inputs[] = { X, WR, W1, W2, DM };

  for (unsigned i = 0; i < G_N_ELEMENTS (inputs); i++) {
    enum array a = inputs[i];
    uint64_t skip = a == X || a == DM ? token * from->s.h : 0;
    for (uint64_t e = 0; e < to->at[a].n; e++)
      expert_layer_set (to, a, e, expert_layer_get (from, a, skip + e));
  }
}

int64_t
expert_layer_pick (GRand *rand, const char *choices)
{
  g_auto (GStrv) list = g_strsplit (choices, " ", -1);
  return g_ascii_strtoll (list[g_rand_int_range (rand, 0, (gint32) g_strv_length (list))], NULL,
                          10);
}

static void
choose_router (GRand *rand, union weft_model *m, uint64_t experts)
{
  m->moe_router_score_function = expert_layer_pick (rand, "0 1");
  m->moe_router_pre_softmax = expert_layer_pick (rand, "0 1");
  m->moe_router_topk_scaling_factor = g_rand_boolean (rand) ? 1 : 2.5;
  if (experts % 4 || g_rand_boolean (rand))
    return;
  m->moe_router_num_groups = 4;
  m->moe_router_group_topk = 2;
}

void
expert_layer_choose (GRand *rand, struct layer *l, gboolean drops)
{
  struct sizes *s = &l->s;
  uint64_t sequences = (uint64_t) expert_layer_pick (rand, "1 2 3 5 8");

  *l = (struct layer){ .dtype = WEFT_FP32, .grad_dtype = WEFT_FP32, .parts = 1 };
  weft_table_defaults (&weft_model_table, l->model.at);
  l->model.seq_length = expert_layer_pick (rand, "1 3 8");
  l->model.activation = expert_layer_pick (rand, "0 1 2");
  s->t = sequences * (uint64_t) l->model.seq_length;
  s->e = (uint64_t) expert_layer_pick (rand, "4 5 8 16");
  s->k = (uint64_t) expert_layer_pick (rand, "1 2 3 4");
  s->h = (uint64_t) expert_layer_pick (rand, "1 5 8 33");
  s->f = (uint64_t) expert_layer_pick (rand, "1 6 17");
  s->w = l->model.activation == WEFT_SWIGLU ? 2 : 1;
  choose_router (rand, &l->model, s->e);
  if (l->model.moe_router_num_groups && s->k > s->e / 2)
    s->k = 2;
  l->canonical = g_rand_boolean (rand);
  s->l = l->canonical ? sequences * weft_chunks ((uint64_t) l->model.seq_length) : 1;
  s->r = s->t * s->k;
  if (!drops)
    return;
  s->capacity = 1 + s->r / s->e;
  s->padded = g_rand_boolean (rand);
  s->r = s->padded ? s->capacity * s->e : s->r;
}

void
expert_layer_fill (GRand *rand, struct layer *l)
{
  static const enum array inputs[] = { X, WR, W1, W2, DM };

  for (unsigned i = 0; i < G_N_ELEMENTS (inputs); i++)
    for (uint64_t e = 0; e < l->at[inputs[i]].n; e++)
      expert_layer_set (l, inputs[i], e, g_rand_double_range (rand, -1, 1));
}

/* Whether an array has one row per routed token. Rows beyond the counts are padding, so they are
 * not compared. */
static gboolean
is_by_row (enum array a)
{
  return a == XP || a == PP || a == U || a == ACT || a == YP || a == DYP || a == DACT || a == DU ||
         a == DPP || a == DXP;
}

uint64_t
expert_layer_in_use (const struct layer *l, enum array a)
{
  uint64_t rows = 0;

  for (uint64_t i = 0; i < l->at[COUNTS].n; i++)
    rows += (uint64_t) ((const int64_t *) l->at[COUNTS].data)[i];
  return is_by_row (a) && !l->s.padded ? l->at[a].n / l->s.r * rows : l->at[a].n;
}

gboolean
expert_layer_same_choice (const struct layer *a, const struct layer *b)
{
  return memcmp (a->at[CHOICE].data, b->at[CHOICE].data, a->at[CHOICE].n * 4) == 0 &&
         memcmp (a->at[ROW].data, b->at[ROW].data, a->at[ROW].n * 4) == 0;
}

void
expert_layer_compare (const struct layer *found, const struct layer *wanted, double tolerance)
{
  for (uint32_t a = 0; a < N_ARRAY; a++) {
    double scale = 1;
    for (uint64_t i = 0; i < expert_layer_in_use (wanted, a); i++)
      scale = fmax (scale, fabs (expert_layer_get (wanted, a, i)));
    for (uint64_t i = 0; i < expert_layer_in_use (wanted, a); i++) {
      double f = expert_layer_get (found, a, i), w = expert_layer_get (wanted, a, i);
      if (!(fabs (f - w) <= tolerance * scale))
        fail_msg ("%s[%" PRIu64 "]: found %.9g, wanted %.9g", array_names[a], i, f, w);
    }
  }
}

void
expert_layer_same_bits (const struct layer *a, const struct layer *b)
{
  for (uint32_t i = 0; i < N_ARRAY; i++)
    if (memcmp (a->at[i].data, b->at[i].data,
                expert_layer_in_use (a, i) * weft_dtype_bytes (a->at[i].dtype)))
      fail_msg ("%s has other bits", array_names[i]);
}
