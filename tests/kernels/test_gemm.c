/* Matrix products and attention: equal to the reference within rounding, and the same bits for
 * every division into parts. */
#include "core/base/fold.h"
#include "kernels/attention.h"
#include "kernels/float.h"
#include "kernels/math.h"
#include "tests/runner/runner.h"
#include <float.h>

/* ------------------------------------------------------------------------- the cases */

/* An op of these tests: its kernel and its reference, which operands it writes, and to which of
 * these operands it may add. */
struct op {
  const char *name;
  void (*cpu) (const struct weft_kernel *k, uint32_t part, uint32_t parts);
  void (*reference) (const struct weft_kernel *k);
  uint64_t (*extent) (const struct weft_kernel *k, uint32_t operand);
  /* bit masks of operands: `written` by the op, may be `added` to, stored in `fp32` */
  uint32_t n, written, added, fp32;
};

static const struct op matmul = {
  "matmul", weft_cpu_matmul, weft_ref_matmul, weft_extent_matmul, 4, 1 << 3, 0, 0
};
static const struct op dgrad = { "matmul_dgrad",
                                 weft_cpu_matmul_dgrad,
                                 weft_ref_matmul_dgrad,
                                 weft_extent_matmul_dgrad,
                                 3,
                                 1 << 2,
                                 0,
                                 0 };
static const struct op wgrad = { "matmul_wgrad",
                                 weft_cpu_matmul_wgrad,
                                 weft_ref_matmul_wgrad,
                                 weft_extent_matmul_wgrad,
                                 4,
                                 1 << 2 | 1 << 3,
                                 1 << 2 | 1 << 3,
                                 0 };
static const struct op attention = {
  "attention", weft_cpu_attention, weft_ref_attention, weft_extent_attention, 3, 1 << 1 | 1 << 2, 0,
  1 << 2
};
static const struct op attention_bwd = { "attention_bwd",
                                         weft_cpu_attention_bwd,
                                         weft_ref_attention_bwd,
                                         weft_extent_attention_bwd,
                                         5,
                                         1 << 4,
                                         0,
                                         1 << 2 };

/* One kernel call, with operands in the types of the kernel (`k`) and in double (`exact`). */
struct trial {
  const struct op *op;
  union weft_model model;
  struct weft_kernel k, exact;
};

static uint64_t
operand_bytes (const struct weft_operand *o)
{
  return o->n * weft_dtype_bytes (o->dtype);
}

static void
set_operand (struct trial *t, uint32_t i, const double *value)
{
  struct weft_operand *o = &t->k.operand[i], *e = &t->exact.operand[i];

  for (uint64_t j = 0; j < o->n; j++) {
    float room, f = (float) value[j];
    weft_store (o->data, o->dtype, j, 1, &f);
    ((double *) e->data)[j] = *weft_floats (o->data, o->dtype, j, 1, &room);
  }
}

static void
fill_operand (struct trial *t, uint32_t i, GRand *random)
{
  uint64_t n = t->k.operand[i].n;
  g_autofree double *value = g_new (double, n + 1);

  for (uint64_t j = 0; j < n; j++)
    value[j] = g_rand_double_range (random, -1, 1);
  set_operand (t, i, value);
}

static void
add_operand (struct trial *t, uint32_t i, enum weft_dtype dtype, GRand *random)
{
  struct weft_operand *o = &t->k.operand[i];

  o->n = t->op->extent (&t->k, i);
  o->dtype = t->op->fp32 >> i & 1 ? WEFT_FP32 : dtype;
  o->accumulate = (t->op->added >> i & 1) && g_rand_boolean (random);
  o->data = g_malloc0 (operand_bytes (o) + 1);
  t->exact.operand[i] = *o;
  t->exact.operand[i].data = g_new0 (double, o->n + 1);
  fill_operand (t, i, random);
}

static struct trial *
trial_new (const struct op *op, const uint64_t dim[5], enum weft_dtype dtype, GRand *random)
{
  struct trial *t = g_new0 (struct trial, 1);

  t->op = op;
  memcpy (t->k.shape.dim, dim, 5 * sizeof *dim);
  t->k.model = &t->model;
  t->exact = t->k;
  for (uint32_t i = 0; i < op->n; i++)
    add_operand (t, i, dtype, random);
  return t;
}

