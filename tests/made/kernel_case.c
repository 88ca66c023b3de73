#include "tests/made/kernel_case.h"
#include "kernels/float.h"
#include <inttypes.h>
#include <math.h>

#define EPSILON32 0x1p-24

/* Parses the operands of an op, for example "dy:r x:r dw:rw db:rw?". */
uint32_t
kernel_case_arguments (enum weft_op_kind kind, struct kernel_argument *argument)
{
  g_auto (GStrv) words = g_strsplit (weft_op_info[kind].operands, " ", -1);
  uint32_t n = 0;

  for (; words[n]; n++) {
    const char *access = strchr (words[n], ':') + 1;
    g_strlcpy (argument[n].name, words[n], (gsize) (access - words[n]));
    argument[n].flags = (strchr (access, 'r') ? KERNEL_READS : 0) |
                        (strchr (access, 'w') ? KERNEL_WRITES : 0) |
                        (strchr (access, '?') ? KERNEL_MAY_BE_ABSENT : 0);
  }
  return n;
}

gboolean
kernel_case_is_one_of (const char *name, const char *names)
{
  g_auto (GStrv) list = g_strsplit (names, " ", -1);
  return g_strv_contains ((const char *const *) list, name);
}

/* Whether the operand with this name is a sum over tokens: its op may add to the operand or
 * overwrite it. */
gboolean
kernel_case_is_gradient (const char *name)
{
  return kernel_case_is_one_of (name, "dtable dpositions dw db dweight dbias dq_weight dk_weight");
}

static enum weft_dtype
argument_dtype (const char *name, const struct weft_shape *shape)
{
  if (kernel_case_is_one_of (name, "ids targets"))
    return WEFT_INT32;
  if (kernel_case_is_one_of (name,
                             "lse factor master m v loss squares count amax seen found gradient"))
    return WEFT_FP32;
  return kernel_case_is_gradient (name) || kernel_case_is_one_of (name, "main") ? shape->out_dtype
                                                                                : shape->dtype;
}

static int64_t
kernel_case_pick (GRand *rand, const char *choices)
{
  g_auto (GStrv) list = g_strsplit (choices, " ", -1);
  return g_ascii_strtoll (list[g_rand_int_range (rand, 0, (gint32) g_strv_length (list))], NULL,
                          10);
}

static void
choose_model (GRand *rand, union weft_model *m)
{
  weft_table_defaults (&weft_model_table, m->at);
  m->num_query_groups = kernel_case_pick (rand, "1 2 3");
  m->num_attention_heads = m->num_query_groups * kernel_case_pick (rand, "1 2 4");
  m->kv_channels = kernel_case_pick (rand, "1 2 6 8 13 64");
  m->hidden_size = kernel_case_pick (rand, "1 3 8 17 100 1027");
  m->vocab_size = kernel_case_pick (rand, "2 7 40");
  m->seq_length = kernel_case_pick (rand, "1 2 5 19");
  m->max_position_embeddings = m->seq_length + kernel_case_pick (rand, "0 3");
  m->normalization = kernel_case_pick (rand, "0 1");
  m->rotary_percent = g_rand_boolean (rand) ? 1 : 0.5;
  m->rotary_scaling = g_rand_boolean (rand) ? WEFT_ROTARY_NONE : WEFT_ROTARY_LLAMA3;
  m->rotary_scaling_factor = 8;
  m->rotary_base_local = 100;
  m->activation = kernel_case_pick (rand, "0 1 3 4");
  m->attn_logit_softcapping = kernel_case_pick (rand, "0 2 50");
  m->final_logit_softcapping = kernel_case_pick (rand, "0 30 200");
  m->query_pre_attn_scalar = kernel_case_pick (rand, "0 5");
  m->embedding_multiplier = kernel_case_pick (rand, "0 1 3");
  m->position_offset = kernel_case_pick (rand, "0 2");
  m->qk_layernorm_whole = g_rand_boolean (rand);
  if (g_rand_boolean (rand) && m->attn_logit_softcapping == 0)
    m->position_embedding_type = WEFT_ALIBI;
}

