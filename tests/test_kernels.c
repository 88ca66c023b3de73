/* Every kernel of the table against its fp64 reference, every backward reference against
 * differences of its forward one, and the promises of kernels/kernel.h about bits. */
#include "core/base/exact.h"
#include "core/base/fold.h"
#include "kernels/float.h"
#include "kernels/kernel.h"
#include <inttypes.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <cmocka.h>
enum { N_TRIAL = 60 /* of each op */, MOST_SEQUENCES = 9 };
#define EPSILON32 0x1p-24
#define OTHERS                                                                                     \
  "matmul_fp8 matmul_dgrad_fp8 quantise quantise_mx transpose attention_part "                     \
  "attention_part_bwd attention_merge take_kv put_kv split_sequence join_sequence split_heads "    \
  "join_heads keep_piece scores softmax context context_bwd softmax_bwd scores_bwd dropout "       \
  "dropout_add dropout_bwd bias add_positions norm_dgrad norm_wgrad head_norm_dgrad "              \
  "head_norm_wgrad settle join_columns xent_max xent_part xent_end latent_split latent_split_bwd " \
  "latent_join latent_join_bwd" /* of test_fp8.c, _context, _unfused_attention, _tensor */
#define IS_HERE(word) (!g_str_has_prefix (word, "moe_") && !is_one_of (word, OTHERS))
#define IS_TESTED(kind) (weft_kernels[kind].cpu && IS_HERE (weft_op_info[kind].word))
#define IS_SPLIT(kind) (weft_kernels[kind].splits && IS_TESTED (kind))
enum { READS = 1, WRITES = 2, MAY_BE_ABSENT = 4 };
/* ------------------------------------------------------------------ ops as rows */
struct argument {
  char name[16];
  unsigned flags;
};

/* "dy:r x:r dw:rw db:rw?" */
static uint32_t
arguments (enum weft_op_kind kind, struct argument *argument)
{
  g_auto (GStrv) words = g_strsplit (weft_op_info[kind].operands, " ", -1);
  uint32_t n = 0;

  for (; words[n]; n++) {
    const char *access = strchr (words[n], ':') + 1;
    g_strlcpy (argument[n].name, words[n], (gsize) (access - words[n]));
    argument[n].flags = (strchr (access, 'r') ? READS : 0) | (strchr (access, 'w') ? WRITES : 0) |
                        (strchr (access, '?') ? MAY_BE_ABSENT : 0);
  }
  return n;
}

static gboolean
is_one_of (const char *name, const char *names)
{
  g_auto (GStrv) list = g_strsplit (names, " ", -1);
  return g_strv_contains ((const char *const *) list, name);
}

/* Sums over tokens, which accumulate or do not. */
static gboolean
is_gradient (const char *name)
{
  return is_one_of (name, "dtable dpositions dw db dweight dbias dq_weight dk_weight");
}

static enum weft_dtype
argument_dtype (const char *name, const struct weft_shape *shape)
{
  if (is_one_of (name, "ids targets"))
    return WEFT_INT32;
  if (is_one_of (name, "lse factor master m v loss squares count amax found gradient"))
    return WEFT_FP32;
  return is_gradient (name) || is_one_of (name, "main") ? shape->out_dtype : shape->dtype;
}

/* One call of an op, with all operands as doubles: what their stored type can hold. */
struct made {
  struct weft_kernel k;
  union weft_model model;
  struct weft_control control;
  struct argument argument[WEFT_MOST_OPERANDS];
  uint32_t n;
  uint64_t sequences;
};

static int64_t
pick (GRand *rand, const char *choices)
{
  g_auto (GStrv) list = g_strsplit (choices, " ", -1);
  return g_ascii_strtoll (list[g_rand_int_range (rand, 0, (gint32) g_strv_length (list))], NULL,
                          10);
}

