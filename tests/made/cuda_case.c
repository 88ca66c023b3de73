/* Test cases of the CUDA kernels. The results of a device are compared with the CPU kernels and the
 * fp64 references. */
#include "tests/made/cuda_case.h"
#include "core/base/sanitize.h"
#include "kernels/float.h"
#include "tests/runner/runner.h"
#include <math.h>

#define SANITIZED (WEFT_ADDRESS_SANITIZER || WEFT_THREAD_SANITIZER)
/* random calls per op, and pairs of calls per width of heads; a GPU runs all of them */
#define N_TRIAL(d) (SANITIZED ? 4 : (d)->arch ? 12 : (int) weft_tests_cases (8, 12))
#define N_TILE_TRIAL(d) (SANITIZED ? 2 : (d)->arch ? 4 : weft_tests_cases (2, 4))

gboolean
cuda_case_has (const struct cuda_case_device *d, enum weft_op_kind kind)
{
  return (!d->only || g_str_equal (d->only, weft_op_info[kind].word)) &&
         d->has_kernel (d->user, kind);
}

static gboolean
is_drawn (const struct cuda_case_device *d, int kind)
{
  const char *word = weft_op_info[kind].word;

  return cuda_case_has (d, (enum weft_op_kind) kind) && weft_kernels[kind].reference &&
         !g_str_has_prefix (word, "moe_") && !kernel_case_is_one_of (word, KERNEL_CASE_NOT_DRAWN);
}

/* ------------------------------------------------------------------------------- one call */

static void
check (const struct cuda_case_device *d, const struct kernel_case *made)
{
  struct weft_kernel once = kernel_case_as_stored (made), again = kernel_case_as_stored (made);
  struct weft_kernel reference = kernel_case_as_doubles (made);

  d->launch (d->user, &once, FALSE);
  d->launch (d->user, &again, TRUE);
  weft_kernels[made->k.kind].reference (&reference);
  for (uint32_t o = 0; o < made->n; o++) {
    const struct weft_operand *x = &once.operand[o], *y = &again.operand[o];
    if (!x->data)
      continue;
    kernel_case_compare (made, o, &once, &reference);
    if (memcmp (x->data, y->data, x->n * weft_dtype_bytes (x->dtype)) != 0)
      fail_msg ("%s: %s is not the same the second time", weft_op_info[made->k.kind].word,
                made->argument[o].name);
  }
  kernel_case_free_memory (made, &once);
  kernel_case_free_memory (made, &again);
  kernel_case_free_memory (made, &reference);
}

void
cuda_case_drawn (const struct cuda_case_device *d)
{
  GRand *rand = g_rand_new_with_seed (11);

  for (int kind = 0; kind < WEFT_N_OP; kind++)
    for (int trial = 0; trial < N_TRIAL (d) && is_drawn (d, kind); trial++) {
      struct kernel_case made;
      kernel_case_make (rand, &made, (enum weft_op_kind) kind);
      made.k.canonical = FALSE;
      made.rounds_inside |=
          made.k.shape.dim[4] == 64 && g_str_has_prefix (weft_op_info[kind].word, "attention");
      kernel_case_fit (&made);
      check (d, &made);
      kernel_case_clear (&made);
    }
  g_rand_free (rand);
}

/* --------------------------------------------------------------------- tiles of attention */

static void
make_attention (GRand *rand, struct kernel_case *made, enum weft_op_kind kind, uint64_t width)
{
  static const uint64_t lengths[] = { 1, 16, 63, 64, 65, 130 };
  uint64_t groups = (uint64_t) g_rand_int_range (rand, 1, 3);
  uint64_t dim[] = { 1, lengths[g_rand_int_range (rand, 0, G_N_ELEMENTS (lengths))], 2 * groups,
                     groups, width };

  kernel_case_make (rand, made, kind);
  memcpy (made->k.shape.dim, dim, sizeof dim);
  made->k.shape.dtype = g_rand_boolean (rand) ? WEFT_BF16 : WEFT_FP16;
  made->k.shape.dim[5] = made->k.shape.dim[6] = 0;
  made->k.canonical = FALSE;
  made->rounds_inside = TRUE;
  for (uint32_t o = 0; o < made->n; o++) {
    g_free (made->k.operand[o].data);
    kernel_case_make_operand (rand, made, o);
  }
  kernel_case_fit (made);
}

