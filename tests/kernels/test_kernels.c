/* Every kernel against its fp64 reference, every backward reference against difference quotients of
 * its forward reference, and the rules of kernels/kernel.h about equal bits. */
#include "core/base/exact.h"
#include "core/base/fold.h"
#include "kernels/float.h"
#include "tests/made/kernel_case.h"
#include "tests/runner/runner.h"
#include <inttypes.h>
#include <math.h>
enum { N_TRIAL = 60 /* random calls of each op */ };
#define IS_HERE(word)                                                                              \
  (!g_str_has_prefix (word, "moe_") && !kernel_case_is_one_of (word, KERNEL_CASE_NOT_DRAWN))
#define IS_TESTED(kind) (weft_kernels[kind].cpu && IS_HERE (weft_op_info[kind].word))
#define IS_SPLIT(kind) (!weft_op_info[kind].serial && IS_TESTED (kind))
static void
a_kernel_does_what_its_reference_does (void **state)
{
  GRand *rand = g_rand_new_with_seed (1);

  (void) state;
  for (int kind = 0; kind < WEFT_N_OP; kind++)
    for (int trial = 0; trial < N_TRIAL && IS_TESTED (kind); trial++) {
      struct kernel_case made;
      kernel_case_make (rand, &made, (enum weft_op_kind) kind);
      kernel_case_fit (&made);
      struct weft_kernel cpu = kernel_case_as_stored (&made),
                         reference = kernel_case_as_doubles (&made);
      weft_kernels[kind].cpu (&cpu, 0, 1);
      weft_kernels[kind].reference (&reference);
      for (uint32_t o = 0; o < made.n; o++)
        if (cpu.operand[o].data)
          kernel_case_compare (&made, o, &cpu, &reference);
      kernel_case_free_memory (&made, &cpu);
      kernel_case_free_memory (&made, &reference);
      kernel_case_clear (&made);
    }
  g_rand_free (rand);
}

static void
same_bits (const struct kernel_case *made, const struct weft_kernel *a, const struct weft_kernel *b)
{
  for (uint32_t o = 0; o < made->n; o++) {
    const struct weft_operand *x = &a->operand[o], *y = &b->operand[o];
    if (x->data && memcmp (x->data, y->data, x->n * weft_dtype_bytes (x->dtype)) != 0)
      fail_msg ("%s: %s has other bits", weft_op_info[made->k.kind].word, made->argument[o].name);
  }
}

static void
parts_together_have_the_bits_of_the_whole (void **state)
{
  GRand *rand = g_rand_new_with_seed (2);

  (void) state;
  for (int kind = 0; kind < WEFT_N_OP; kind++)
    for (int trial = 0; trial < N_TRIAL / 2 && IS_SPLIT (kind); trial++) {
      struct kernel_case made;
      uint32_t parts = 2 + (uint32_t) trial % 6;
      kernel_case_make (rand, &made, (enum weft_op_kind) kind);
      kernel_case_fit (&made);
      struct weft_kernel whole = kernel_case_as_stored (&made),
                         split = kernel_case_as_stored (&made);
      weft_kernels[kind].cpu (&whole, 0, 1);
      for (uint32_t part = parts; part-- > 0;)
        weft_kernels[kind].cpu (&split, part, parts);
      same_bits (&made, &whole, &split);
      kernel_case_free_memory (&made, &whole);
      kernel_case_free_memory (&made, &split);
      kernel_case_clear (&made);
    }
  g_rand_free (rand);
}

/* -------------------------------------------------------------------- gradients */

/* For each operand of a backward op: a letter, and the number of the forward operand that it
 * belongs to. v: value of this operand; d: gradient of this output; g: gradient of this input; b:
 * in place, first the gradient of the output, then of the input; x: in place, first the value, then
 * the gradient; -: absent. */