static void
choose_model (GRand *rand, union weft_model *m)
{
  weft_table_defaults (&weft_model_table, m->at);
  m->num_query_groups = pick (rand, "1 2 3");
  m->num_attention_heads = m->num_query_groups * pick (rand, "1 2 4");
  m->kv_channels = pick (rand, "1 2 6 8 13 64");
  m->hidden_size = pick (rand, "1 3 8 17 100 1027");
  m->vocab_size = pick (rand, "2 7 40");
  m->seq_length = pick (rand, "1 2 5 19");
  m->max_position_embeddings = m->seq_length + pick (rand, "0 3");
  m->normalization = pick (rand, "0 1");
  m->rotary_percent = g_rand_boolean (rand) ? 1 : 0.5;
  m->rotary_scaling = g_rand_boolean (rand) ? WEFT_ROTARY_NONE : WEFT_ROTARY_LLAMA3;
  m->rotary_scaling_factor = 8;
}

static uint64_t
dimension (GRand *rand, const struct made *made, const char *word)
{
  const union weft_model *m = &made->model;
  uint64_t heads = (uint64_t) (m->num_attention_heads + m->num_query_groups);
  gboolean by_head =
      is_one_of (weft_op_info[made->k.kind].word, "head_norm head_norm_bwd rope rope_bwd");
  uint64_t tokens = made->sequences * (uint64_t) m->seq_length;
  const struct {
    const char *words;
    uint64_t value;
  } known[] = {
    { "tokens rows", by_head ? tokens * heads : tokens },
    { "m", tokens },
    { "columns", by_head ? (uint64_t) m->kv_channels : (uint64_t) pick (rand, "1 3 40 130 1500") },
    { "hidden", (uint64_t) m->hidden_size },
    { "batch", made->sequences },
    { "sequence", (uint64_t) m->seq_length },
    { "heads", (uint64_t) m->num_attention_heads },
    { "groups", (uint64_t) m->num_query_groups },
    { "width", (uint64_t) m->kv_channels },
    { "n k", (uint64_t) pick (rand, "1 5 16 37 70") },
    { "elements", (uint64_t) pick (rand, "1 5 1024 5003") },
    { "one parts times pieces", 1 },
    { "leaves tail whole own piece window value", 0 }, /* one rank has all; one tensor fills a slice */
    { "itself", made->k.shape.dim[0] % 2 },
    { "divisor slices", (uint64_t) pick (rand, "2 3 7") },
  };

  for (unsigned i = 0; i < G_N_ELEMENTS (known); i++)
    if (is_one_of (word, known[i].words))
      return known[i].value;
  fail_msg ("no value for dimension %s", word);
  return 0;
}

static void
choose_shape (GRand *rand, struct made *made)
{
  g_auto (GStrv) words = g_strsplit (weft_op_info[made->k.kind].dims, " ", -1);

  for (unsigned d = 0; words[d] && *words[d]; d++)
    if (!is_one_of (words[d], "leaves tail whole own")) /* test_gemm.c, test_tensor_kernels.c */
      made->k.shape.dim[d] = dimension (rand, made, words[d]);
}

/* Rounded to what the type holds. */
static double
stored (double value, enum weft_dtype dtype)
{
  float rounded = (float) value;

  if (dtype > WEFT_FP16)
    return value;
  weft_round (dtype, 1, &rounded);
  return (double) rounded;
}

static void
fill (GRand *rand, struct made *made, uint32_t o)
{
  struct weft_operand *operand = &made->k.operand[o];
  const char *name = made->argument[o].name;
  double size = is_one_of (name, "logits") ? 100 : 2; /* exponentials that no float holds */
  double least = is_one_of (name, "v squares factor") ? 0.1 : -size;
  int limit = (int) (is_one_of (name, "ids") ? made->model.vocab_size
                                             : (int64_t) MAX (made->k.shape.dim[1], 1));

  for (uint64_t i = 0; i < operand->n; i++)
    if (operand->dtype == WEFT_INT32)
      ((int32_t *) operand->data)[i] = g_rand_int_range (rand, 0, limit);
    else
      ((double *) operand->data)[i] =
          stored (g_rand_double_range (rand, least, size), operand->dtype);
}