void
cuda_case_tiles (const struct cuda_case_device *d)
{
  static const enum weft_op_kind kinds[] = { WEFT_OP_ATTENTION, WEFT_OP_ATTENTION_BWD };
  static const uint64_t widths[] = { 64, 128, 80 };
  GRand *rand = g_rand_new_with_seed (12);

  for (unsigned i = 0; i < 2 * N_TILE_TRIAL (d); i++)
    for (unsigned w = 0; w < G_N_ELEMENTS (widths) && cuda_case_has (d, kinds[i % 2]); w++) {
      struct kernel_case made;
      make_attention (rand, &made, kinds[i % 2], widths[w]);
      check (d, &made);
      kernel_case_clear (&made);
    }
  g_rand_free (rand);
}

/* ------------------------------------------------------------------------ as the CPU does */

uint64_t
cuda_case_bytes (const struct weft_operand *o)
{
  return o->n * weft_dtype_bytes (o->dtype);
}

/* Copies a call and its operands. Operands that share memory (ops in place) share memory in the
 * copy too. */
static struct weft_kernel
copy_of (const struct weft_kernel *k)
{
  struct weft_kernel copy = *k;

  for (uint32_t o = 0; o < WEFT_MOST_OPERANDS; o++) {
    uint32_t same = 0;
    while (same < o && k->operand[same].data != k->operand[o].data)
      same++;
    copy.operand[o].data = same < o
                               ? copy.operand[same].data
                               : g_memdup2 (k->operand[o].data, cuda_case_bytes (&k->operand[o]));
  }
  return copy;
}

void
cuda_case_free (struct weft_kernel *k)
{
  for (uint32_t o = 0; o < WEFT_MOST_OPERANDS; o++) {
    void *data = k->operand[o].data;
    for (uint32_t next = o; next < WEFT_MOST_OPERANDS; next++)
      if (k->operand[next].data == data)
        k->operand[next].data = NULL;
    g_free (data);
  }
}

static const double half_ulp[WEFT_N_DTYPE] = { [WEFT_BF16] = 0x1p-8, [WEFT_FP16] = 0x1p-11 };

static double
element (const struct weft_operand *o, uint64_t i)
{
  float room;
  return (double) *weft_floats (o->data, o->dtype, i, 1, &room);
}

static void
compare_floats (const struct weft_kernel *k, uint32_t o, const struct weft_operand *found,
                double tolerance)
{
  const struct weft_operand *wanted = &k->operand[o];
  double scale = 1;

  for (uint64_t i = 0; i < wanted->n; i++)
    if (isfinite (element (wanted, i)))
      scale = fmax (scale, fabs (element (wanted, i)));
  for (uint64_t i = 0; i < wanted->n; i++) {
    double f = element (found, i), w = element (wanted, i);
    if (f == w || (isnan (f) && isnan (w)))
      continue;
    if (!(fabs (f - w) <= tolerance * scale + 2 * half_ulp[wanted->dtype] * fabs (w)))
      fail_msg ("%s, operand %u, element %" G_GUINT64_FORMAT ": found %.9g, wanted %.9g",
                weft_op_info[k->kind].word, o, i, f, w);
  }
}

static void
run_and_compare (const struct cuda_case_device *d, const struct weft_kernel *k, double tolerance)
{
  gboolean same = !k->fused || k->deterministic;
  struct weft_kernel once = copy_of (k), again = copy_of (k);

  d->launch (d->user, &once, FALSE);
  d->launch (d->user, &again, TRUE);
  weft_kernels[k->kind].cpu (k, 0, 1);
  for (uint32_t o = 0; o < WEFT_MOST_OPERANDS; o++) {
    const struct weft_operand *wanted = &k->operand[o];
    if (!wanted->data)
      continue;
    if (same && memcmp (once.operand[o].data, again.operand[o].data, cuda_case_bytes (wanted)) != 0)
      fail_msg ("%s: operand %u is not the same the second time", weft_op_info[k->kind].word, o);
    if (wanted->dtype <= WEFT_FP16)
      compare_floats (k, o, &once.operand[o], tolerance);
    else if (memcmp (once.operand[o].data, wanted->data, cuda_case_bytes (wanted)) != 0)
      fail_msg ("%s: operand %u is not that of the CPU", weft_op_info[k->kind].word, o);
  }
  cuda_case_free (&once);
  cuda_case_free (&again);
}