static uint64_t
dimension (GRand *rand, const struct kernel_case *made, const char *word)
{
  const union weft_model *m = &made->model;
  uint64_t heads = (uint64_t) (m->num_attention_heads + m->num_query_groups);
  gboolean by_head = kernel_case_is_one_of (weft_op_info[made->k.kind].word,
                                            "head_norm head_norm_bwd rope rope_bwd");
  uint64_t tokens = made->sequences * (uint64_t) m->seq_length;
  const struct {
    const char *words;
    uint64_t value;
  } known[] = {
    { "tokens rows", by_head ? tokens * heads : tokens },
    { "m", tokens },
    { "columns",
      by_head ? (uint64_t) m->kv_channels : (uint64_t) kernel_case_pick (rand, "1 3 40 130 1504") },
    { "hidden", (uint64_t) m->hidden_size },
    { "batch", made->sequences },
    { "sequence", (uint64_t) m->seq_length },
    { "heads", (uint64_t) m->num_attention_heads },
    { "groups", (uint64_t) m->num_query_groups },
    { "width", (uint64_t) m->kv_channels },
    { "n k a b", (uint64_t) kernel_case_pick (rand, "1 5 16 37 70") },
    { "both", 2 * (uint64_t) kernel_case_pick (rand, "1 5 16 37 72") },
    { "elements", (uint64_t) kernel_case_pick (rand, "1 5 1024 5003") },
    { "one parts passes times pieces", 1 },
    { "leaves tail whole own piece window value depth alike kept drawn gradient",
      /* the call is that of one rank that holds all tokens, heads and experts, and whole tensors */
      0 },
    { "local", made->sequences % 2 },
    { "together", m->qk_layernorm_whole ? heads : 0 },
    { "itself", made->k.shape.dim[0] % 2 },
    { "divisor slices", (uint64_t) kernel_case_pick (rand, "2 3 7") },
  };

  for (unsigned i = 0; i < G_N_ELEMENTS (known); i++)
    if (kernel_case_is_one_of (word, known[i].words))
      return known[i].value;
  fail_msg ("no value for dimension %s", word);
  return 0;
}

static void
choose_shape (GRand *rand, struct kernel_case *made)
{
  g_auto (GStrv) words = g_strsplit (weft_op_info[made->k.kind].dims, " ", -1);

  for (unsigned d = 0; words[d] && *words[d]; d++)
    /* Dimensions with these names stay 0. test_gemm.c and test_tensor_kernels.c test other
     * values. */
    if (!kernel_case_is_one_of (words[d], "leaves tail whole own depth"))
      made->k.shape.dim[d] = dimension (rand, made, words[d]);
}

/* Rounds a value to what the type `dtype` can store. */
static double
kernel_case_stored (double value, enum weft_dtype dtype)
{
  float rounded = (float) value;

  if (dtype > WEFT_FP16)
    return value;
  weft_round (dtype, 1, &rounded);
  return (double) rounded;
}

void
kernel_case_fill (GRand *rand, struct kernel_case *made, uint32_t o)
{
  struct weft_operand *operand = &made->k.operand[o];
  const char *name = made->argument[o].name;
  double size =
      /* Logits up to 100: exp (100) overflows fp32, so kernels must subtract the largest logit. */
      kernel_case_is_one_of (name, "logits") ? 100 : 2;
  double least = kernel_case_is_one_of (name, "v squares factor") ? 0.1 : -size;
  int limit = (int) (kernel_case_is_one_of (name, "ids") ? made->model.vocab_size
                                                         : (int64_t) MAX (made->k.shape.dim[1], 1));

  for (uint64_t i = 0; i < operand->n; i++)
    if (operand->dtype == WEFT_INT32)
      ((int32_t *) operand->data)[i] = g_rand_int_range (rand, 0, limit);
    else
      ((double *) operand->data)[i] =
          kernel_case_stored (g_rand_double_range (rand, least, size), operand->dtype);
}

void
kernel_case_make_operand (GRand *rand, struct kernel_case *made, uint32_t o)
{
  struct weft_operand *operand = &made->k.operand[o];
  const char *name = made->argument[o].name;
  unsigned flags = made->argument[o].flags;

  operand->dtype = argument_dtype (name, &made->k.shape);
  operand->accumulate = (flags & KERNEL_READS) && (flags & KERNEL_WRITES);
  if (kernel_case_is_gradient (name) || kernel_case_is_one_of (name, "loss squares"))
    operand->accumulate = operand->accumulate && g_rand_boolean (rand);
  uint64_t extent = weft_kernels[made->k.kind].extent (&made->k, o);
  operand->n = extent ? extent : made->k.shape.dim[0];
  gboolean absent = (flags & KERNEL_MAY_BE_ABSENT) && g_rand_boolean (rand);
  /* Operands of Adam. The master weight is absent if the type is fp32 or dim[1] (no separate
   * master) is set; otherwise it is present, and the 16-bit weight is absent in half of the
   * cases. */
  if (kernel_case_is_one_of (name, "master param"))
    absent = made->k.shape.dtype == WEFT_FP32 || made->k.shape.dim[1] ? *name == 'm'
                                                                      : *name == 'p' && absent;
  operand->data = absent ? NULL : g_malloc (operand->n * sizeof (double));
  if (operand->data)
    kernel_case_fill (rand, made, o);
}