static void
make_operand (GRand *rand, struct made *made, uint32_t o)
{
  struct weft_operand *operand = &made->k.operand[o];
  const char *name = made->argument[o].name;
  unsigned flags = made->argument[o].flags;

  operand->dtype = argument_dtype (name, &made->k.shape);
  operand->accumulate = (flags & READS) && (flags & WRITES);
  if (is_gradient (name) || is_one_of (name, "loss squares"))
    operand->accumulate = operand->accumulate && g_rand_boolean (rand);
  uint64_t extent = weft_kernels[made->k.kind].extent (&made->k, o);
  operand->n = extent ? extent : made->k.shape.dim[0];
  gboolean absent = (flags & MAY_BE_ABSENT) && g_rand_boolean (rand);
  if (is_one_of (name,
                 "master param")) /* one of them is there, for fewer bits the master or told */
    absent = made->k.shape.dtype == WEFT_FP32 || made->k.shape.dim[1] ? *name == 'm'
                                                                      : *name == 'p' && absent;
  operand->data = absent ? NULL : g_malloc (operand->n * sizeof (double));
  if (operand->data)
    fill (rand, made, o);
}

static void
make (GRand *rand, struct made *made, enum weft_op_kind kind)
{
  enum weft_dtype dtype = (enum weft_dtype) pick (rand, "0 1 2"); /* fp32, bf16, fp16 */

  *made = (struct made){ .k = { .kind = kind },
                         .control = { .step = (uint64_t) g_rand_int_range (rand, 1, 20),
                                      .lr = 0.01,
                                      .beta1 = 0.9,
                                      .beta2 = 0.95,
                                      .epsilon = 1e-8,
                                      .weight_decay = 0.1,
                                      .loss_scale = 0.5,
                                      .clip_grad = g_rand_double_range (rand, 0.1, 3) } };
  choose_model (rand, &made->model);
  made->sequences = (uint64_t) g_rand_int_range (rand, 1, MOST_SEQUENCES + 1);
  choose_shape (rand, made);
  made->k.shape.dtype = dtype;
  made->k.shape.out_dtype = g_rand_boolean (rand) ? dtype : WEFT_FP32;
  made->k.model = &made->model;
  made->k.control = &made->control;
  made->k.canonical = g_rand_boolean (rand);
  made->k.decay = g_rand_boolean (rand);
  made->n = arguments (kind, made->argument);
  for (uint32_t o = 0; o < made->n; o++)
    make_operand (rand, made, o);
}

/* The same call with other memory of `size` bytes an element, not filled. */
static struct weft_kernel
other_memory (const struct made *made, size_t size)
{
  struct weft_kernel k = made->k;

  for (uint32_t o = 0; o < made->n; o++)
    if (k.operand[o].data)
      k.operand[o].data = g_malloc0 (MAX (size, 4) * k.operand[o].n);
  return k;
}

static void
free_memory (const struct made *made, struct weft_kernel *k)
{
  for (uint32_t o = 0; o < made->n; o++)
    g_free (k->operand[o].data);
}

static void
unmake (struct made *made)
{
  free_memory (made, &made->k);
}

/* As the executor stores it.  What is only written holds NaN before. */
static struct weft_kernel
as_stored (const struct made *made)
{
  struct weft_kernel k = other_memory (made, sizeof (double));

  for (uint32_t o = 0; o < made->n; o++) {
    struct weft_operand *to = &k.operand[o];
    const double *from = made->k.operand[o].data;
    gboolean read = (made->argument[o].flags & READS) &&
                    !(to->accumulate == FALSE && made->argument[o].flags & WRITES);
    for (uint64_t i = 0; to->data && i < to->n; i++) {
      float value = read && to->dtype != WEFT_INT32 ? (float) from[i] : NAN;
      if (to->dtype == WEFT_INT32)
        ((int32_t *) to->data)[i] = ((const int32_t *) made->k.operand[o].data)[i];
      else
        weft_store (to->data, to->dtype, i, 1, &value);
    }
  }
  return k;
}

static struct weft_kernel
as_doubles (const struct made *made)
{
  struct weft_kernel k = other_memory (made, sizeof (double));

  for (uint32_t o = 0; o < made->n; o++)
    if (k.operand[o].data)
      memcpy (k.operand[o].data, made->k.operand[o].data, k.operand[o].n * sizeof (double));
  return k;
}