void
cuda_case_alike (const struct cuda_case_device *d, const struct weft_kernel *k, double tolerance)
{
  if (cuda_case_has (d, k->kind))
    run_and_compare (d, k, tolerance);
  else
    weft_kernels[k->kind].cpu (k, 0, 1);
}

struct weft_operand
cuda_case_floats (GRand *rand, uint64_t n, enum weft_dtype dtype)
{
  struct weft_operand o = { g_malloc0 (n * weft_dtype_bytes (dtype)), n, (uint8_t) dtype, 0 };

  for (uint64_t i = 0; i < n && dtype <= WEFT_FP16; i++) {
    float value = (float) g_rand_double_range (rand, -1, 1);
    weft_store (o.data, dtype, i, 1, &value);
  }
  return o;
}

struct weft_operand
cuda_case_counts (GRand *rand, uint64_t n, uint64_t most)
{
  struct weft_operand o = cuda_case_floats (rand, n, WEFT_INT64);

  for (uint64_t i = 0; i < n; i++)
    ((int64_t *) o.data)[i] = g_rand_int_range (rand, 0, (gint32) most + 1);
  return o;
}

/* ------------------------------------------------------------- ops with shapes of their own */

/* Row lengths for kernels with one warp per row (1 to 4 packs per thread) and for kernels with one
 * block per row (1 or 2 packs per thread). */
#define ROWS_OF(op, rows, columns)                                                                 \
  { op, { rows, columns }, .dtype = WEFT_BF16, .weights = WEFT_BF16 }
#define BY_PACKS(op)                                                                               \
  ROWS_OF (op, 9, 256), ROWS_OF (op, 9, 384), ROWS_OF (op, 9, 768), ROWS_OF (op, 9, 1024),         \
      ROWS_OF (op, 3, 1032), ROWS_OF (op, 3, 4104)