static const struct derivative {
  enum weft_op_kind forward, backward;
  uint32_t output;
  const char *map;
} derivatives[] = {
  { WEFT_OP_EMBED, WEFT_OP_EMBED_BWD, 3, "v0 d3 g1 g2" },
  { WEFT_OP_MATMUL, WEFT_OP_MATMUL_DGRAD, 3, "d3 v1 g0" },
  { WEFT_OP_MATMUL, WEFT_OP_MATMUL_WGRAD, 3, "d3 v0 g1 g2" },
  { WEFT_OP_NORM, WEFT_OP_NORM_BWD, 3, "d3 v0 v1 - g0 g1 g2" },
  { WEFT_OP_HEAD_NORM, WEFT_OP_HEAD_NORM_BWD, 0, "b0 v3 v1 v2 g1 g2" },
  { WEFT_OP_ROPE, WEFT_OP_ROPE_BWD, 0, "b0" },
  { WEFT_OP_ATTENTION, WEFT_OP_ATTENTION_BWD, 1, "v0 v1 v2 d1 g0" },
  { WEFT_OP_GELU, WEFT_OP_GELU_BWD, 1, "v0 d1 g0" },
  { WEFT_OP_SWIGLU, WEFT_OP_SWIGLU_BWD, 1, "v0 d1 g0" },
  { WEFT_OP_RELU, WEFT_OP_RELU_BWD, 1, "v0 d1 g0" },
  { WEFT_OP_RELU2, WEFT_OP_RELU2_BWD, 1, "v0 d1 g0" },
  { WEFT_OP_XENT, WEFT_OP_XENT_BWD, 4, "x0 v1 v2" },
};

/* Draws a call so small that a difference quotient of every element can be computed. */
static void
make_small (GRand *rand, struct kernel_case *made, enum weft_op_kind kind)
{
  uint64_t most;

  for (;;) {
    kernel_case_make (rand, made, kind);
    most = 0;
    for (uint32_t o = 0; o < made->n; o++)
      most = MAX (most, made->k.operand[o].n);
    if (most <= 400)
      return;
    kernel_case_clear (made);
  }
}

/* Draws a call of a forward op with all optional operands present, in doubles that are not
 * rounded. */
static void
make_forward (GRand *rand, struct kernel_case *made, enum weft_op_kind kind)
{
  make_small (rand, made, kind);
  if (kind == WEFT_OP_XENT) /* xent_bwd computes the gradient of the logits before soft-capping */
    made->model.final_logit_softcapping = 0;
  made->k.shape.dtype = made->k.shape.out_dtype = WEFT_FP32;
  for (uint32_t o = 0; o < made->n; o++) {
    struct weft_operand *operand = &made->k.operand[o];
    if (!operand->data) {
      operand->data = g_malloc (operand->n * sizeof (double));
      kernel_case_fill (rand, made, o);
    }
    if (kernel_case_is_one_of (made->argument[o].name, "loss"))
      operand->accumulate = FALSE;
  }
}

/* Returns the sum of the output times `weight` after `by` was added to element i of operand o. */
static double
moved (const struct kernel_case *made, const struct derivative *d, const double *weight, uint32_t o,
       uint64_t i, double by)
{
  struct weft_kernel k = kernel_case_as_doubles (made);
  double total = 0;

  ((double *) k.operand[o].data)[i] += by;
  weft_kernels[d->forward].reference (&k);
  for (uint64_t e = 0; e < k.operand[d->output].n; e++)
    total += weight[e] * ((double *) k.operand[d->output].data)[e];
  kernel_case_free_memory (made, &k);
  return total;
}