static void
trial_free (struct trial *t)
{
  for (uint32_t i = 0; i < t->op->n; i++) {
    g_free (t->k.operand[i].data);
    g_free (t->exact.operand[i].data);
  }
  g_free (t);
}
typedef struct trial trial;
G_DEFINE_AUTOPTR_CLEANUP_FUNC (trial, trial_free)

/* Returns a copy of an operand's elements. The caller frees it. */
static void *
keep (const struct trial *t, uint32_t i)
{
  return g_memdup2 (t->k.operand[i].data, operand_bytes (&t->k.operand[i]) + 1);
}

static struct trial *
matmul_trial (const struct op *op, enum weft_dtype dtype, GRand *random)
{
  const uint64_t dim[5] = { (uint64_t) g_rand_int_range (random, 1, 150),
                            (uint64_t) g_rand_int_range (random, 1, 150),
                            (uint64_t) g_rand_int_range (random, 1, 150) };

  return trial_new (op, dim, dtype, random);
}

/* Returns a random attention call: sequences of one or several blocks, groups of 1, 2, 4 or 8
 * heads, with or without a window. */
static struct trial *
attention_trial (const struct op *op, enum weft_dtype dtype, GRand *random)
{
  uint64_t groups = (uint64_t) g_rand_int_range (random, 1, 3);
  uint64_t longest = g_rand_boolean (random) ? 40 : 300;
  const uint64_t dim[5] = { (uint64_t) g_rand_int_range (random, 1, 3),
                            (uint64_t) g_rand_int_range (random, 1, (int) longest),
                            groups << g_rand_int_range (random, 0, 4), groups,
                            (uint64_t) g_rand_int_range (random, 1, 81) };
  struct trial *t = trial_new (op, dim, dtype, random);

  if (g_rand_boolean (random))
    t->k.shape.dim[5] = t->exact.shape.dim[5] =
        (uint64_t) g_rand_int_range (random, 1, (int) longest + 10);
  return t;
}

/* Computes o and lse by the forward reference, as operands of a backward call. */
static void
forward_first (struct trial *t, GRand *random)
{
  g_autoptr (trial) forward = trial_new (&attention, t->k.shape.dim, WEFT_FP32, random);

  forward->exact.shape.dim[5] = t->k.shape.dim[5];
  memcpy (forward->exact.operand[0].data, t->exact.operand[0].data,
          t->k.operand[0].n * sizeof (double));
  weft_ref_attention (&forward->exact);
  set_operand (t, 1, forward->exact.operand[1].data);
  set_operand (t, 2, forward->exact.operand[2].data);
}

static struct trial *
random_trial (const struct op *op, enum weft_dtype dtype, GRand *random)
{
  if (op != &attention && op != &attention_bwd)
    return matmul_trial (op, dtype, random);
  struct trial *t = attention_trial (op, dtype, random);
  if (op == &attention_bwd)
    forward_first (t, random);
  return t;
}

/* Returns the number of terms of the longest sum in an op, which bounds its rounding error. */
static double
most_terms (const struct trial *t)
{
  uint64_t most = 1;

  for (unsigned i = 0; i < 5; i++)
    most = MAX (most, t->k.shape.dim[i]);
  return most * (t->op == &attention_bwd ? t->k.shape.dim[2] / t->k.shape.dim[3] : 1);
}

/* ------------------------------------------------------------------------ right numbers */

static void
compare_operand (const struct trial *t, uint32_t i)
{
  const struct weft_operand *o = &t->k.operand[i];
  const double *want = t->exact.operand[i].data;
  double scale = 1, room = o->dtype == WEFT_BF16 ? 0x1p-8 : 0;

  for (uint64_t j = 0; j < o->n; j++)
    scale = MAX (scale, fabs (want[j]));
  double limit = 8 * FLT_EPSILON * sqrt (most_terms (t)) * scale;
  for (uint64_t j = 0; j < o->n; j++) {
    float one, found = *weft_floats (o->data, o->dtype, j, 1, &one);
    if (!(fabs (found - want[j]) <= limit + room * fabs (want[j])))
      fail_msg ("%s, operand %u, element %" G_GUINT64_FORMAT ": %.9g, wanted %.9g within %.2g",
                t->op->name, i, j, found, want[j], limit);
  }
}