/* Whether an op fuses a matmul with the following op, which then reads the matmul's sums before
 * they are rounded. */
static gboolean
is_fused_product (enum weft_op_kind kind)
{
#define FUSION(fused, first, ...)                                                                  \
  if (kind == fused && weft_op_is_product (first))                                                 \
    return TRUE;
#include "core/ops.def"
  return FALSE;
}

void
kernel_case_make (GRand *rand, struct kernel_case *made, enum weft_op_kind kind)
{
  /* type of operands: fp32, bf16 or fp16 */
  enum weft_dtype dtype = (enum weft_dtype) kernel_case_pick (rand, "0 1 2");

  *made = (struct kernel_case){ .k = { .kind = kind },
                                .control = { .step = (uint64_t) g_rand_int_range (rand, 1, 20),
                                             .lr = 0.01,
                                             .beta1 = 0.9,
                                             .beta2 = 0.95,
                                             .epsilon = 1e-8,
                                             .weight_decay = 0.1,
                                             .loss_scale = 0.5,
                                             .clip_grad = g_rand_double_range (rand, 0.1, 3) } };
  made->control.corrected = weft_control_correction (&made->control);
  choose_model (rand, &made->model);
  made->sequences = (uint64_t) g_rand_int_range (rand, 1, KERNEL_CASE_SEQUENCES + 1);
  choose_shape (rand, made);
  made->k.shape.dtype = dtype;
  made->k.shape.out_dtype = g_rand_boolean (rand) ? dtype : WEFT_FP32;
  if (is_fused_product (kind)) /* the activation that fused matmul ops apply */
    made->model.activation = kind == WEFT_OP_MATMUL_SWIGLU ? WEFT_SWIGLU : WEFT_GELU;
  made->k.model = &made->model;
  made->k.control = &made->control;
  made->k.canonical = g_rand_boolean (rand);
  made->k.decay = g_rand_boolean (rand);
  made->rounds_inside = is_fused_product (kind) ||
                        (kind == WEFT_OP_EMBED && made->model.embedding_multiplier != 1);
  made->n = kernel_case_arguments (kind, made->argument);
  for (uint32_t o = 0; o < made->n; o++)
    kernel_case_make_operand (rand, made, o);
}

/* Returns a copy of a call. The operands of the copy have new memory, set to zero, with `size`
 * bytes for each element, at least 4. */
static struct weft_kernel
kernel_case_other_memory (const struct kernel_case *made, size_t size)
{
  struct weft_kernel k = made->k;

  for (uint32_t o = 0; o < made->n; o++)
    if (k.operand[o].data)
      k.operand[o].data = g_malloc0 (MAX (size, 4) * k.operand[o].n);
  return k;
}

void
kernel_case_free_memory (const struct kernel_case *made, struct weft_kernel *k)
{
  for (uint32_t o = 0; o < made->n; o++)
    g_free (k->operand[o].data);
}

void
kernel_case_clear (struct kernel_case *made)
{
  kernel_case_free_memory (made, &made->k);
}

/* Returns a copy of a call with operands in the types that the executor stores. Outputs are filled
 * with NaN. */
struct weft_kernel
kernel_case_as_stored (const struct kernel_case *made)
{
  struct weft_kernel k = kernel_case_other_memory (made, sizeof (double));

  for (uint32_t o = 0; o < made->n; o++) {
    struct weft_operand *to = &k.operand[o];
    const double *from = made->k.operand[o].data;
    gboolean read = (made->argument[o].flags & KERNEL_READS) &&
                    !(to->accumulate == FALSE && made->argument[o].flags & KERNEL_WRITES);
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

struct weft_kernel
kernel_case_as_doubles (const struct kernel_case *made)
{
  struct weft_kernel k = kernel_case_other_memory (made, sizeof (double));

  for (uint32_t o = 0; o < made->n; o++)
    if (k.operand[o].data)
      memcpy (k.operand[o].data, made->k.operand[o].data, k.operand[o].n * sizeof (double));
  return k;
}

/* For a backward op, computes the operands that its forward op saves, so that they agree with the
 * inputs. */
void
kernel_case_fit (struct kernel_case *made)
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
      ((double *) o[1].data)[i] = kernel_case_stored (((double *) o[1].data)[i], o[1].dtype);
  } else
    return;
  for (uint64_t i = 0; i < o[2].n; i++)
    ((double *) o[2].data)[i] = kernel_case_stored (((double *) o[2].data)[i], WEFT_FP32);
}