static void
check_gradient (const struct kernel_case *made, const struct derivative *d, const double *weight,
                uint32_t o, const double *gradient)
{
  const double step = 1e-5;
  double scale = 1;

  for (uint64_t i = 0; i < made->k.operand[o].n; i++)
    scale = fmax (scale, fabs (gradient[i]));
  for (uint64_t i = 0; i < made->k.operand[o].n; i++) {
    double slope =
        (moved (made, d, weight, o, i, step) - moved (made, d, weight, o, i, -step)) / (2 * step);
    if (!(fabs (slope - gradient[i]) <= 1e-6 * scale))
      fail_msg ("%s: gradient of %s[%" PRIu64 "] is %.9g, the slope %.9g",
                weft_op_info[d->backward].word, made->argument[o].name, i, gradient[i], slope);
  }
}

/* Returns the call of the backward op. Its operands come from the call of the forward op: from
 * `before` the inputs, from `after` the outputs. */
static struct weft_kernel
backward_call (const struct derivative *d, const struct weft_kernel *before,
               const struct weft_kernel *after, const double *weight)
{
  g_auto (GStrv) map = g_strsplit (d->map, " ", -1);
  struct kernel_argument argument[WEFT_MOST_OPERANDS];
  struct weft_kernel k = *before;

  kernel_case_arguments (d->forward, argument);
  k.kind = d->backward;
  k.shape.dim[2] = d->backward == WEFT_OP_XENT_BWD ? 1 : k.shape.dim[2];
  memset (k.operand, 0, sizeof k.operand);
  for (uint32_t b = 0; map[b]; b++) {
    uint32_t f = (uint32_t) (map[b][1] - '0');
    if (map[b][0] == '-')
      continue;
    const double *from = map[b][0] == 'd' || map[b][0] == 'b' ? weight
                         : argument[f].flags == KERNEL_WRITES ? after->operand[f].data
                                                              : before->operand[f].data;
    k.operand[b] =
        (struct weft_operand){ .n = before->operand[f].n, .dtype = before->operand[f].dtype };
    k.operand[b].data = g_memdup2 (from, k.operand[b].n * sizeof (double));
  }
  return k;
}

static void
check_derivative (GRand *rand, const struct derivative *d)
{
  g_auto (GStrv) map = g_strsplit (d->map, " ", -1);
  struct kernel_case made = { 0 };

  make_forward (rand, &made, d->forward);
  uint64_t n = made.k.operand[d->output].n;
  g_autofree double *weight = g_new (double, n);
  for (uint64_t i = 0; i < n; i++)
    weight[i] = d->forward == WEFT_OP_XENT ? 1 : g_rand_double_range (rand, -1, 1);
  struct weft_kernel before = kernel_case_as_doubles (&made),
                     after = kernel_case_as_doubles (&made);
  weft_kernels[d->forward].reference (&after);
  struct weft_kernel backward = backward_call (d, &before, &after, weight);
  weft_kernels[d->backward].reference (&backward);
  for (uint32_t b = 0; map[b]; b++) {
    if (strchr ("gbx", map[b][0]))
      check_gradient (&made, d, weight, (uint32_t) (map[b][1] - '0'), backward.operand[b].data);
    g_free (backward.operand[b].data);
  }
  kernel_case_free_memory (&made, &before);
  kernel_case_free_memory (&made, &after);
  kernel_case_clear (&made);
}

static void
a_gradient_is_the_slope_of_its_forward (void **state)
{
  GRand *rand = g_rand_new_with_seed (3);

  (void) state;
  for (unsigned d = 0; d < G_N_ELEMENTS (derivatives); d++)
    for (int trial = 0; trial < 4; trial++)
      check_derivative (rand, &derivatives[d]);
  g_rand_free (rand);
}

/* Returns the loss of logits after soft-capping. */
static double
capped_loss (const struct kernel_case *made, const double *logits)
{
  struct weft_kernel k = kernel_case_as_doubles (made);
  struct weft_kernel cap = { .kind = WEFT_OP_SOFTCAP, .shape = k.shape, .model = k.model };

  memcpy (k.operand[0].data, logits, k.operand[0].n * sizeof *logits);
  cap.operand[0] = k.operand[0];
  weft_ref_softcap (&cap);
  weft_ref_xent (&k);
  double loss = *(double *) k.operand[4].data;
  kernel_case_free_memory (made, &k);
  return loss;
}