static void
compare_with_reference (const struct op *op, int times)
{
  g_autoptr (GRand) random = g_rand_new_with_seed (7);

  for (int i = 0; i < times; i++) {
    g_autoptr (trial) t = random_trial (op, i % 2 ? WEFT_BF16 : WEFT_FP32, random);
    op->cpu (&t->k, 0, 1);
    op->reference (&t->exact);
    for (uint32_t o = 0; o < op->n; o++)
      if (op->written >> o & 1)
        compare_operand (t, o);
  }
}

static void
products_are_those_of_the_reference (void **state)
{
  (void) state;
  compare_with_reference (&matmul, 40);
  compare_with_reference (&dgrad, 40);
  compare_with_reference (&wgrad, 40);
}

static void
attention_is_that_of_the_reference (void **state)
{
  (void) state;
  compare_with_reference (&attention, 40);
  compare_with_reference (&attention_bwd, 30);
}

static void
compare_one (const struct op *op, const uint64_t dim[5], int64_t window)
{
  g_autoptr (GRand) random = g_rand_new_with_seed (3);
  g_autoptr (trial) t = trial_new (op, dim, WEFT_FP32, random);

  t->k.shape.dim[5] = t->exact.shape.dim[5] = (uint64_t) window;
  if (op == &attention_bwd)
    forward_first (t, random);
  op->cpu (&t->k, 0, 1);
  op->reference (&t->exact);
  for (uint32_t o = 0; o < op->n; o++)
    if (op->written >> o & 1)
      compare_operand (t, o);
}

static void
large_products_are_made_of_blocks (void **state)
{
  (void) state;
  compare_one (&matmul, (const uint64_t[5]){ 300, 500, 700 }, 0);
  compare_one (&dgrad, (const uint64_t[5]){ 500, 700, 300 }, 0);
  compare_one (&wgrad, (const uint64_t[5]){ 700, 300, 500 }, 0);
}

/* Attention over several blocks of sequence and head width, with windows that end at a block
 * boundary, one key before it, and one key after it. */
static void
wide_heads_and_long_sequences_are_made_of_blocks (void **state)
{
  static const uint64_t wide[5] = { 1, 150, 2, 1, 600 }, length[5] = { 1, 400, 2, 2, 8 };
  static const int64_t windows[] = { 0, 1, 2, 63, 64, 65, 66, 129, 130, 399 };

  (void) state;
  for (unsigned w = 0; w < G_N_ELEMENTS (windows); w++) {
    compare_one (&attention, length, windows[w]);
    compare_one (&attention_bwd, length, windows[w]);
  }
  for (int64_t window = 0; window <= 100; window += 100) {
    compare_one (&attention, wide, window);
    compare_one (&attention_bwd, wide, window);
  }
}

static void
an_absent_bias_is_no_bias (void **state)
{
  g_autoptr (GRand) random = g_rand_new_with_seed (5);
  g_autoptr (trial) forward = matmul_trial (&matmul, WEFT_BF16, random);
  g_autoptr (trial) backward = matmul_trial (&wgrad, WEFT_BF16, random);

  (void) state;
  g_clear_pointer (&forward->k.operand[2].data, g_free);
  g_clear_pointer (&forward->exact.operand[2].data, g_free);
  g_clear_pointer (&backward->k.operand[3].data, g_free);
  g_clear_pointer (&backward->exact.operand[3].data, g_free);
  weft_cpu_matmul (&forward->k, 0, 1);
  weft_ref_matmul (&forward->exact);
  compare_operand (forward, 3);
  weft_cpu_matmul_wgrad (&backward->k, 0, 1);
  weft_ref_matmul_wgrad (&backward->exact);
  compare_operand (backward, 2);
}