static gboolean
is_elementwise (enum weft_op_kind kind)
{
  return kernel_case_is_one_of (weft_op_info[kind].word,
                                "gelu gelu_bwd swiglu swiglu_bwd relu2 relu2_bwd add "
                                "grad_add zero scale cast clip adam embed rope rope_bwd");
}

/* Returns a lower bound of the number of terms of the longest sum in an op. */
static double
longest_sum (const struct kernel_case *made)
{
  uint64_t most = 1;

  for (int d = 0; d < 5 && !is_elementwise (made->k.kind); d++)
    most = MAX (most, made->k.shape.dim[d]);
  return (double) most;
}

/* Largest relative error of rounding to a type, for 16-bit types; rounding to fp32 is ignored
 * (0). */
static const double half_ulp[WEFT_N_DTYPE] = { [WEFT_BF16] = 0x1p-8, [WEFT_FP16] = 0x1p-11 };
/* Tolerance of an element: `error` is an absolute error, `share` is multiplied by the element. */
struct tolerance {
  double error, share;
};

/* Returns the largest 1 / sqrt (variance + epsilon) of a row of a norm. The gradient of a norm is a
 * difference of larger numbers, multiplied by this factor, so its error grows with the factor. */
static double
steepest (const struct kernel_case *made)
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

/* Rounding error of the canonical tree over sequences, as five standard deviations. Each node is
 * rounded independently, by at most `half` of its value, and by half / sqrt (3) of it in the root
 * mean square. The nodes of one level together have the magnitude `size`: the larger of `sum` and
 * of a random sum of the rows, whose terms have a mean magnitude of 4 / 3. Errors of different
 * levels add in quadrature. */
static double
missed_by_nodes (const struct kernel_case *made, double half, double sum)
{
  double levels = 1 + ceil (log2 ((double) made->sequences + 1));
  double size = fmax (4.0 / 3 * sqrt ((double) made->k.shape.dim[0]), sum);

  return 5 * half / sqrt (3) * size * sqrt (levels);
}

/* Returns the tolerance of output `o`. The error of an fp32 sum grows with the square root of its
 * length, relative to its terms, which are near 1 except in the loss. A 16-bit result adds a
 * relative error of half_ulp, as does every 16-bit node of the summation tree. */
static struct tolerance
tolerance (const struct kernel_case *made, uint32_t o, const double *wanted)
{
  double scale = made->k.kind == WEFT_OP_XENT_BWD ? 1.0 / (double) made->k.shape.dim[2] : 1;
  double half = half_ulp[made->k.operand[o].dtype];
  gboolean folds = made->k.canonical && kernel_case_is_gradient (made->argument[o].name);

  for (uint64_t i = 0; i < made->k.operand[o].n; i++)
    scale = fmax (scale, fabs (wanted[i]));
  if (kernel_case_is_one_of (weft_op_info[made->k.kind].word, "norm_bwd head_norm_bwd"))
    scale = fmax (scale, 4 * steepest (made));
  struct tolerance t = { 8 * EPSILON32 * sqrt (longest_sum (made)) * scale, half };
  /* The gradient kernel reads the log-sum-exp, at most 128, after its rounding to fp32. */
  if (made->k.kind == WEFT_OP_XENT_GRAD)
    t.error += 128 * EPSILON32 * scale;
  t.error += half * t.error + (folds ? missed_by_nodes (made, half, scale) : 0);
  t.error += made->rounds_inside ? 2 * half_ulp[made->k.shape.dtype] * scale : 0;
  /* rounding of fp16 numbers near 0: half of the smallest subnormal number */
  t.error += made->k.operand[o].dtype == WEFT_FP16 ? 0x1p-25 : 0;
  return t;
}

void
kernel_case_compare (const struct kernel_case *made, uint32_t o, const struct weft_kernel *found,
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