/* Computes the gradient of capped_loss() with respect to the logits before soft-capping. */
static void
capped_gradient (const struct kernel_case *made, const double *logits, double *gradient)
{
  struct weft_kernel k = kernel_case_as_doubles (made);
  struct weft_kernel cap = { .kind = WEFT_OP_SOFTCAP, .shape = k.shape, .model = k.model };

  memcpy (k.operand[0].data, logits, k.operand[0].n * sizeof *logits);
  cap.operand[0] = k.operand[0];
  weft_ref_softcap (&cap);
  weft_ref_xent (&k);
  struct weft_kernel back = k;
  back.kind = WEFT_OP_XENT_BWD;
  back.shape.dim[2] = 1;
  back.shape.dim[4] = 0;
  back.operand[3] = (struct weft_operand){ 0 };
  weft_ref_xent_bwd (&back);
  memcpy (gradient, k.operand[0].data, k.operand[0].n * sizeof *gradient);
  kernel_case_free_memory (made, &k);
}

static void
soft_capped_logits_get_the_gradient_of_what_they_were_before (void **state)
{
  GRand *rand = g_rand_new_with_seed (11);
  const double step = 1e-5;

  (void) state;
  for (int trial = 0; trial < 4; trial++) {
    struct kernel_case made;
    make_forward (rand, &made, WEFT_OP_XENT);
    made.model.final_logit_softcapping = 30;
    uint64_t n = made.k.operand[0].n;
    g_autofree double *gradient = g_new (double, n);
    g_autofree double *logits = g_memdup2 (made.k.operand[0].data, n * sizeof (double));
    capped_gradient (&made, logits, gradient);
    for (uint64_t i = 0; i < n; i++) {
      double x = logits[i];
      logits[i] = x + step;
      double above = capped_loss (&made, logits);
      logits[i] = x - step;
      double slope = (above - capped_loss (&made, logits)) / (2 * step);
      logits[i] = x;
      if (!(fabs (slope - gradient[i]) <= 1e-6))
        fail_msg ("logit %" PRIu64 ": gradient %.9g, slope %.9g", i, gradient[i], slope);
    }
    kernel_case_clear (&made);
  }
  g_rand_free (rand);
}

/* -------------------------------------------------------------- canonical order */

static const enum weft_op_kind folded[] = { WEFT_OP_NORM_BWD, WEFT_OP_EMBED_BWD,
                                            WEFT_OP_HEAD_NORM_BWD, WEFT_OP_MATMUL_WGRAD };

static gboolean
is_folded_operand (const struct kernel_case *made, uint32_t o)
{
  return kernel_case_is_gradient (made->argument[o].name) && made->k.operand[o].data != NULL;
}

/* Returns the part of a call that belongs to one sequence: the rows of this sequence, and gradients
 * in new memory, which the caller frees. */
static struct weft_kernel
one_sequence (const struct kernel_case *made, const struct weft_kernel *whole, uint64_t sequence)
{
  struct weft_kernel k = *whole;

  k.shape.dim[0] /= made->sequences;
  for (uint32_t o = 0; o < made->n; o++) {
    struct weft_operand *operand = &k.operand[o];
    uint64_t n = weft_kernels[k.kind].extent (&k, o), size = weft_dtype_bytes (operand->dtype);
    if (is_folded_operand (made, o)) {
      operand->data = g_malloc (n * size);
      memset (operand->data, 0xff, n * size);
      operand->accumulate = FALSE;
    } else if (operand->data && n != operand->n)
      operand->data = (char *) operand->data + sequence * n * size;
    operand->n = n;
  }
  return k;
}

/* Adds the gradients of n kernel calls for one sequence each, along the tree of core/base/fold.h.
 * The sum is in single[0]. */