static void
sums_over_nothing_are_zero (void **state)
{
  g_autoptr (GRand) random = g_rand_new_with_seed (5);
  g_autoptr (trial) t = trial_new (&wgrad, (const uint64_t[5]){ 0, 9, 11 }, WEFT_FP32, random);

  (void) state;
  t->model.seq_length = 4;
  t->k.operand[2].accumulate = t->k.operand[3].accumulate = FALSE;
  for (int canonical = 0; canonical <= 1; canonical++) {
    t->k.canonical = canonical;
    fill_operand (t, 2, random);
    weft_cpu_matmul_wgrad (&t->k, 0, 1);
    for (unsigned i = 0; i < 9 * 11; i++)
      assert_true (((float *) t->k.operand[2].data)[i] == 0);
  }
}

/* Returns a loss whose gradient with respect to the attention output is `gradient`: the dot product
 * of both. */
static double
loss (const struct trial *forward, const double *gradient)
{
  const double *o = forward->exact.operand[1].data;
  double sum = 0;

  weft_ref_attention (&forward->exact);
  for (uint64_t i = 0; i < forward->k.operand[1].n; i++)
    sum += o[i] * gradient[i];
  return sum;
}

static void
the_reference_of_attention_has_the_slopes_of_its_forward (void **state)
{
  g_autoptr (GRand) random = g_rand_new_with_seed (11);
  static const uint64_t dim[5] = { 2, 7, 4, 2, 3 };
  const double step = 1e-5;

  (void) state;
  for (unsigned window = 0; window < 6; window += 3) {
    g_autoptr (trial) forward = trial_new (&attention, dim, WEFT_FP32, random);
    g_autoptr (trial) back = trial_new (&attention_bwd, dim, WEFT_FP32, random);
    forward->exact.shape.dim[5] = back->exact.shape.dim[5] = window;
    double *qkv = forward->exact.operand[0].data;
    weft_ref_attention (&forward->exact);
    for (uint32_t i = 0; i < 3; i++)
      memcpy (back->exact.operand[i].data, forward->exact.operand[i].data,
              back->k.operand[i].n * sizeof (double));
    weft_ref_attention_bwd (&back->exact);
    for (uint64_t i = 0; i < back->k.operand[0].n; i++) {
      double at = qkv[i], *slope = back->exact.operand[4].data;
      qkv[i] = at + step;
      double above = loss (forward, back->exact.operand[3].data);
      qkv[i] = at - step;
      double below = loss (forward, back->exact.operand[3].data);
      qkv[i] = at;
      assert_true (fabs ((above - below) / (2 * step) - slope[i]) < 1e-8);
    }
  }
}

/* ---------------------------------------------------------------------- the same bits */

/* Runs the call again, in `parts` parts, from the operands `start`, with the matmul tile `tile`
 * unless this is NULL. Every operand must then be bitwise equal to the operand in `found`. */
static void
expect_again (struct trial *t, void *const *start, void *const *found, uint32_t parts,
              const struct weft_tile *tile)
{
  for (uint32_t o = 0; o < t->op->n; o++)
    memcpy (t->k.operand[o].data, start[o], operand_bytes (&t->k.operand[o]));
  for (uint32_t part = parts; part-- > 0;) {
    const struct weft_attention call = { &t->k, tile, part, parts };
    if (!tile)
      t->op->cpu (&t->k, part, parts);
    else if (t->op == &attention)
      weft_attention_forward (&call);
    else
      weft_attention_backward (&call);
  }
  for (uint32_t o = 0; o < t->op->n; o++)
    assert_memory_equal (t->k.operand[o].data, found[o], operand_bytes (&t->k.operand[o]));
}

static void
expect_same_bits (struct trial *t)
{
  void *start[WEFT_MOST_OPERANDS], *found[WEFT_MOST_OPERANDS];
  static const uint32_t parts[] = { 1, 2, 3, 5, 200 };

  for (uint32_t o = 0; o < t->op->n; o++)
    start[o] = keep (t, o);
  t->op->cpu (&t->k, 0, 1);
  for (uint32_t o = 0; o < t->op->n; o++)
    found[o] = keep (t, o);
  for (unsigned i = 0; i < G_N_ELEMENTS (parts); i++)
    expect_again (t, start, found, parts[i], NULL);
  for (uint32_t i = 0; (t->op == &attention || t->op == &attention_bwd) && i < weft_n_tiles; i++)
    if (weft_tiles[i].supported ())
      expect_again (t, start, found, 1, &weft_tiles[i]);
  for (uint32_t o = 0; o < t->op->n; o++) {
    g_free (start[o]);
    g_free (found[o]);
  }
}