/* What forward left for backward has to fit its input. */
static void
make_consistent (struct made *made)
{
  struct weft_operand *o = made->k.operand;
  struct weft_kernel forward = made->k;
  double loss = 0;

  if (made->k.kind == WEFT_OP_XENT_BWD) {
    forward.operand[4] = (struct weft_operand){ .data = &loss, .n = 1, .dtype = WEFT_FP32 };
    weft_ref_xent (&forward);
  } else if (made->k.kind == WEFT_OP_ATTENTION_BWD) {
    weft_ref_attention (&forward);
    for (uint64_t i = 0; i < o[1].n; i++)
      ((double *) o[1].data)[i] = stored (((double *) o[1].data)[i], o[1].dtype);
  } else
    return;
  for (uint64_t i = 0; i < o[2].n; i++)
    ((double *) o[2].data)[i] = stored (((double *) o[2].data)[i], WEFT_FP32);
}

/* ------------------------------------------------------------ kernels, reference */
static gboolean
is_elementwise (enum weft_op_kind kind)
{
  return is_one_of (weft_op_info[kind].word,
                    "gelu gelu_bwd swiglu swiglu_bwd relu2 relu2_bwd add "
                    "grad_add zero scale cast clip adam embed rope rope_bwd");
}

/* Terms of the longest sum of an op, at least. */
static double
longest_sum (const struct made *made)
{
  uint64_t most = 1;

  for (int d = 0; d < 5 && !is_elementwise (made->k.kind); d++)
    most = MAX (most, made->k.shape.dim[d]);
  return (double) most;
}

static const double half_ulp[WEFT_N_DTYPE] = { [WEFT_BF16] = 0x1p-8, [WEFT_FP16] = 0x1p-11 };
/* What an element may be off by, and as a share of its value. */
struct tolerance {
  double error, share;
};

/* The largest factor of a norm's rows, 1 / sqrt (variance + epsilon): its gradient is a difference of
 * larger numbers times that. */
static double
steepest (const struct made *made)
{
  const struct weft_operand *x = &made->k.operand[1];
  uint64_t columns = made->k.shape.dim[1];
  const double *at = x->data;
  double least = INFINITY;

  for (uint64_t row = 0; row < x->n / columns; row++, at += columns) {
    double sum = 0, squares = 0;
    for (uint64_t i = 0; i < columns; i++)
      sum += at[i], squares += at[i] * at[i];
    least = fmin (least, (squares - sum * sum / (double) columns) / (double) columns);
  }
  return 1 / sqrt (fmax (least, 0) + made->model.norm_epsilon);
}

/* Nodes of a tree over sequences are rounded to `half` of their last bit, each by itself: those of one
 * level, about the root of their rows large or as large as the sum, miss by half / sqrt (3) times that
 * together, and the levels by the root of their number.  Terms are 4 / 3 in the mean; five deviations. */
static double
missed_by_nodes (const struct made *made, double half, double sum)
{
  double levels = 1 + ceil (log2 ((double) made->sequences + 1));
  double size = fmax (4.0 / 3 * sqrt ((double) made->k.shape.dim[0]), sum);

  return 5 * half / sqrt (3) * size * sqrt (levels);
}

/* fp32 sums are off by their length's root, relative to what they add: numbers near 1, but for the
 * loss.  A value of fewer bits is off by half of its last bit, and so is every node below it. */
static struct tolerance
tolerance (const struct made *made, uint32_t o, const double *wanted)
{
  double scale = made->k.kind == WEFT_OP_XENT_BWD ? 1.0 / (double) made->k.shape.dim[2] : 1;
  double half = half_ulp[made->k.operand[o].dtype];
  gboolean folds = made->k.canonical && is_gradient (made->argument[o].name);

  for (uint64_t i = 0; i < made->k.operand[o].n; i++)
    scale = fmax (scale, fabs (wanted[i]));
  if (is_one_of (weft_op_info[made->k.kind].word, "norm_bwd head_norm_bwd"))
    scale = fmax (scale, 4 * steepest (made));
  struct tolerance t = { 8 * EPSILON32 * sqrt (longest_sum (made)) * scale, half };
  t.error += half * t.error + (folds ? missed_by_nodes (made, half, scale) : 0);
  t.error += made->k.operand[o].dtype == WEFT_FP16 ? 0x1p-25 : 0; /* subnormal numbers */
  return t;
}