static void
fold_singles (const struct kernel_case *made, struct weft_kernel *single, uint64_t n)
{
  if (n == 1)
    return;
  uint64_t left = weft_fold_split ((uint32_t) n);
  fold_singles (made, single, left);
  fold_singles (made, single + left, n - left);
  for (uint32_t o = 0; o < made->n; o++)
    if (is_folded_operand (made, o)) {
      struct weft_kernel add = { .kind = WEFT_OP_GRAD_ADD,
                                 .shape = { .dim = { single[0].operand[o].n } },
                                 .operand = { single[0].operand[o], single[left].operand[o] } };
      weft_kernels[WEFT_OP_GRAD_ADD].cpu (&add, 0, 1);
    }
}

static void
check_fold (GRand *rand, enum weft_op_kind kind, uint64_t sequences)
{
  struct kernel_case made;
  do {
    kernel_case_make (rand, &made, kind);
    if (made.sequences != sequences)
      kernel_case_clear (&made);
  } while (made.sequences != sequences);
  made.k.canonical = TRUE;
  struct weft_kernel whole = kernel_case_as_stored (&made), rows = kernel_case_as_stored (&made);
  g_autofree struct weft_kernel *single = g_new (struct weft_kernel, sequences);
  for (uint64_t s = 0; s < sequences; s++) {
    single[s] = one_sequence (&made, &rows, s);
    weft_kernels[kind].cpu (&single[s], 0, 1);
  }
  fold_singles (&made, single, sequences);
  for (uint32_t o = 0; o < made.n; o++)
    if (is_folded_operand (&made, o) && rows.operand[o].accumulate) {
      struct weft_kernel add = { .kind = WEFT_OP_GRAD_ADD,
                                 .shape = { .dim = { rows.operand[o].n } },
                                 .operand = { rows.operand[o], single[0].operand[o] } };
      weft_kernels[WEFT_OP_GRAD_ADD].cpu (&add, 0, 1);
    } else if (is_folded_operand (&made, o))
      memcpy (rows.operand[o].data, single[0].operand[o].data,
              rows.operand[o].n * weft_dtype_bytes (rows.operand[o].dtype));
  weft_kernels[kind].cpu (&whole, 0, 1);
  same_bits (&made, &whole, &rows);
  for (uint64_t s = 0; s < sequences; s++)
    for (uint32_t o = 0; o < made.n; o++)
      if (is_folded_operand (&made, o))
        g_free (single[s].operand[o].data);
  kernel_case_free_memory (&made, &whole);
  kernel_case_free_memory (&made, &rows);
  kernel_case_clear (&made);
}

static void
sequences_of_one_call_fold_like_calls_of_one_sequence (void **state)
{
  GRand *rand = g_rand_new_with_seed (4);

  (void) state;
  for (unsigned f = 0; f < G_N_ELEMENTS (folded); f++)
    for (uint64_t sequences = 1; sequences <= KERNEL_CASE_SEQUENCES; sequences++)
      for (int trial = 0; trial < 6; trial++)
        check_fold (rand, folded[f], sequences);
  g_rand_free (rand);
}

/* Returns a call on some of the rows of a call (for elementwise ops: on some of its elements). */
static struct weft_kernel
some_rows (const struct kernel_case *made, const struct weft_kernel *k, uint64_t first, uint64_t n)
{
  struct weft_kernel part = *k;

  part.shape.dim[0] = n;
  for (uint32_t o = 0; o < made->n; o++) {
    struct weft_operand *operand = &part.operand[o];
    if (operand->dtype == WEFT_INT64)
      continue;
    uint64_t columns = operand->n / k->shape.dim[0];
    operand->data = (char *) operand->data + first * columns * weft_dtype_bytes (operand->dtype);
    operand->n = n * columns;
  }
  return part;
}

/* Ops whose last operand is an exact sum (xent, grad_norm): one call on all rows and several calls
 * on parts of the rows must give the same words. */