/* Calls for a model with 4 heads of width 8 in 2 groups, and sequences of 12 tokens. */
static const struct fixed {
  enum weft_op_kind kind;
  uint64_t dim[7];
  struct weft_place tp, cp;
  uint32_t before;
  /* type of operands, and of weights; fp32 if a row does not state it */
  enum weft_dtype dtype, weights;
} fixed[] = {
  { WEFT_OP_NORM_DGRAD, { 7, 40 } },
  { WEFT_OP_NORM_DGRAD, { 2, 6090 } },
  { WEFT_OP_NORM_DGRAD, { 19, 400 } },
  { WEFT_OP_NORM_BWD, { 21, 256 } },
  { WEFT_OP_NORM_BWD, { 300, 516 } },
  { WEFT_OP_NORM_BWD, { 3, 4000 } },
  { WEFT_OP_NORM, { 21, 384 } },
  { WEFT_OP_NORM, { 3, 4096 } },
  { WEFT_OP_ADD_NORM, { 21, 512 } },
  { WEFT_OP_ADD_NORM, { 2, 6090 } },
  { WEFT_OP_NORM_WGRAD, { 7, 40 } },
  BY_PACKS (WEFT_OP_NORM),
  BY_PACKS (WEFT_OP_NORM_BWD),
  /* several rows for each block, which copies the next one while it computes */
  { WEFT_OP_NORM_BWD, { 1700, 1032 }, .dtype = WEFT_BF16, .weights = WEFT_BF16 },
  { WEFT_OP_NORM_BWD, { 280, 4104 }, .dtype = WEFT_BF16, .weights = WEFT_BF16 },
  { WEFT_OP_NORM, { 9, 384 }, .dtype = WEFT_BF16, .weights = WEFT_FP32 },
  { WEFT_OP_NORM_BWD, { 9, 384 }, .dtype = WEFT_BF16, .weights = WEFT_FP32 },
  { WEFT_OP_NORM, { 9, 384 }, .weights = WEFT_BF16 },
  { WEFT_OP_NORM_DGRAD, { 3, 4104 }, .dtype = WEFT_FP16, .weights = WEFT_FP16 },
  { WEFT_OP_HEAD_NORM_DGRAD, { 144, 8 } },
  { WEFT_OP_HEAD_NORM_WGRAD, { 144, 8, 1 } },
  { WEFT_OP_HEAD_NORM_WGRAD, { 144, 8, 3 } },
  { WEFT_OP_BIAS, { 7, 40 } },
  { WEFT_OP_ADD_POSITIONS, { 24, 40, 1 } },
  { WEFT_OP_ADD_POSITIONS, { 24, 40, 2 }, .tp = { 1, 2 } },
  { WEFT_OP_DROPOUT, { 24, 24, 10, 0, 1u << 30 } },
  { WEFT_OP_DROPOUT, { 96 * 12, 24, 12, 1, 1u << 31 } },
  { WEFT_OP_DROPOUT_ADD, { 12, 24, 10, 2, 1u << 30 }, .tp = { 1, 2 } },
  { WEFT_OP_BIAS_DROPOUT_ADD, { 12, 24, 10, 2, 1u << 30 }, .tp = { 1, 2 } },
  { WEFT_OP_BIAS_DROPOUT_ADD, { 24, 24, 10, 3, 1u << 30 }, .dtype = WEFT_BF16 },
  { WEFT_OP_DROPOUT_BWD, { 24, 24, 10, 3, 1u << 30 } },
  { WEFT_OP_TAKE_KV, { 24, 4, 2, 8 } },
  { WEFT_OP_PUT_KV, { 24, 4, 2, 8 } },
  { WEFT_OP_SPLIT_SEQUENCE, { 2, 3, 6, 5 } },
  { WEFT_OP_JOIN_SEQUENCE, { 3, 2, 4, 5 } },
  { WEFT_OP_JOIN_SEQUENCE, { 3, 2, 4, 5 }, .cp = { 1, 3 }, .before = 1 },
  { WEFT_OP_SPLIT_HEADS, { 6, 2, 4, 2, 8 } },
  { WEFT_OP_JOIN_HEADS, { 6, 2, 4, 2, 8 } },
  { WEFT_OP_KEEP_PIECE, { 30 }, .cp = { 1, 3 } },
  { WEFT_OP_JOIN_COLUMNS, { 7, 5, 3 } },
  { WEFT_OP_SETTLE, { 24, 3 }, .tp = { 1, 3 } },
  { WEFT_OP_MOE_FOLD, { 20, 5 } },
  { WEFT_OP_MOE_SQUARES, { 1 } },
  { WEFT_OP_XENT, { 3, 10000, 0, 9990 } },
  { WEFT_OP_XENT_BWD, { 3, 10000, 7, 9990 } },
  { WEFT_OP_XENT_GRAD, { 3, 10000, 0, 9990, 0, 7 } },
  /* The row of logits has more columns than the kernel keeps in shared memory (MOST_KEPT of
   * loss.cu), so the kernel reads the other columns a second time. */
  { WEFT_OP_XENT_GRAD, { 2, 41000, 0, 0, 0, 1 } },
  { WEFT_OP_XENT_GRAD, { 5, 41, 0, 40, 0, 3 } },
  { WEFT_OP_XENT_MAX, { 6, 10, 0, 35 }, .tp = { 3, 4 } },
  { WEFT_OP_XENT_MAX, { 3, 3000, 0, 0 } },
  { WEFT_OP_XENT_PART, { 3, 3000, 0, 0 } },
  { WEFT_OP_XENT_PART, { 6, 10, 0, 40 }, .tp = { 1, 4 } },
  { WEFT_OP_XENT_END, { 6, 3 } },
  { WEFT_OP_ATTENTION_MERGE, { 24, 4, 8 } },
  { WEFT_OP_MOE_BALANCE, { 3, 37 } },
  { WEFT_OP_TAKE_KV, { 24, 4, 2, 8, 5 } },
  { WEFT_OP_PUT_KV, { 24, 4, 2, 8, 5 } },
  { WEFT_OP_SPLIT_HEADS, { 6, 2, 4, 2, 8, 3 } },
  { WEFT_OP_JOIN_HEADS, { 6, 2, 4, 2, 8, 3 } },
  { WEFT_OP_SPLIT_HEADS, { 6, 4, 8, 0, 3 } },
  { WEFT_OP_KEEP_PIECE, { 30, 2 }, .cp = { 3, 4 } },
  { WEFT_OP_KEEP_PIECE, { 30, 4 }, .tp = { 1, 4 } },
  { WEFT_OP_KEEP_PIECE, { 30, 6 }, .tp = { 1, 2 }, .cp = { 2, 3 } },
  { WEFT_OP_SCALE, { 30, 0, 3, 4 } },
  { WEFT_OP_TAKE_PART, { 6, 20, 2, 1 }, .tp = { 1, 2 } },
  { WEFT_OP_TAKE_PART, { 6, 20, 1, 4 }, .tp = { 2, 4 } },
  { WEFT_OP_TAKE_HEADS, { 5, 8, 16, 4, 6 }, .tp = { 5, 8 } },
  { WEFT_OP_PUT_HEADS, { 5, 8, 16, 4, 6 }, .tp = { 5, 8 } },
  { WEFT_OP_CONCAT, { 7, 5, 12 } },
  { WEFT_OP_CONCAT_BWD, { 7, 5, 12 } },
  { WEFT_OP_LATENT_SPLIT, { 24, 10, 6 } },
  { WEFT_OP_LATENT_SPLIT, { 24, 10, 6, 2 }, .tp = { 1, 2 } },
  { WEFT_OP_LATENT_SPLIT_BWD, { 24, 10, 6 }, .cp = { 1, 2 } },
  { WEFT_OP_LATENT_JOIN, { 24, 3, 8, 4, 5 } },
  { WEFT_OP_LATENT_JOIN_BWD, { 24, 3, 8, 4, 5 } },
};