static void
compare_operand (const struct made *made, uint32_t o, const struct weft_kernel *found,
                 const struct weft_kernel *wanted)
{
  const struct weft_operand *f = &found->operand[o];
  const double *w = wanted->operand[o].data;
  float room;

  if (f->dtype == WEFT_INT32)
    return;
  struct tolerance t = tolerance (made, o, w);
  for (uint64_t i = 0; i < f->n; i++) {
    double value = (double) *weft_floats (f->data, f->dtype, i, 1, &room);
    double allowed = t.error + t.share * fabs (w[i]);
    if (!(fabs (value - w[i]) <= allowed))
      fail_msg ("%s, dims %" PRIu64 " %" PRIu64 " %" PRIu64 ", %s[%" PRIu64
                "]: found %.9g, wanted %.9g within %.2g",
                weft_op_info[made->k.kind].word, made->k.shape.dim[0], made->k.shape.dim[1],
                made->k.shape.dim[2], made->argument[o].name, i, value, w[i], allowed);
  }
}

static void
a_kernel_does_what_its_reference_does (void **state)
{
  GRand *rand = g_rand_new_with_seed (1);

  (void) state;
  for (int kind = 0; kind < WEFT_N_OP; kind++)
    for (int trial = 0; trial < N_TRIAL && IS_TESTED (kind); trial++) {
      struct made made;
      make (rand, &made, (enum weft_op_kind) kind);
      make_consistent (&made);
      struct weft_kernel cpu = as_stored (&made), reference = as_doubles (&made);
      weft_kernels[kind].cpu (&cpu, 0, 1);
      weft_kernels[kind].reference (&reference);
      for (uint32_t o = 0; o < made.n; o++)
        if (cpu.operand[o].data)
          compare_operand (&made, o, &cpu, &reference);
      free_memory (&made, &cpu);
      free_memory (&made, &reference);
      unmake (&made);
    }
  g_rand_free (rand);
}

static void
same_bits (const struct made *made, const struct weft_kernel *a, const struct weft_kernel *b)
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
      struct made made;
      uint32_t parts = 2 + (uint32_t) trial % 6;
      make (rand, &made, (enum weft_op_kind) kind);
      make_consistent (&made);
      struct weft_kernel whole = as_stored (&made), split = as_stored (&made);
      weft_kernels[kind].cpu (&whole, 0, 1);
      for (uint32_t part = parts; part-- > 0;)
        weft_kernels[kind].cpu (&split, part, parts);
      same_bits (&made, &whole, &split);
      free_memory (&made, &whole);
      free_memory (&made, &split);
      unmake (&made);
    }
  g_rand_free (rand);
}

/* -------------------------------------------------------------------- gradients */

/* What each operand of a backward op is to its forward op: a value `v`, the gradient of an output
 * `d`, of an input `g`, both in place `b`, or the value first and then its gradient `x`; with the
 * forward operand's place.  `-` is absent. */
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
  { WEFT_OP_RELU2, WEFT_OP_RELU2_BWD, 1, "v0 d1 g0" },
  { WEFT_OP_XENT, WEFT_OP_XENT_BWD, 4, "x0 v1 v2" },
};

/* Sizes for which every element can be moved. */
static void
make_small (GRand *rand, struct made *made, enum weft_op_kind kind)
{
  uint64_t most;

  for (;;) {
    make (rand, made, kind);
    most = 0;
    for (uint32_t o = 0; o < made->n; o++)
      most = MAX (most, made->k.operand[o].n);
    if (most <= 400)
      return;
    unmake (made);
  }
}

/* The forward op of a case, every operand there, in doubles that nobody rounded. */
static void
make_forward (GRand *rand, struct made *made, enum weft_op_kind kind)
{
  make_small (rand, made, kind);
  made->k.shape.dtype = made->k.shape.out_dtype = WEFT_FP32;
  for (uint32_t o = 0; o < made->n; o++) {
    struct weft_operand *operand = &made->k.operand[o];
    if (!operand->data) {
      operand->data = g_malloc (operand->n * sizeof (double));
      fill (rand, made, o);
    }
    if (is_one_of (made->argument[o].name, "loss"))
      operand->accumulate = FALSE;
  }
}