static void
check_exact (GRand *rand, enum weft_op_kind kind)
{
  int64_t sum[2][WEFT_EXACT_WORDS] = { { 0 } };
  struct kernel_case made;

  kernel_case_make (rand, &made, kind);
  struct weft_kernel k = kernel_case_as_stored (&made);
  struct weft_operand *last = &k.operand[made.n - 1];
  g_free (last->data);
  *last = (struct weft_operand){ sum[0], WEFT_EXACT_WORDS, WEFT_INT64, TRUE };
  k.canonical = TRUE;
  weft_kernels[kind].cpu (&k, 0, 1);
  last->data = sum[1];
  for (uint64_t end = k.shape.dim[0]; end > 0;) {
    uint64_t begin = (uint64_t) g_rand_int_range (rand, 0, (gint32) end);
    struct weft_kernel some = some_rows (&made, &k, begin, end - begin);
    weft_kernels[kind].cpu (&some, 0, 1);
    end = begin;
  }
  assert_memory_equal (sum[0], sum[1], sizeof sum[0]);
  struct weft_kernel reference = kernel_case_as_doubles (&made);
  double *wanted = reference.operand[made.n - 1].data;
  reference.operand[made.n - 1].accumulate = FALSE;
  weft_kernels[kind].reference (&reference);
  assert_true (fabs (weft_exact_value (sum[0]) - *wanted) <= 1e-6 * fabs (*wanted) + 1e-6);
  kernel_case_free_memory (&made, &reference);
  last->data = NULL;
  kernel_case_free_memory (&made, &k);
  kernel_case_clear (&made);
}

static void
an_exact_sum_does_not_see_how_rows_are_split_over_calls (void **state)
{
  GRand *rand = g_rand_new_with_seed (5);

  (void) state;
  for (int trial = 0; trial < 30; trial++) {
    check_exact (rand, WEFT_OP_XENT);
    check_exact (rand, WEFT_OP_GRAD_NORM);
  }
  g_rand_free (rand);
}

/* ---------------------------------------------------------------- single kernels */

static void
the_residual_gradient_is_added_in_place (void **state)
{
  GRand *rand = g_rand_new_with_seed (6);

  (void) state;
  for (int trial = 0; trial < 20; trial++) {
    struct kernel_case made;
    kernel_case_make (rand, &made, WEFT_OP_NORM_BWD);
    struct weft_kernel apart = kernel_case_as_stored (&made),
                       together = kernel_case_as_stored (&made);
    struct weft_operand *in = &together.operand[3], *out = &together.operand[4];
    if (in->data) {
      memcpy (out->data, in->data, in->n * weft_dtype_bytes (in->dtype));
      g_free (g_steal_pointer (&in->data));
      in->data = out->data;
    }
    weft_cpu_norm_bwd (&apart, 0, 1);
    weft_cpu_norm_bwd (&together, 0, 1);
    in->data = NULL;
    g_free (g_steal_pointer (&apart.operand[3].data));
    same_bits (&made, &apart, &together);
    kernel_case_free_memory (&made, &apart);
    kernel_case_free_memory (&made, &together);
    kernel_case_clear (&made);
  }
  g_rand_free (rand);
}

/* Calls with more tokens than embed_bwd can link in its lists, and with more columns than fit into
 * the scratch of norm_bwd. */
