/* Unfused attention, which stores its scores, against the CPU kernels: shapes with and without
 * tiled matmuls, sliding windows. */
#include "kernels/float.h"
#include "tests/made/cuda_case.h"

static const struct sample {
  uint64_t batch, sequence, heads, groups, width, window;
  enum weft_dtype dtype;
} samples[] = {
  { 1, 136, 2, 1, 64, 0, WEFT_BF16 },  { 2, 40, 2, 2, 16, 7, WEFT_FP16 },
  { 1, 270, 1, 1, 8, 130, WEFT_FP16 }, { 1, 13, 4, 2, 6, 5, WEFT_FP32 },
  { 1, 37, 2, 1, 72, 0, WEFT_BF16 },
};

/* Sets the attention scores of masked keys to 0, as the ops that write scores do. */
static void
hide (const struct sample *s, struct weft_operand *square)
{
  const float nothing = 0;

  for (uint64_t i = 0; i < square->n; i++) {
    uint64_t key = i % s->sequence, query = i / s->sequence % s->sequence;
    if (key > query || (s->window && query - key >= s->window))
      weft_store (square->data, square->dtype, i, 1, &nothing);
  }
}

static gboolean
is_square (const char *name)
{
  return kernel_case_is_one_of (name, "scores p dp ds");
}

static void
check (const struct cuda_case_device *d, GRand *rand, const struct sample *s,
       enum weft_op_kind kind)
{
  struct kernel_argument argument[WEFT_MOST_OPERANDS];
  union weft_model model;
  struct weft_kernel k = { .kind = kind,
                           .shape = { .dim = { s->batch, s->sequence, s->heads, s->groups, s->width,
                                               s->window } },
                           .model = &model };

  weft_table_defaults (&weft_model_table, model.at);
  for (uint32_t o = 0, n = kernel_case_arguments (kind, argument); o < n; o++) {
    k.operand[o] = cuda_case_floats (rand, weft_kernels[kind].extent (&k, o), s->dtype);
    if (is_square (argument[o].name))
      hide (s, &k.operand[o]);
  }
  cuda_case_alike (d, &k, 2e-5);
  cuda_case_free (&k);
}

void
cuda_case_scores (const struct cuda_case_device *d)
{
  static const enum weft_op_kind kinds[] = { WEFT_OP_SCORES,      WEFT_OP_SOFTMAX,
                                             WEFT_OP_WEIGHT_VALUES,     WEFT_OP_WEIGHT_VALUES_BWD,
                                             WEFT_OP_SOFTMAX_BWD, WEFT_OP_SCORES_BWD };
  GRand *rand = g_rand_new_with_seed (21);

  for (unsigned i = 0; i < G_N_ELEMENTS (samples); i++)
    for (unsigned kind = 0; kind < G_N_ELEMENTS (kinds); kind++)
      check (d, rand, &samples[i], kinds[kind]);
  g_rand_free (rand);
}