/* sum of output times its gradient, with element i of operand o moved by `by`. */
static double
moved (const struct made *made, const struct derivative *d, const double *weight, uint32_t o,
       uint64_t i, double by)
{
  struct weft_kernel k = as_doubles (made);
  double total = 0;

  ((double *) k.operand[o].data)[i] += by;
  weft_kernels[d->forward].reference (&k);
  for (uint64_t e = 0; e < k.operand[d->output].n; e++)
    total += weight[e] * ((double *) k.operand[d->output].data)[e];
  free_memory (made, &k);
  return total;
}

static void
check_gradient (const struct made *made, const struct derivative *d, const double *weight,
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

/* The backward op's call from its forward's values before and after. */
static struct weft_kernel
backward_call (const struct derivative *d, const struct weft_kernel *before,
               const struct weft_kernel *after, const double *weight)
{
  g_auto (GStrv) map = g_strsplit (d->map, " ", -1);
  struct argument argument[WEFT_MOST_OPERANDS];
  struct weft_kernel k = *before;

  arguments (d->forward, argument);
  k.kind = d->backward;
  k.shape.dim[2] = d->backward == WEFT_OP_XENT_BWD ? 1 : k.shape.dim[2];
  memset (k.operand, 0, sizeof k.operand);
  for (uint32_t b = 0; map[b]; b++) {
    uint32_t f = (uint32_t) (map[b][1] - '0');
    if (map[b][0] == '-')
      continue;
    const double *from = map[b][0] == 'd' || map[b][0] == 'b' ? weight
                         : argument[f].flags == WRITES        ? after->operand[f].data
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
  struct made made = { 0 };

  make_forward (rand, &made, d->forward);
  uint64_t n = made.k.operand[d->output].n;
  g_autofree double *weight = g_new (double, n);
  for (uint64_t i = 0; i < n; i++)
    weight[i] = d->forward == WEFT_OP_XENT ? 1 : g_rand_double_range (rand, -1, 1);
  struct weft_kernel before = as_doubles (&made), after = as_doubles (&made);
  weft_kernels[d->forward].reference (&after);
  struct weft_kernel backward = backward_call (d, &before, &after, weight);
  weft_kernels[d->backward].reference (&backward);
  for (uint32_t b = 0; map[b]; b++) {
    if (strchr ("gbx", map[b][0]))
      check_gradient (&made, d, weight, (uint32_t) (map[b][1] - '0'), backward.operand[b].data);
    g_free (backward.operand[b].data);
  }
  free_memory (&made, &before);
  free_memory (&made, &after);
  unmake (&made);
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

/* -------------------------------------------------------------- canonical order */

static const enum weft_op_kind folded[] = { WEFT_OP_NORM_BWD, WEFT_OP_EMBED_BWD,
                                            WEFT_OP_HEAD_NORM_BWD, WEFT_OP_MATMUL_WGRAD };

static gboolean
is_folded_operand (const struct made *made, uint32_t o)
{
  return is_gradient (made->argument[o].name) && made->k.operand[o].data != NULL;
}

/* The call on one sequence of a whole: its own rows, and gradients of its own that are overwritten. */
static struct weft_kernel
one_sequence (const struct made *made, const struct weft_kernel *whole, uint64_t sequence)
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

/* Node of the tree over sequences [first, first + n): its gradients lie in single[first]. */
static void
fold_singles (const struct made *made, struct weft_kernel *single, uint64_t n)
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
  struct made made;
  do {
    make (rand, &made, kind);
    if (made.sequences != sequences)
      unmake (&made);
  } while (made.sequences != sequences);
  made.k.canonical = TRUE;
  struct weft_kernel whole = as_stored (&made), rows = as_stored (&made);
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
  free_memory (&made, &whole);
  free_memory (&made, &rows);
  unmake (&made);
}

static void
sequences_of_one_call_fold_like_calls_of_one_sequence (void **state)
{
  GRand *rand = g_rand_new_with_seed (4);

  (void) state;
  for (unsigned f = 0; f < G_N_ELEMENTS (folded); f++)
    for (uint64_t sequences = 1; sequences <= MOST_SEQUENCES; sequences++)
      for (int trial = 0; trial < 6; trial++)
        check_fold (rand, folded[f], sequences);
  g_rand_free (rand);
}

/* Part of the rows (or elements, which are rows of one column) of a call. */
static struct weft_kernel
some_rows (const struct made *made, const struct weft_kernel *k, uint64_t first, uint64_t n)
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

/* xent and grad_norm, whose last operand is the sum. */
static void
check_exact (GRand *rand, enum weft_op_kind kind)
{
  int64_t sum[2][WEFT_EXACT_WORDS] = { { 0 } };
  struct made made;

  make (rand, &made, kind);
  struct weft_kernel k = as_stored (&made);
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
  struct weft_kernel reference = as_doubles (&made);
  double *wanted = reference.operand[made.n - 1].data;
  reference.operand[made.n - 1].accumulate = FALSE;
  weft_kernels[kind].reference (&reference);
  assert_true (fabs (weft_exact_value (sum[0]) - *wanted) <= 1e-6 * fabs (*wanted) + 1e-6);
  free_memory (&made, &reference);
  last->data = NULL;
  free_memory (&made, &k);
  unmake (&made);
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
    struct made made;
    make (rand, &made, WEFT_OP_NORM_BWD);
    struct weft_kernel apart = as_stored (&made), together = as_stored (&made);
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
    free_memory (&made, &apart);
    free_memory (&made, &together);
    unmake (&made);
  }
  g_rand_free (rand);
}

/* More tokens than are linked, and more columns than one pass of a norm's sums holds. */
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
    struct made made;
    make (rand, &made, sizes[s].kind);
    unmake (&made);
    made.model.seq_length = made.model.max_position_embeddings = sizes[s].sequence;
    made.k.shape.dim[0] = sizes[s].rows;
    made.k.shape.dim[1] = sizes[s].columns;
    made.k.canonical = TRUE;
    for (uint32_t o = 0; o < made.n; o++)
      make_operand (rand, &made, o);
    struct weft_kernel cpu = as_stored (&made), reference = as_doubles (&made);
    weft_kernels[sizes[s].kind].cpu (&cpu, 0, 1);
    weft_kernels[sizes[s].kind].reference (&reference);
    for (uint32_t o = 0; o < made.n; o++)
      if (cpu.operand[o].data)
        compare_operand (&made, o, &cpu, &reference);
    free_memory (&made, &cpu);
    free_memory (&made, &reference);
    unmake (&made);
  }
  g_rand_free (rand);
}