static enum weft_dtype
fixed_dtype (const struct fixed *f, const char *name)
{
  return g_str_equal (name, "targets")                   ? WEFT_INT32
         : g_str_equal (name, "mask")                    ? WEFT_UINT8
         : kernel_case_is_one_of (name, "weight bias") ? f->weights
                                                         : f->dtype;
}

static void
fill_fixed (GRand *rand, struct weft_operand *o)
{
  for (uint64_t i = 0; i < o->n; i++)
    if (o->dtype == WEFT_INT32)
      ((int32_t *) o->data)[i] = g_rand_int_range (rand, -1, 40);
    else if (o->dtype == WEFT_UINT8)
      ((uint8_t *) o->data)[i] = g_rand_boolean (rand);
    else {
      float value = (float) g_rand_double_range (rand, 0.1, 2);
      weft_store (o->data, o->dtype, i, 1, &value);
    }
}

/* Allocates and fills the operands of a call, and gives call[1] copies of these operands in
 * separate memory. */
static void
make_fixed (GRand *rand, const struct fixed *f, struct weft_kernel call[2])
{
  struct kernel_argument argument[WEFT_MOST_OPERANDS];
  uint32_t n = kernel_case_arguments (f->kind, argument);

  for (uint32_t o = 0; o < n; o++) {
    struct weft_operand *operand = &call[0].operand[o];
    operand->dtype = fixed_dtype (f, argument[o].name);
    operand->accumulate = (argument[o].flags & KERNEL_READS) && (argument[o].flags & KERNEL_WRITES);
    operand->n = weft_kernels[f->kind].extent (&call[0], o);
    operand->data = g_malloc (operand->n * sizeof (float));
    fill_fixed (rand, operand);
    call[1].operand[o] = *operand;
    call[1].operand[o].data = g_memdup2 (operand->data, operand->n * sizeof (float));
  }
}