static void
shares_and_vector_units_do_not_show (void **state)
{
  static const struct op *const ops[] = { &matmul, &dgrad, &wgrad, &attention, &attention_bwd };
  g_autoptr (GRand) random = g_rand_new_with_seed (13);

  (void) state;
  for (unsigned o = 0; o < G_N_ELEMENTS (ops); o++)
    for (int i = 0; i < 8; i++) {
      g_autoptr (trial) t = random_trial (ops[o], i % 2 ? WEFT_BF16 : WEFT_FP32, random);
      t->model.seq_length = 1;
      t->k.canonical = i % 4 == 3;
      expect_same_bits (t);
    }
}

/* Returns the sum over the terms of one leaf (kernels/leaves.h), added in the chain that
 * kernels/gemm.h defines. */
static float
chain (const struct weft_gemm *g, uint32_t leaf, uint64_t i, uint64_t j)
{
  float sum = 0, room;

  for (uint32_t s = 0; s < WEFT_LEAF_SEGMENTS; s++) {
    struct weft_range terms = weft_leaves_segment (&g->terms, leaf, s);
    for (uint64_t t = terms.begin; t < terms.end; t++)
      sum = fmaf (*weft_floats (g->a.data, g->a.dtype, i * g->a.along + t * g->a.sum, 1, &room),
                  ((const float *) g->b.data)[j * g->b.along + t * g->b.sum], sum);
  }
  return sum;
}

/* Returns the sum of the leaves [first, first + n), added along the tree of core/base/fold.h. A
 * leaf is the sum of some of the terms. */
static float
node (const struct weft_gemm *g, uint32_t first, uint32_t n, const uint64_t at[2])
{
  if (n == 1)
    return chain (g, first, at[0], at[1]);
  uint32_t left = weft_fold_split (n);
  return node (g, first, left, at) + node (g, first + left, n - left, at);
}

static void
expect_chains (const struct weft_gemm *g)
{
  const float *c = g->c.data;

  for (uint64_t i = g->first; i < g->last; i++)
    for (uint64_t j = 0; j < g->columns; j++) {
      float want = node (g, 0, g->terms.n, (const uint64_t[]){ i, j });
      assert_memory_equal (&c[i * g->columns + j], &want, sizeof want);
    }
}

static void
every_element_is_a_tree_of_chains_on_every_vector_unit (void **state)
{
  static const struct {
    uint32_t n, zigzag;
    uint64_t tail;
  } forms[] = { { 1, 0, 0 }, { 8, 0, 0 }, { 4, 0, 60 }, { 2, 0, 531 / 2 / 2 * 2 }, { 8, 4, 0 } };
  g_autoptr (GRand) random = g_rand_new_with_seed (17);
  enum { M = 37, N = 70, K = 531 };
  g_autofree float *a = g_new (float, M *K), *b = g_new (float, N *K), *c = g_new (float, M *N);
  g_autofree uint16_t *half = g_new (uint16_t, M * K);

  (void) state;
  for (unsigned i = 0; i < M * K; i++)
    half[i] = weft_bf16_round (a[i] = (float) g_rand_double_range (random, -1, 1));
  for (unsigned i = 0; i < N * K; i++)
    b[i] = (float) g_rand_double_range (random, -1, 1);
  for (unsigned form = 0; form < 8; form++)
    for (uint32_t i = 0; i < weft_n_tiles; i++) {
      unsigned dealt = (form + i) % G_N_ELEMENTS (forms);
      struct weft_gemm g = {
        .a = { form & 1 ? (void *) half : a, form & 2 ? K : 1, form & 2 ? 1 : M,
               form & 1 ? WEFT_BF16 : WEFT_FP32 },
        .b = { b, form & 4 ? K : 1, form & 4 ? 1 : N, WEFT_FP32 },
        .c = { .data = c, .row = N, .dtype = WEFT_FP32 },
        .last = M,
        .columns = N,
        .terms = weft_leaves_dealt (K, forms[dealt].n, forms[dealt].tail),
        .tile = &weft_tiles[i],
      };
      g.terms.zigzag = forms[dealt].zigzag;
      if (weft_tiles[i].supported ()) {
        weft_gemm (&g);
        expect_chains (&g);
      }
    }
}