static void
a_factor_of_zero_changes_nothing (void **state)
{
  GRand *rand = g_rand_new_with_seed (8);
  struct made made;

  (void) state;
  make (rand, &made, WEFT_OP_ADAM);
  struct weft_kernel before = as_stored (&made), after = as_stored (&made);
  float zero = 0;
  g_free (after.operand[1].data);
  after.operand[1].data = g_memdup2 (&zero, sizeof zero);
  ((float *) after.operand[0].data)[0] = NAN;
  weft_cpu_adam (&after, 0, 1);
  for (uint32_t o = 2; o < made.n; o++)
    if (after.operand[o].data)
      assert_memory_equal (after.operand[o].data, before.operand[o].data,
                           after.operand[o].n * weft_dtype_bytes (after.operand[o].dtype));
  free_memory (&made, &before);
  free_memory (&made, &after);
  unmake (&made);
  g_rand_free (rand);
}

int
main (void)
{
  static const struct CMUnitTest tests[] = {
    cmocka_unit_test (a_kernel_does_what_its_reference_does),
    cmocka_unit_test (parts_together_have_the_bits_of_the_whole),
    cmocka_unit_test (a_gradient_is_the_slope_of_its_forward),
    cmocka_unit_test (sequences_of_one_call_fold_like_calls_of_one_sequence),
    cmocka_unit_test (an_exact_sum_does_not_see_how_rows_are_split_over_calls),
    cmocka_unit_test (the_residual_gradient_is_added_in_place),
    cmocka_unit_test (sizes_beyond_the_scratch_give_the_same_sums),
    cmocka_unit_test (a_factor_of_zero_changes_nothing),
  };
  return cmocka_run_group_tests (tests, NULL, NULL);
}