static void
compare_fixed (const struct weft_kernel call[2])
{
  for (uint32_t o = 0; o < WEFT_MOST_OPERANDS; o++) {
    const struct weft_operand *a = &call[0].operand[o], *b = &call[1].operand[o];
    for (uint64_t i = 0; a->data && i < a->n; i++)
      if (a->dtype > WEFT_FP16)
        assert_memory_equal (a->data, b->data, a->n * weft_dtype_bytes (a->dtype));
      else if (!(fabs (element (a, i) - element (b, i)) <=
                 1e-5 * (1 + fabs (element (b, i))) +
                     2 * half_ulp[a->dtype] * fabs (element (b, i))))
        fail_msg ("%s, operand %u, element %" G_GUINT64_FORMAT ": found %g, wanted %g",
                  weft_op_info[call[0].kind].word, o, i, element (a, i), element (b, i));
    g_free (a->data);
    g_free (b->data);
  }
}

void
cuda_case_fixed (const struct cuda_case_device *d)
{
  GRand *rand = g_rand_new_with_seed (13);
  struct weft_control control = { .step = 3, .seed = 5 };
  union weft_model model;

  control.corrected = weft_control_correction (&control);
  weft_table_defaults (&weft_model_table, model.at);
  model.num_attention_heads = 4;
  model.num_query_groups = 2;
  model.kv_channels = 8;
  model.seq_length = model.max_position_embeddings = 12;
  for (unsigned n = 0; n < 2 * G_N_ELEMENTS (fixed); n++) {
    unsigned i = n / 2;
    if (!cuda_case_has (d, fixed[i].kind))
      continue;
    struct weft_kernel call[2] = { { .kind = fixed[i].kind,
                                     .tp = fixed[i].tp,
                                     .cp = fixed[i].cp,
                                     .before = fixed[i].before,
                                     .model = &model,
                                     .control = &control } };
    memcpy (call[0].shape.dim, fixed[i].dim, sizeof fixed[i].dim);
    call[0].shape.dtype = call[0].shape.out_dtype = fixed[i].dtype;
    call[1] = call[0];
    make_fixed (rand, &fixed[i], call);
    d->launch (d->user, &call[0], n % 2);
    weft_kernels[fixed[i].kind].cpu (&call[1], 0, 1);
    compare_fixed (call);
  }
  g_rand_free (rand);
}

/* ------------------------------------------------------------------- stochastic rounding */

/* Checks AdamW with stochastic rounding: weights, m and v must be bit-identical to those of the CPU
 * kernel. */
void
cuda_case_lots (const struct cuda_case_device *d)
{
  enum { LOTS = 3000 };
  g_autoptr (GRand) rand = g_rand_new_with_seed (14);
  struct weft_control control = { .step = 4,
                                  .seed = 9,
                                  .lr = 1e-3,
                                  .beta1 = 0.9,
                                  .beta2 = 0.95,
                                  .epsilon = 1e-8,
                                  .weight_decay = 0.1 };
  union weft_model model;
  struct weft_kernel cpu = { .kind = WEFT_OP_ADAM,
                             .shape = { .dim = { LOTS, 1, 1 }, .dtype = WEFT_BF16 },
                             .model = &model,
                             .control = &control,
                             .decay = TRUE,
                             .whole = { 77, 1234, 50, 200, 100 } };

  if (!cuda_case_has (d, WEFT_OP_ADAM))
    return;
  control.corrected = weft_control_correction (&control);
  weft_table_defaults (&weft_model_table, model.at);
  cpu.operand[0] = cuda_case_floats (rand, LOTS, WEFT_BF16);
  cpu.operand[2] = cuda_case_floats (rand, LOTS, WEFT_BF16);
  cpu.operand[4] = cuda_case_floats (rand, LOTS, WEFT_FP32);
  cpu.operand[5] = cuda_case_floats (rand, LOTS, WEFT_FP32);
  for (int i = 0; i < LOTS; i++)
    ((float *) cpu.operand[5].data)[i] = fabsf (((float *) cpu.operand[5].data)[i]);
  struct weft_kernel device = copy_of (&cpu);
  weft_cpu_adam (&cpu, 0, 1);
  d->launch (d->user, &device, FALSE);
  for (uint32_t o = 0; o <= 5; o++)
    if (cpu.operand[o].data)
      assert_memory_equal (cpu.operand[o].data, device.operand[o].data,
                           cuda_case_bytes (&cpu.operand[o]));
  cuda_case_free (&cpu);
  cuda_case_free (&device);
}