/* As with tensor parallelism, each rank sums its share of the terms, and the sums of the ranks are
 * added in pairs. The result must be bitwise equal to the result of one rank that sums all
 * terms. */
static void
ranks_that_share_the_terms_meet_in_the_bits_of_one (void **state)
{
  g_autoptr (GRand) random = g_rand_new_with_seed (23);
  enum { M = 9, N = 33, FIRST = 64, TAIL = 24, K = FIRST + 2 * TAIL, LEAVES = 8 };
  g_autofree float *x = g_new (float, M *K), *w = g_new (float, N *K), *all = g_new (float, M *N);

  (void) state;
  for (unsigned i = 0; i < M * K; i++)
    x[i] = (float) g_rand_double_range (random, -1, 1);
  for (unsigned i = 0; i < N * K; i++)
    w[i] = (float) g_rand_double_range (random, -1, 1);
  struct weft_gemm g = { .a = { x, K, 1, WEFT_FP32 },
                         .b = { w, K, 1, WEFT_FP32 },
                         .c = { .data = all, .row = N, .dtype = WEFT_FP32 },
                         .last = M,
                         .columns = N,
                         .terms = weft_leaves_dealt (K, LEAVES, TAIL) };
  weft_gemm (&g);
  for (uint32_t ranks = 2; ranks <= LEAVES; ranks *= 2) {
    g_autofree float *part = g_new (float, M *N *LEAVES);
    for (uint32_t r = 0; r < ranks; r++) {
      struct weft_gemm mine = g;
      mine.c.data = part + r * M * N;
      mine.terms = g.terms;
      mine.terms.n = LEAVES / ranks;
      for (uint32_t s = 0; s < WEFT_LEAF_SEGMENTS; s++)
        mine.terms.segment[s].begin += r * mine.terms.n * mine.terms.segment[s].share;
      weft_gemm (&mine);
    }
    for (uint32_t n = ranks; n > 1; n /= 2)
      for (uint32_t i = 0; i < n / 2 * M * N; i++) {
        uint32_t pair = i / (M * N), e = i % (M * N);
        part[i] = part[2 * pair * M * N + e] + part[(2 * pair + 1) * M * N + e];
      }
    assert_memory_equal (part, all, M * N * sizeof *part);
  }
}

static void
a_row_alone_is_the_same_row (void **state)
{
  g_autoptr (GRand) random = g_rand_new_with_seed (19);
  static const struct op *const ops[] = { &matmul, &dgrad };

  (void) state;
  for (unsigned o = 0; o < G_N_ELEMENTS (ops); o++)
    for (int i = 0; i < 10; i++) {
      g_autoptr (trial) t = matmul_trial (ops[o], i % 2 ? WEFT_BF16 : WEFT_FP32, random);
      uint32_t last = t->op->n - 1;
      struct weft_operand *x = &t->k.operand[0], *y = &t->k.operand[last];
      uint64_t rows = t->k.shape.dim[0], row = rows - 1;
      t->op->cpu (&t->k, 0, 1);
      g_autofree char *found = keep (t, last);
      void *data[] = { x->data, y->data };
      t->k.shape.dim[0] = 1;
      x->data = (char *) x->data + row * (operand_bytes (x) / rows);
      memset (y->data, 0, operand_bytes (y));
      t->op->cpu (&t->k, 0, 1);
      assert_memory_equal (y->data, found + row * (operand_bytes (y) / rows),
                           operand_bytes (y) / rows);
      x->data = data[0];
    }
}

/* Runs the last sequence of a batch alone, and again cut after CUT tokens. The outputs must be the
 * same, because a query sees neither other sequences nor later keys. */
