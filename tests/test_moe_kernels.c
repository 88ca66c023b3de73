/* Kernels of experts: a whole layer of them against its fp64 reference, its gradients against
 * differences, the promises about bits; routing by hand. */
#include "core/base/fold.h"
#include "kernels/float.h"
#include "kernels/kernel.h"
#include "tests/cuda_case.h"
#include <inttypes.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <cmocka.h>

#define N_TRIAL 40
#define MOST_LINES 32

/* ------------------------------------------------------------- a layer, as a table */

/* What it reads and makes.  FLOATS are in the layer's type, others as they are. */
#define ARRAYS(A)                                                                                  \
  A (X, T *H)                                                                                      \
  A (WR, E *H)                                                                                     \
  A (W1, E *W *F *H)                                                                               \
  A (W2, E *H *F) A (DM, T *H) A (LOGITS, T *E) A (SCORES, T *E) A (CHOICE, T *K) A (PROB, T *K)   \
      A (COUNTS, E *L) A (ROW, T *K) A (XP, R *H) A (PP, R) A (U, R *W *F) A (ACT, R *F)           \
          A (YP, R *H) A (M, T *H) A (DYP, R *H) A (DW2, E *H *F) A (DACT, R *F) A (DU, R *W *F)   \
              A (DPP, R) A (DW1, E *W *F *H) A (DXP, R *H) A (DX, T *H) A (DPROB, T *K)            \
                  A (DLOGITS, T *E) A (DXR, T *H) A (DWR, E *H)
enum array {
#define ID(name, size) name,
  ARRAYS (ID)
#undef ID
      N_ARRAY,
  NONE = N_ARRAY
};
static const char *const array_names[] = {
#define NAME(name, size) #name,
  ARRAYS (NAME)
#undef NAME
};

/* Sizes that dimensions and arrays are made of. */
struct sizes {
  uint64_t t, e, k, h, f, w, l, r, capacity, padded;
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

struct layer {
  struct sizes s;
  union weft_model model;
  enum weft_dtype dtype, grad_dtype;
  gboolean canonical, doubles, cuda, backwards; /* the last: order of emulated threads */
  uint32_t parts;
  struct weft_operand at[N_ARRAY + 1];
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

/* Room for all arrays, as NaN. */
static void
layer_open (struct layer *l)
{
  for (uint32_t a = 0; a < N_ARRAY; a++) {
    struct weft_operand *o = &l->at[a];
    *o = (struct weft_operand){ .n = extent_of (&l->s, a), .dtype = dtype_of (l, a) };
    o->data = g_malloc (o->n * sizeof (double));
    memset (o->data, 0xff, o->n * sizeof (double));
  }
}

static void
layer_close (struct layer *l)
{
  for (uint32_t a = 0; a < N_ARRAY; a++)
    g_free (l->at[a].data);
}

static void
layer_run (struct layer *l)
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
    uint32_t parts = row->splits ? l->parts : 1;
    if (l->doubles)
      row->reference (&k);
    else if (l->cuda)
      cuda_case_launch (&k, l->backwards);
    for (uint32_t part = parts; !l->doubles && !l->cuda && part-- > 0;)
      row->cpu (&k, part, parts);
  }
}

static double
element (const struct layer *l, enum array a, uint64_t i)
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

static void
set (struct layer *l, enum array a, uint64_t i, double value)
{
  float rounded = (float) value;

  if (l->doubles)
    ((double *) l->at[a].data)[i] = value;
  else
    weft_store (l->at[a].data, l->at[a].dtype, i, 1, &rounded);
}

/* The same inputs in two layers, or elements from `first` on of a longer one. */
static void
copy_inputs (const struct layer *from, struct layer *to, uint64_t token)
{
  static const enum array inputs[] = { X, WR, W1, W2, DM };

  for (unsigned i = 0; i < G_N_ELEMENTS (inputs); i++) {
    enum array a = inputs[i];
    uint64_t skip = a == X || a == DM ? token * from->s.h : 0;
    for (uint64_t e = 0; e < to->at[a].n; e++)
      set (to, a, e, element (from, a, skip + e));
  }
}