/* ------------------------------------------------------------------- products with a gate */

static void
check_gated (const struct cuda_case_device *d, GRand *rand, enum weft_dtype dtype,
             const uint64_t size[3])
{
  const uint64_t m = size[0], f = size[1], k = size[2];
  union weft_model model;
  struct weft_kernel cpu = { .kind = WEFT_OP_MATMUL_SWIGLU,
                             .shape = { .dtype = dtype,
                                        .out_dtype = dtype,
                                        .dim = { m, 2 * f, k } },
                             .model = &model };
  const uint64_t n[] = { m * k, 2 * f * k, 0, 2 * m * f, m * f };

  weft_table_defaults (&weft_model_table, model.at);
  model.activation = WEFT_SWIGLU;
  for (unsigned o = 0; o < G_N_ELEMENTS (n); o++)
    if (n[o])
      cpu.operand[o] = cuda_case_floats (rand, n[o], dtype);
  cuda_case_alike (d, &cpu, dtype == WEFT_BF16 ? 0x1p-7 : 0x1p-10);
  cuda_case_free (&cpu);
}

void
cuda_case_gated (const struct cuda_case_device *d)
{
  /* rows, columns of gate, terms: less than a tile; whole tiles; parts of tiles at all edges; more
   * rows of tiles than are computed together */
  static const uint64_t sizes[][3] = { { 1, 8, 8 },       { 128, 128, 256 }, { 130, 136, 72 },
                                       { 60, 264, 520 },  { 257, 72, 200 },  { 1160, 136, 64 } };
  g_autoptr (GRand) rand = g_rand_new_with_seed (23);

  for (unsigned i = 0; i < G_N_ELEMENTS (sizes) && cuda_case_has (d, WEFT_OP_MATMUL_SWIGLU); i++)
    check_gated (d, rand, i % 2 ? WEFT_FP16 : WEFT_BF16, sizes[i]);
}

/* Ops whose test cases are in cuda_attention.c, cuda_scores.c, cuda_fp8.c or cuda_experts.c. */
#define ELSEWHERE                                                                                  \
  "scores softmax context context_bwd softmax_bwd scores_bwd amax quantise transpose "             \
  "quantise_delayed quantise_blocks "                                                              \
  "matmul_fp8 matmul_dgrad_fp8 fp8_matmul fp8_matmul_dgrad fp8_matmul_wgrad "                      \
  "attention_part attention_part_bwd moe_route moe_route_bwd "                                     \
  "moe_sort moe_tally moe_permute "                                                                \
  "moe_unpermute moe_group moe_ungroup moe_turn moe_matmul moe_matmul_dgrad moe_matmul_wgrad "     \
  "moe_act moe_act_bwd moe_weigh moe_weigh_bwd moe_amax moe_quantise moe_quantise_blocks "         \
  "moe_fp8_matmul moe_fp8_matmul_dgrad moe_fp8_matmul_wgrad"

void
cuda_case_is_complete (const struct cuda_case_device *d)
{
  for (int kind = 0; kind < WEFT_N_OP; kind++) {
    gboolean found = !d->has_kernel (d->user, (enum weft_op_kind) kind) || is_drawn (d, kind) ||
                     kernel_case_is_one_of (weft_op_info[kind].word, ELSEWHERE);
    for (unsigned i = 0; i < G_N_ELEMENTS (fixed); i++)
      found = found || (int) fixed[i].kind == kind;
    if (!found)
      fail_msg ("%s has no case", weft_op_info[kind].word);
  }
}