static void
attention_does_not_see_other_sequences_or_later_tokens (void **state)
{
  g_autoptr (GRand) random = g_rand_new_with_seed (23);
  enum { BATCH = 2, LENGTH = 270, CUT = 141, HEADS = 2, WIDTH = 24 };
  static const uint64_t dim[5] = { BATCH, LENGTH, HEADS, 1, WIDTH };
  g_autoptr (trial) t = trial_new (&attention, dim, WEFT_FP32, random);
  g_autofree float *o = NULL, *lse = NULL;

  (void) state;
  weft_cpu_attention (&t->k, 0, 1);
  o = keep (t, 1);
  lse = keep (t, 2);
  struct weft_kernel one = t->k;
  one.shape.dim[0] = 1;
  one.operand[0].data = (float *) one.operand[0].data + LENGTH * (HEADS + 2) * WIDTH;
  for (uint64_t length = LENGTH; length >= CUT; length -= LENGTH - CUT) {
    one.shape.dim[1] = length;
    weft_cpu_attention (&one, 0, 1);
    assert_memory_equal (one.operand[1].data, o + LENGTH * HEADS * WIDTH,
                         length * HEADS * WIDTH * sizeof (float));
    for (unsigned h = 0; h < HEADS; h++)
      assert_memory_equal ((float *) one.operand[2].data + h * length, lse + (HEADS + h) * LENGTH,
                           length * sizeof (float));
  }
}

/* -------------------------------------------------------------------- canonical order */

/* Adds the outputs of n sequences along the tree of core/base/fold.h. Each sequence is a kernel
 * call of its own (tests/kernels/test_context.c tests the chunks of a sequence). `at`: where the
 * operands of the first sequence begin. The sum is in `node`, in fp32, rounded to the type of the
 * operand. */
static void
fold_sequences (struct trial *one, char *const at[2], uint32_t n, uint32_t output, float *node)
{
  struct weft_operand *o = &one->k.operand[output];
  g_autofree float *right = g_new (float, o->n);

  if (n == 1) {
    one->k.operand[0].data = at[0];
    one->k.operand[1].data = at[1];
    weft_cpu_matmul_wgrad (&one->k, 0, 1);
    const float *sum = weft_floats (o->data, o->dtype, 0, o->n, node);
    memmove (node, sum, o->n * sizeof *node);
    return;
  }
  uint32_t split = weft_fold_split (n);
  const uint64_t *dim = one->k.shape.dim;
  uint64_t bytes = weft_dtype_bytes (o->dtype) * dim[0] * split;
  char *const middle[2] = { at[0] + bytes * dim[1], at[1] + bytes * dim[2] };
  fold_sequences (one, at, split, output, node);
  fold_sequences (one, middle, n - split, output, right);
  for (uint64_t i = 0; i < o->n; i++)
    node[i] += right[i];
  weft_round (o->dtype, o->n, node);
}

static void
expect_fold (struct trial *all, uint32_t sequences, uint32_t output, const void *before,
             const void *found)
{
  struct weft_operand *o = &all->k.operand[output];
  g_autofree float *node = g_new (float, o->n), *room = g_new (float, o->n);
  char *const at[2] = { all->k.operand[0].data, all->k.operand[1].data };
  struct trial one = *all;

  one.k.shape.dim[0] /= sequences;
  one.k.operand[2].accumulate = one.k.operand[3].accumulate = FALSE;
  fold_sequences (&one, at, sequences, output, node);
  const float *old = weft_floats (before, o->dtype, 0, o->n, room);
  for (uint64_t i = 0; i < o->n && o->accumulate; i++)
    node[i] += old[i];
  weft_store (o->data, o->dtype, 0, o->n, node);
  assert_memory_equal (o->data, found, operand_bytes (o));
}

static void
expect_canonical (uint32_t sequences, uint64_t length, enum weft_dtype dtype, GRand *random)
{
  const uint64_t dim[5] = { sequences * length, (uint64_t) g_rand_int_range (random, 1, 40),
                            (uint64_t) g_rand_int_range (random, 1, 40) };
  g_autoptr (trial) t = trial_new (&wgrad, dim, dtype, random);
  g_autofree void *dw = keep (t, 2), *db = keep (t, 3);

  t->k.canonical = TRUE;
  t->model.seq_length = (int64_t) length;
  for (uint32_t part = 0; part < 3; part++)
    weft_cpu_matmul_wgrad (&t->k, part, 3);
  g_autofree void *found_dw = keep (t, 2), *found_db = keep (t, 3);
  expect_fold (t, sequences, 2, dw, found_dw);
  expect_fold (t, sequences, 3, db, found_db);
}