static int64_t
pick (GRand *rand, const char *choices)
{
  g_auto (GStrv) list = g_strsplit (choices, " ", -1);
  return g_ascii_strtoll (list[g_rand_int_range (rand, 0, (gint32) g_strv_length (list))], NULL,
                          10);
}

static void
choose_router (GRand *rand, union weft_model *m, uint64_t experts)
{
  m->moe_router_score_function = pick (rand, "0 1");
  m->moe_router_pre_softmax = pick (rand, "0 1");
  m->moe_router_topk_scaling_factor = g_rand_boolean (rand) ? 1 : 2.5;
  if (experts % 4 || g_rand_boolean (rand))
    return;
  m->moe_router_num_groups = 4;
  m->moe_router_group_topk = 2;
}

static void
choose (GRand *rand, struct layer *l, gboolean drops)
{
  struct sizes *s = &l->s;
  uint64_t sequences = (uint64_t) pick (rand, "1 2 3 5 8");

  *l = (struct layer){ .dtype = WEFT_FP32, .grad_dtype = WEFT_FP32, .parts = 1 };
  weft_table_defaults (&weft_model_table, l->model.at);
  l->model.seq_length = pick (rand, "1 3 8");
  l->model.activation = pick (rand, "0 1 2");
  s->t = sequences * (uint64_t) l->model.seq_length;
  s->e = (uint64_t) pick (rand, "4 5 8 16");
  s->k = (uint64_t) pick (rand, "1 2 3 4");
  s->h = (uint64_t) pick (rand, "1 5 8 33");
  s->f = (uint64_t) pick (rand, "1 6 17");
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

static void
fill (GRand *rand, struct layer *l)
{
  static const enum array inputs[] = { X, WR, W1, W2, DM };

  for (unsigned i = 0; i < G_N_ELEMENTS (inputs); i++)
    for (uint64_t e = 0; e < l->at[inputs[i]].n; e++)
      set (l, inputs[i], e, g_rand_double_range (rand, -1, 1));
}

/* Rows that nobody is in are nobody's business. */
static gboolean
is_by_row (enum array a)
{
  return a == XP || a == PP || a == U || a == ACT || a == YP || a == DYP || a == DACT || a == DU ||
         a == DPP || a == DXP;
}

static uint64_t
elements_in_use (const struct layer *l, enum array a)
{
  uint64_t rows = 0;

  for (uint64_t i = 0; i < l->at[COUNTS].n; i++)
    rows += (uint64_t) ((const int64_t *) l->at[COUNTS].data)[i];
  return is_by_row (a) && !l->s.padded ? l->at[a].n / l->s.r * rows : l->at[a].n;
}

/* A choice that only rounding made is another layer: scores that lie next to each other. */
static gboolean
same_choice (const struct layer *a, const struct layer *b)
{
  return memcmp (a->at[CHOICE].data, b->at[CHOICE].data, a->at[CHOICE].n * 4) == 0 &&
         memcmp (a->at[ROW].data, b->at[ROW].data, a->at[ROW].n * 4) == 0;
}

static void
compare (const struct layer *found, const struct layer *wanted, double tolerance)
{
  for (uint32_t a = 0; a < N_ARRAY; a++) {
    double scale = 1;
    for (uint64_t i = 0; i < elements_in_use (wanted, a); i++)
      scale = fmax (scale, fabs (element (wanted, a, i)));
    for (uint64_t i = 0; i < elements_in_use (wanted, a); i++) {
      double f = element (found, a, i), w = element (wanted, a, i);
      if (!(fabs (f - w) <= tolerance * scale))
        fail_msg ("%s[%" PRIu64 "]: found %.9g, wanted %.9g", array_names[a], i, f, w);
    }
  }
}

static void
check_layers (gboolean drops, guint32 seed, double tolerance, enum weft_dtype dtype)
{
  GRand *rand = g_rand_new_with_seed (seed);
  unsigned compared = 0;

  for (int trial = 0; trial < N_TRIAL; trial++) {
    struct layer cpu, reference;
    choose (rand, &cpu, drops);
    cpu.dtype = dtype;
    reference = cpu;
    reference.doubles = TRUE;
    layer_open (&cpu);
    layer_open (&reference);
    fill (rand, &cpu);
    copy_inputs (&cpu, &reference, 0);
    layer_run (&cpu);
    layer_run (&reference);
    if (same_choice (&cpu, &reference)) {
      compare (&cpu, &reference, tolerance);
      compared++;
    }
    layer_close (&cpu);
    layer_close (&reference);
  }
  g_rand_free (rand);
  assert_true (compared > N_TRIAL / 2);
}

static void
a_layer_of_experts_does_what_its_reference_does (void **state)
{
  (void) state;
  check_layers (FALSE, 1, 2e-5, WEFT_FP32);
  check_layers (FALSE, 2, 0.06, WEFT_BF16);
}

static void
tokens_over_capacity_are_dropped_as_in_the_reference (void **state)
{
  (void) state;
  check_layers (TRUE, 3, 2e-5, WEFT_FP32);
}

/* ------------------------------------------------------------------------ gradients */

static double
loss_of (const struct layer *l)
{
  double sum = 0;

  for (uint64_t i = 0; i < l->at[M].n; i++)
    sum += element (l, M, i) * element (l, DM, i);
  return sum;
}

static double
slope (struct layer *l, enum array a, uint64_t i)
{
  const double step = 1e-5, value = element (l, a, i);

  set (l, a, i, value + step);
  layer_run (l);
  double above = loss_of (l);
  set (l, a, i, value - step);
  layer_run (l);
  double below = loss_of (l);
  set (l, a, i, value);
  return (above - below) / (2 * step);
}

static void
check_slopes (struct layer *l, enum array of, enum array gradient, enum array more)
{
  uint64_t n = l->at[of].n;
  g_autofree double *given = g_new (double, n);
  double scale = 1;

  layer_run (l);
  for (uint64_t i = 0; i < n; i++) {
    given[i] = element (l, gradient, i) + (more == NONE ? 0 : element (l, more, i));
    scale = fmax (scale, fabs (given[i]));
  }
  for (uint64_t i = 0; i < n; i += 1 + n / 60) {
    double found = slope (l, of, i);
    if (!(fabs (found - given[i]) <= 2e-6 * scale))
      fail_msg ("gradient of %s[%" PRIu64 "] is %.9g, the slope %.9g", array_names[of], i, given[i],
                found);
  }
}

static void
gradients_of_experts_and_router_are_slopes (void **state)
{
  GRand *rand = g_rand_new_with_seed (4);

  (void) state;
  for (int trial = 0; trial < N_TRIAL / 2; trial++) {
    struct layer l;
    choose (rand, &l, trial % 4 == 0);
    l.doubles = TRUE;
    l.canonical = FALSE;
    l.s.l = 1;
    layer_open (&l);
    fill (rand, &l);
    check_slopes (&l, X, DX, DXR);
    check_slopes (&l, WR, DWR, NONE);
    check_slopes (&l, W1, DW1, NONE);
    check_slopes (&l, W2, DW2, NONE);
    layer_close (&l);
  }
  g_rand_free (rand);
}

/* ----------------------------------------------------------------------------- bits */

static void
same_bits (const struct layer *a, const struct layer *b)
{
  for (uint32_t i = 0; i < N_ARRAY; i++)
    if (memcmp (a->at[i].data, b->at[i].data,
                elements_in_use (a, i) * weft_dtype_bytes (a->at[i].dtype)))
      fail_msg ("%s has other bits", array_names[i]);
}

static void
parts_together_have_the_bits_of_the_whole (void **state)
{
  GRand *rand = g_rand_new_with_seed (5);

  (void) state;
  for (int trial = 0; trial < N_TRIAL; trial++) {
    struct layer whole, split;
    choose (rand, &whole, trial % 3 == 0);
    whole.dtype = trial % 2 ? WEFT_BF16 : WEFT_FP32;
    split = whole;
    split.parts = 2 + (uint32_t) trial % 6;
    layer_open (&whole);
    layer_open (&split);
    fill (rand, &whole);
    copy_inputs (&whole, &split, 0);
    layer_run (&whole);
    layer_run (&split);
    same_bits (&whole, &split);
    layer_close (&whole);
    layer_close (&split);
  }
  g_rand_free (rand);
}

/* left += right, rounded to the type of gradients. */
static void
add_gradient (struct layer *left, const struct layer *right, enum array a)
{
  for (uint64_t i = 0; i < left->at[a].n; i++) {
    float sum = (float) element (left, a, i) + (float) element (right, a, i);
    weft_store (left->at[a].data, left->at[a].dtype, i, 1, &sum);
  }
}

/* One sequence at a time, gradients added as fold.h says. */
static void
run_sequences (const struct layer *whole, struct layer *entry, uint32_t n)
{
  uint64_t tokens = whole->s.t / n;

  for (uint32_t i = 0, top = 0; i < n; i++) {
    struct layer *l = &entry[top];
    *l = *whole;
    l->s.t = tokens;
    l->s.l = whole->s.l / n;
    l->s.r = tokens * l->s.k;
    layer_open (l);
    copy_inputs (whole, l, i * tokens);
    layer_run (l);
    uint64_t row = tokens * whole->s.h * weft_dtype_bytes (whole->dtype);
    assert_memory_equal (l->at[M].data, (const char *) whole->at[M].data + i * row, row);
    assert_memory_equal (l->at[DX].data, (const char *) whole->at[DX].data + i * row, row);
    for (uint32_t merges = weft_fold_merges (i, n); merges; merges--, top--) {
      add_gradient (&entry[top - 1], &entry[top], DW1);
      add_gradient (&entry[top - 1], &entry[top], DW2);
      layer_close (&entry[top]);
    }
    top++;
  }
}

static void
canonical_gradients_do_not_depend_on_how_many_sequences_come_at_once (void **state)
{
  GRand *rand = g_rand_new_with_seed (6);

  (void) state;
  for (int trial = 0; trial < N_TRIAL; trial++) {
    struct layer whole, entry[8];
    choose (rand, &whole, FALSE);
    whole.canonical = TRUE;
    uint32_t chunks = weft_chunks ((uint64_t) whole.model.seq_length);
    uint32_t sequences = (uint32_t) (whole.s.t / (uint64_t) whole.model.seq_length);
    whole.s.l = sequences * chunks;
    whole.dtype = trial % 2 ? WEFT_BF16 : WEFT_FP32;
    whole.grad_dtype = trial % 4 == 1 ? WEFT_BF16 : WEFT_FP32;
    layer_open (&whole);
    fill (rand, &whole);
    layer_run (&whole);
    run_sequences (&whole, entry, sequences);
    for (enum array a = DW2; a <= DW1; a += DW1 - DW2)
      for (uint64_t i = 0; i < whole.at[a].n; i++)
        if (element (&entry[0], a, i) != element (&whole, a, i))
          fail_msg ("%s[%" PRIu64 "]: %.9g by sequences, %.9g at once", array_names[a], i,
                    element (&entry[0], a, i), element (&whole, a, i));
    layer_close (&entry[0]);
    layer_close (&whole);
  }
  g_rand_free (rand);
}

/* -------------------------------------------------------------------------- by hand */

static void
route (union weft_model *m, float *logits, float *bias, int32_t *choice, float *prob)
{
  float scores[8];
  struct weft_kernel k = { .kind = WEFT_OP_MOE_ROUTE,
                           .shape = { .dim = { 1, 8, 2 } },
                           .model = m,
                           .operand = { { .data = logits, .n = 8 },
                                        { .data = bias, .n = 8 },
                                        { .data = scores, .n = 8 },
                                        { .data = choice, .n = 2, .dtype = WEFT_INT32 },
                                        { .data = prob, .n = 2 } } };

  weft_cpu_moe_route (&k, 0, 1);
}

static void
the_lower_expert_wins_a_tie_and_experts_stand_by_number (void **state)
{
  union weft_model m;
  float logits[8] = { 1, 3, 0, 3, 2, 3, 0, 0 }, prob[2];
  int32_t choice[2];

  (void) state;
  weft_table_defaults (&weft_model_table, m.at);
  route (&m, logits, NULL, choice, prob);
  assert_int_equal (choice[0], 1);
  assert_int_equal (choice[1], 3);
  assert_true (prob[0] == 0.5f && prob[1] == 0.5f);
}

static void
a_bias_changes_the_choice_and_not_the_weights (void **state)
{
  union weft_model m;
  float logits[8] = { 0 }, bias[8] = { [6] = 0.2f, [7] = 0.1f }, prob[2];
  int32_t choice[2];

  (void) state;
  weft_table_defaults (&weft_model_table, m.at);
  m.moe_router_score_function = WEFT_SCORE_SIGMOID;
  m.moe_router_topk_scaling_factor = 2.5;
  route (&m, logits, bias, choice, prob);
  assert_int_equal (choice[0], 6);
  assert_int_equal (choice[1], 7);
  assert_true (prob[0] == 1.25f && prob[1] == 1.25f);
}

static void
only_experts_of_the_best_groups_are_taken (void **state)
{
  union weft_model m;
  float logits[8] = { 5, -9, 4, 4.5f, 3, 3, 0, 0 }, prob[2]; /* groups of two; one is visited */
  int32_t choice[2];

  (void) state;
  weft_table_defaults (&weft_model_table, m.at);
  m.moe_router_num_groups = 4;
  m.moe_router_group_topk = 1;
  route (&m, logits, NULL, choice, prob);
  assert_int_equal (choice[0], 2);
  assert_int_equal (choice[1], 3);
}

static void
logits_that_are_no_numbers_choose_somebody (void **state)
{
  union weft_model m;
  float logits[8] = { NAN, NAN, NAN, NAN, NAN, NAN, NAN, NAN }, prob[2];
  int32_t choice[2];

  (void) state;
  weft_table_defaults (&weft_model_table, m.at);
  for (int pre = 0; pre < 2; pre++) {
    m.moe_router_pre_softmax = pre;
    route (&m, logits, NULL, choice, prob);
    assert_int_equal (choice[0], 0);
    assert_int_equal (choice[1], 1);
    assert_true (isnan (prob[0]));
  }
}

/* Three experts of two ranks: what came rank by rank lies expert by expert, and goes back. */
static void
rows_are_regrouped_by_expert_and_back (void **state)
{
  int64_t by_source[] = { 1, 0, 2, 2, 1, 0 }, counts[6];
  float x[] = { 10, 12, 13, 20, 21, 22 }, y[6], again[6];
  const float wanted[] = { 10, 20, 21, 22, 12, 13 };
  struct weft_kernel turn = { .shape = { .dim = { 2, 3, 1 } },
                              .operand = { { .data = by_source, .n = 6, .dtype = WEFT_INT64 },
                                           { .data = counts, .n = 6, .dtype = WEFT_INT64 } } };
  struct weft_kernel group = { .shape = { .dim = { 6, 1, 3, 2, 0 } },
                               .operand = { { .data = counts, .n = 6, .dtype = WEFT_INT64 },
                                            { .data = x, .n = 6 },
                                            { .data = y, .n = 6 } } };

  (void) state;
  weft_cpu_moe_turn (&turn, 0, 1);
  weft_cpu_moe_group (&group, 0, 1);
  assert_memory_equal (y, wanted, sizeof y);
  group.operand[1].data = y;
  group.operand[2].data = again;
  weft_cpu_moe_ungroup (&group, 0, 1);
  assert_memory_equal (again, x, sizeof x);
}

/* The sum over experts on one rank is that of two ranks with half of the experts each. */
static void
experts_of_a_token_are_added_as_ranks_with_blocks_of_them_would (void **state)
{
  float x[] = { 1, 0x1p-24f, 0x1p-24f, -1 }, y;
  int32_t row[] = { 0, 1, 2, 3 }, choice[] = { 0, 4, 5, 7 };
  struct weft_kernel k = { .shape = { .dim = { 1, 1, 4, 4, 8 } },
                           .canonical = TRUE,
                           .operand = { { .data = x, .n = 4 },
                                        { .data = row, .n = 4, .dtype = WEFT_INT32 },
                                        { .data = choice, .n = 4, .dtype = WEFT_INT32 },
                                        { .data = &y, .n = 1 } } };

  (void) state;
  weft_cpu_moe_unpermute (&k, 0, 1);
  assert_true (y == 1 + ((0x1p-24f + 0x1p-24f) - 1));
  k.canonical = FALSE;
  weft_cpu_moe_unpermute (&k, 0, 1);
  assert_true (y == 0);
}

/* ---------------------------------------------------------------- the kernels of CUDA, emulated */

enum { N_CUDA_TRIAL = 5 };

/* Widths that tensor cores take, and others. */
static void
choose_for_cuda (GRand *rand, struct layer *l, int trial)
{
  choose (rand, l, trial % 2);
  l->canonical = FALSE;
  l->cuda = TRUE;
  l->s.l = 1;
  l->dtype = (enum weft_dtype) pick (rand, "0 1 2");
  l->grad_dtype = g_rand_boolean (rand) ? l->dtype : WEFT_FP32;
  if (trial % 4 == 3)
    return;
  l->s.h = (uint64_t) pick (rand, "8 40 136");
  l->s.f = (uint64_t) pick (rand, "16 72");
}

static void
run_and_compare_cuda (struct layer *l, GRand *rand, unsigned *compared)
{
  static const double tolerance[] = { [WEFT_FP32] = 4e-5, [WEFT_BF16] = 0.06, [WEFT_FP16] = 0.01 };
  struct layer other = *l, reference = *l;

  reference.doubles = TRUE;
  other.backwards = TRUE;
  layer_open (l);
  layer_open (&other);
  layer_open (&reference);
  fill (rand, l);
  copy_inputs (l, &other, 0);
  copy_inputs (l, &reference, 0);
  layer_run (l);
  layer_run (&other);
  layer_run (&reference);
  same_bits (l, &other);
  if (same_choice (l, &reference)) {
    compare (l, &reference, tolerance[l->dtype]);
    ++*compared;
  }
  layer_close (l);
  layer_close (&other);
  layer_close (&reference);
}

static void
a_layer_of_experts_on_cuda_does_what_its_reference_does (void **state)
{
  GRand *rand = g_rand_new_with_seed (7);
  unsigned compared = 0;

  (void) state;
  for (int trial = 0; trial < 2 * N_CUDA_TRIAL; trial++) {
    struct layer l;
    choose_for_cuda (rand, &l, trial);
    run_and_compare_cuda (&l, rand, &compared);
  }
  assert_true (compared > N_CUDA_TRIAL);
  g_rand_free (rand);
}

/* An operand with random content; counts make `rows` rows at most. */
static struct weft_operand
random_operand (GRand *rand, uint64_t n, enum weft_dtype dtype)
{
  struct weft_operand o = { g_malloc0 (n * 8), n, (uint8_t) dtype, 0 };

  for (uint64_t i = 0; i < n && dtype <= WEFT_FP16; i++) {
    float value = (float) g_rand_double_range (rand, -1, 1);
    weft_store (o.data, dtype, i, 1, &value);
  }
  return o;
}

static struct weft_operand
random_counts (GRand *rand, uint64_t n, uint64_t most)
{
  struct weft_operand o = random_operand (rand, n, WEFT_INT64);

  for (uint64_t i = 0; i < n; i++)
    ((int64_t *) o.data)[i] = g_rand_int_range (rand, 0, (gint32) most + 1);
  return o;
}

/* The operands after the counts; k's shape is set. */
static void
check_cuda (struct weft_kernel *k, double tolerance)
{
  cuda_case_check (k, tolerance);
  cuda_case_free (k);
}

static const union weft_model no_model;

enum { EXPERTS = 5, SOURCES = 6, MOST_ROWS = 3 };

static void
rows_of_several_sources_lie_on_cuda_where_they_lie_on_the_cpu (void **state)
{
  static const enum weft_op_kind kinds[] = { WEFT_OP_MOE_GROUP, WEFT_OP_MOE_UNGROUP };
  static const uint64_t columns[] = { 1, 16, 21 }, inner[] = { 0, 1, 2, 6 };
  GRand *rand = g_rand_new_with_seed (8);

  (void) state;
  for (unsigned i = 0; i < 48; i++) {
    enum weft_dtype dtype = (enum weft_dtype) (i % 3);
    uint64_t rows = EXPERTS * SOURCES * MOST_ROWS, wide = columns[i / 2 % 3];
    struct weft_kernel k = { .kind = kinds[i % 2],
                             .shape = { .dim = { rows, wide, EXPERTS, SOURCES, i / 24 * MOST_ROWS,
                                                 inner[i / 6 % 4] } },
                             .model = &no_model };
    k.operand[0] = random_counts (rand, EXPERTS * SOURCES * 2, 1);
    k.operand[1] = random_operand (rand, rows * wide, dtype);
    k.operand[2] = random_operand (rand, rows * wide, dtype);
    check_cuda (&k, 0);
  }
  for (unsigned i = 0; i < 2; i++) {
    struct weft_kernel k = { .kind = WEFT_OP_MOE_TURN,
                             .shape = { .dim = { 3, 7, 1 + i } },
                             .model = &no_model };
    k.operand[0] = random_counts (rand, 21 * (1 + i), 9);
    k.operand[1] = random_counts (rand, 21 * (1 + i), 9);
    check_cuda (&k, 0);
  }
  g_rand_free (rand);
}

static void
weights_of_rows_on_cuda_are_those_of_the_cpu (void **state)
{
  static const enum weft_op_kind kinds[] = { WEFT_OP_MOE_WEIGH, WEFT_OP_MOE_WEIGH_BWD };
  GRand *rand = g_rand_new_with_seed (9);

  (void) state;
  for (unsigned i = 0; i < 12; i++) {
    enum weft_dtype dtype = (enum weft_dtype) (i / 2 % 3);
    uint64_t rows = EXPERTS * MOST_ROWS, wide = i < 6 ? 40 : 7;
    struct weft_kernel k = { .kind = kinds[i % 2],
                             .shape = { .dim = { rows, wide, EXPERTS,
                                                 i % 4 == 3 ? MOST_ROWS : 0 } },
                             .model = &no_model };
    k.operand[0] = random_operand (rand, rows * wide, dtype);
    k.operand[1] = random_operand (rand, rows, dtype);
    k.operand[2] = random_counts (rand, EXPERTS, MOST_ROWS);
    for (uint32_t o = 3; o < 5 + i % 2; o++)
      k.operand[o] = random_operand (rand, o == 5 ? rows : rows * wide, dtype);
    check_cuda (&k, 1e-6);
  }
  g_rand_free (rand);
}

static void
tallies_on_cuda_are_those_of_the_cpu (void **state)
{
  GRand *rand = g_rand_new_with_seed (10);
  struct weft_kernel k = { .kind = WEFT_OP_MOE_TALLY,
                           .shape = { .dim = { 300, 40, 3 } },
                           .model = &no_model };

  (void) state;
  k.operand[0] = random_operand (rand, 900, WEFT_INT32);
  k.operand[1] = random_operand (rand, 40, WEFT_FP32);
  for (uint64_t i = 0; i < 900; i++)
    ((int32_t *) k.operand[0].data)[i] = g_rand_int_range (rand, 0, 40);
  for (uint64_t e = 0; e < 40; e++)
    ((float *) k.operand[1].data)[e] = (float) e;
  check_cuda (&k, 0);
  g_rand_free (rand);
}

/* Several tiles of rows, of columns and of terms, experts with none and a biased router. */
static void
products_of_many_rows_on_cuda_are_those_of_the_cpu (void **state)
{
  static const enum weft_op_kind kinds[] = { WEFT_OP_MOE_MATMUL, WEFT_OP_MOE_MATMUL_DGRAD,
                                             WEFT_OP_MOE_MATMUL_WGRAD };
  const uint64_t m = 300, n = 72, wide = 136;
  GRand *rand = g_rand_new_with_seed (11);

  (void) state;
  for (unsigned i = 0; i < 6; i++) {
    enum weft_dtype dtype = i < 3 ? WEFT_BF16 : WEFT_FP32;
    struct weft_kernel k = { .kind = kinds[i % 3],
                             .shape = { .dim = { m, n, wide, EXPERTS, 0 } },
                             .model = &no_model };
    gboolean sums = kinds[i % 3] == WEFT_OP_MOE_MATMUL_WGRAD;
    uint64_t x = kinds[i % 3] == WEFT_OP_MOE_MATMUL ? wide : n;
    k.operand[0] = random_operand (rand, m * x, dtype);
    k.operand[1] = random_operand (rand, sums ? m * wide : EXPERTS * n * wide, dtype);
    k.operand[2] = random_operand (rand, EXPERTS, WEFT_INT64);
    k.operand[3] = random_operand (rand, sums ? EXPERTS * n * wide : m * (n + wide - x),
                                   sums ? WEFT_FP32 : dtype);
    k.operand[3].accumulate = sums;
    memcpy (k.operand[2].data, (const int64_t[]){ 3, 0, 139, 17, 140 }, EXPERTS * 8);
    check_cuda (&k, 4e-5);
  }
  g_rand_free (rand);
}

int
main (void)
{
  const struct CMUnitTest tests[] = {
    cmocka_unit_test (a_layer_of_experts_does_what_its_reference_does),
    cmocka_unit_test (tokens_over_capacity_are_dropped_as_in_the_reference),
    cmocka_unit_test (gradients_of_experts_and_router_are_slopes),
    cmocka_unit_test (parts_together_have_the_bits_of_the_whole),
    cmocka_unit_test (canonical_gradients_do_not_depend_on_how_many_sequences_come_at_once),
    cmocka_unit_test (the_lower_expert_wins_a_tie_and_experts_stand_by_number),
    cmocka_unit_test (a_bias_changes_the_choice_and_not_the_weights),
    cmocka_unit_test (only_experts_of_the_best_groups_are_taken),
    cmocka_unit_test (logits_that_are_no_numbers_choose_somebody),
    cmocka_unit_test (rows_are_regrouped_by_expert_and_back),
    cmocka_unit_test (experts_of_a_token_are_added_as_ranks_with_blocks_of_them_would),
    cmocka_unit_test (a_layer_of_experts_on_cuda_does_what_its_reference_does),
    cmocka_unit_test (rows_of_several_sources_lie_on_cuda_where_they_lie_on_the_cpu),
    cmocka_unit_test (weights_of_rows_on_cuda_are_those_of_the_cpu),
    cmocka_unit_test (tallies_on_cuda_are_those_of_the_cpu),
    cmocka_unit_test (products_of_many_rows_on_cuda_are_those_of_the_cpu),
  };
  return cmocka_run_group_tests (tests, NULL, NULL);
}