static void
sizes_beyond_the_scratch_give_the_same_sums (void **state)
{
  static const struct {
    enum weft_op_kind kind;
    int64_t sequence;
    uint64_t rows, columns;
  } sizes[] = { { WEFT_OP_EMBED_BWD, 20000, 60000, 2 }, { WEFT_OP_NORM_BWD, 1, 8, 20000 } };
  GRand *rand = g_rand_new_with_seed (7);

  (void) state;
  for (unsigned s = 0; s < G_N_ELEMENTS (sizes); s++) {
    struct kernel_case made;
    kernel_case_make (rand, &made, sizes[s].kind);
    kernel_case_clear (&made);
    made.model.seq_length = made.model.max_position_embeddings = sizes[s].sequence;
    made.k.shape.dim[0] = sizes[s].rows;
    made.k.shape.dim[1] = sizes[s].columns;
    made.k.canonical = TRUE;
    for (uint32_t o = 0; o < made.n; o++)
      kernel_case_make_operand (rand, &made, o);
    struct weft_kernel cpu = kernel_case_as_stored (&made),
                       reference = kernel_case_as_doubles (&made);
    weft_kernels[sizes[s].kind].cpu (&cpu, 0, 1);
    weft_kernels[sizes[s].kind].reference (&reference);
    for (uint32_t o = 0; o < made.n; o++)
      if (cpu.operand[o].data)
        kernel_case_compare (&made, o, &cpu, &reference);
    kernel_case_free_memory (&made, &cpu);
    kernel_case_free_memory (&made, &reference);
    kernel_case_clear (&made);
  }
  g_rand_free (rand);
}

/* Checks that Adam in a skipped step (factor 0) changes nothing. Returns TRUE if weights are no
 * operand, because they are stored in fp8. */
static gboolean
skip_update (uint32_t seed, gboolean initialised)
{
  g_autoptr (GRand) rand = g_rand_new_with_seed (seed);
  struct kernel_case made;

  kernel_case_make (rand, &made, WEFT_OP_ADAM);
  /* the 16-bit weights of the call are rounded from the fp32 masters */
  gboolean copied = made.k.operand[3].data && !initialised;
  gboolean stored_elsewhere = !made.k.operand[2].data;
  g_free (made.k.operand[1].data);
  made.k.operand[1].data = g_new0 (double, made.k.operand[1].n);
  ((double *) made.k.operand[0].data)[0] = (double) NAN;
  made.k.operand[2].accumulate = initialised;
  struct weft_kernel before = kernel_case_as_stored (&made), after = kernel_case_as_stored (&made);
  struct weft_kernel reference = kernel_case_as_doubles (&made);
  weft_cpu_adam (&after, 0, 1);
  weft_ref_adam (&reference);
  for (uint32_t o = 2; o < made.n; o++)
    if (after.operand[o].data && (o > 2 || !copied))
      assert_memory_equal (after.operand[o].data, before.operand[o].data,
                           after.operand[o].n * weft_dtype_bytes (after.operand[o].dtype));
    else if (after.operand[o].data)
      kernel_case_compare (&made, o, &after, &reference);
  kernel_case_free_memory (&made, &before);
  kernel_case_free_memory (&made, &after);
  kernel_case_free_memory (&made, &reference);
  kernel_case_clear (&made);
  return stored_elsewhere;
}

static void
a_factor_of_zero_changes_nothing (void **state)
{
  enum { CASES = 40 };
  uint32_t stored_elsewhere = 0;

  (void) state;
  for (uint32_t seed = 0; seed < CASES; seed++)
    stored_elsewhere += skip_update (seed, seed % 2 == 0);
  assert_in_range (stored_elsewhere, 1, CASES - 1);
}

static const struct CMUnitTest tests[] = {
  cmocka_unit_test (a_kernel_does_what_its_reference_does),
  cmocka_unit_test (parts_together_have_the_bits_of_the_whole),
  cmocka_unit_test (a_gradient_is_the_slope_of_its_forward),
  cmocka_unit_test (soft_capped_logits_get_the_gradient_of_what_they_were_before),
  cmocka_unit_test (sequences_of_one_call_fold_like_calls_of_one_sequence),
  cmocka_unit_test (an_exact_sum_does_not_see_how_rows_are_split_over_calls),
  cmocka_unit_test (the_residual_gradient_is_added_in_place),
  cmocka_unit_test (sizes_beyond_the_scratch_give_the_same_sums),
  cmocka_unit_test (a_factor_of_zero_changes_nothing),
};

WEFT_TESTS (tests)