static void
canonical_weight_gradients_are_folded_sequences (void **state)
{
  static const uint32_t sequences[] = { 1, 2, 3, 4, 5, 6, 7, 8, 13, 300 };
  g_autoptr (GRand) random = g_rand_new_with_seed (29);

  (void) state;
  for (unsigned i = 0; i < G_N_ELEMENTS (sequences); i++)
    for (uint64_t length = 1; length <= 11; length += 5) {
      expect_canonical (sequences[i], length, WEFT_FP32, random);
      expect_canonical (sequences[i], length, WEFT_BF16, random);
    }
}

/* The largest microbatch, of 65536 sequences. Its sums over sequences need the deepest tree. */
static void
a_microbatch_of_65536_sequences_is_folded (void **state)
{
  g_autoptr (GRand) random = g_rand_new_with_seed (31);

  (void) state;
  expect_canonical (65536, 1, WEFT_FP32, random);
  expect_canonical (65535, 1, WEFT_BF16, random);
}

/* --------------------------------------------------------------------------- kernels/math.h */

/* Returns the distance of `found` from `want` in units in the last place. */
static double
distance (float found, double want)
{
  int exponent;

  if (isnan (want) || isinf ((float) want) || isinf (found))
    return (isnan (want) && isnan (found)) || found == (float) want ? 0 : INFINITY;
  frexp (want, &exponent);
  return fabs (found - want) / ldexp (1, MAX (exponent, FLT_MIN_EXP) - FLT_MANT_DIG);
}

static void
exp_tanh_and_log_are_near_those_of_libm (void **state)
{
  (void) state;
  for (uint64_t bits = 0; bits < UINT64_C (1) << 32; bits += 9973) {
    float x = weft_bits_float ((uint32_t) bits);
    assert_true (distance (weft_expf (x), exp (x)) < 1.1);
    assert_true (distance (weft_tanhf (x), tanh (x)) < 2.6);
    assert_true (distance (weft_logf (x), log (x)) < 0.51);
  }
}

static void
exp_tanh_and_log_have_their_limits (void **state)
{
  (void) state;
  assert_true (weft_expf (0) == 1 && weft_tanhf (0) == 0 && weft_logf (1) == 0);
  assert_true (weft_expf (-INFINITY) == 0 && weft_expf (-1e9f) == 0 && weft_expf (-105) == 0);
  assert_true (isinf (weft_expf (INFINITY)) && isinf (weft_expf (89)) && isnan (weft_expf (NAN)));
  assert_true (weft_tanhf (INFINITY) == 1 && weft_tanhf (-INFINITY) == -1);
  assert_true (isnan (weft_tanhf (NAN)) && signbit (weft_tanhf (-0.0f)));
  assert_true (weft_logf (0) == -INFINITY && isnan (weft_logf (-1)) && isnan (weft_logf (NAN)));
  assert_true (weft_logf (INFINITY) == INFINITY);
}

static const struct CMUnitTest tests[] = {
  cmocka_unit_test (products_are_those_of_the_reference),
  cmocka_unit_test (attention_is_that_of_the_reference),
  cmocka_unit_test (large_products_are_made_of_blocks),
  cmocka_unit_test (wide_heads_and_long_sequences_are_made_of_blocks),
  cmocka_unit_test (an_absent_bias_is_no_bias),
  cmocka_unit_test (sums_over_nothing_are_zero),
  cmocka_unit_test (the_reference_of_attention_has_the_slopes_of_its_forward),
  cmocka_unit_test (shares_and_vector_units_do_not_show),
  cmocka_unit_test (every_element_is_a_tree_of_chains_on_every_vector_unit),
  cmocka_unit_test (ranks_that_share_the_terms_meet_in_the_bits_of_one),
  cmocka_unit_test (a_row_alone_is_the_same_row),
  cmocka_unit_test (attention_does_not_see_other_sequences_or_later_tokens),
  cmocka_unit_test (canonical_weight_gradients_are_folded_sequences),
  cmocka_unit_test (a_microbatch_of_65536_sequences_is_folded),
  cmocka_unit_test (exp_tanh_and_log_are_near_those_of_libm),
  cmocka_unit_test (exp_tanh_and_log_have_their_limits),
};

WEFT_TESTS (tests)
