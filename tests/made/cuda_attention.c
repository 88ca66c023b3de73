/* Attention kernels of a device against those of the CPU: whole sequences and context-parallel
 * parts, sliding windows, value heads of another width, with and without tensor cores. */
#include "tests/made/cuda_case.h"

/* Attention of `size` context parallel ranks, each with `tokens` tokens of every sequence. `value`:
 * width of value heads (0: as wide as `width`). `window`: 0 for no window. */
struct sample {
  uint32_t batch, size;
  uint64_t tokens, heads, groups, width, window, value;
  enum weft_dtype dtype;
};

static const struct sample whole[] = {
  { 1, 1, 130, 2, 1, 64, 40, 0, WEFT_BF16 },  { 1, 1, 70, 2, 2, 192, 0, 128, WEFT_BF16 },
  { 1, 1, 66, 2, 1, 128, 65, 0, WEFT_FP16 },  { 2, 1, 19, 4, 2, 6, 5, 10, WEFT_FP32 },
  { 1, 1, 33, 1, 1, 192, 7, 128, WEFT_FP16 }, { 1, 1, 30, 2, 1, 72, 0, 0, WEFT_BF16 },
  { 1, 1, 390, 2, 1, 64, 0, 0, WEFT_BF16 },   { 1, 1, 330, 1, 1, 128, 270, 0, WEFT_FP16 },
  { 2, 1, 70, 4, 2, 40, 0, 0, WEFT_FP16 },    { 1, 1, 150, 2, 1, 96, 70, 0, WEFT_BF16 },
  { 1, 1, 40, 2, 1, 96, 0, 48, WEFT_BF16 },   { 1, 1, 40, 2, 2, 160, 0, 96, WEFT_BF16 },
  { 1, 1, 20, 2, 1, 60, 0, 0, WEFT_BF16 },    { 1, 1, 20, 2, 1, 24, 0, 0, WEFT_FP16 },
};

static const struct sample parts[] = {
  { 1, 2, 72, 2, 1, 64, 0, 0, WEFT_BF16 },    { 1, 4, 20, 2, 2, 128, 0, 0, WEFT_FP16 },
  { 1, 2, 140, 2, 1, 64, 0, 0, WEFT_FP16 },   { 1, 2, 40, 2, 1, 64, 37, 0, WEFT_BF16 },
  { 1, 2, 24, 2, 1, 192, 0, 128, WEFT_BF16 }, { 2, 2, 12, 4, 2, 6, 5, 10, WEFT_FP32 },
  { 1, 2, 30, 4, 2, 80, 0, 0, WEFT_FP16 },    { 1, 4, 6, 2, 1, 20, 0, 0, WEFT_FP32 },
};

/* Allocates an operand and fills it with random numbers. */
static void
fill (GRand *rand, struct weft_kernel *k, uint32_t o, enum weft_dtype dtype)
{
  k->operand[o] = cuda_case_floats (rand, weft_kernels[k->kind].extent (k, o), dtype);
}

enum { OUTPUTS = 2 /* the forward kernel writes two operands: o and lse (log-sum-exp) */ };

/* Checks the forward kernel, and then the backward kernel with the o and lse of forward. In both
 * calls, operand `o` is the output and operand `o` + 1 the lse; the backward call has more
 * operands: the gradients of the output and of the inputs. */
static void
check (const struct cuda_case_device *d, GRand *rand, struct weft_kernel k, enum weft_dtype dtype)
{
  uint32_t o = k.kind == WEFT_OP_ATTENTION ? 1 : 2, last = o + OUTPUTS + (o == 1 ? 2 : 3);
  double tolerance = dtype == WEFT_FP32 ? 1e-5 : dtype == WEFT_BF16 ? 0.02 : 0.004;

  for (uint32_t i = 0; i < o + OUTPUTS; i++)
    fill (rand, &k, i, i == o + 1 ? WEFT_FP32 : dtype);
  cuda_case_alike (d, &k, tolerance);
  k.kind = k.kind == WEFT_OP_ATTENTION ? WEFT_OP_ATTENTION_BWD : WEFT_OP_ATTENTION_PART_BWD;
  for (uint32_t i = o + OUTPUTS; i < last; i++) {
    fill (rand, &k, i, dtype);
    k.operand[i].accumulate = o == 2 && i > o + OUTPUTS && g_rand_boolean (rand);
  }
  cuda_case_alike (d, &k, 2 * tolerance);
  cuda_case_free (&k);
}

/* Checks attention on whole sequences. `like`: the other fields of the call (fused, deterministic,
 * ...). */
static void
check_whole_sequence (const struct cuda_case_device *d, GRand *rand, const struct sample *s,
                      struct weft_kernel like)
{
  const uint64_t dim[] = {
    s->batch, s->tokens, s->heads, s->groups, s->width, s->window, s->value
  };
  union weft_model model;

  weft_table_defaults (&weft_model_table, model.at);
  model.seq_length = (int64_t) s->tokens;
  like.kind = WEFT_OP_ATTENTION;
  like.model = &model;
  memcpy (like.shape.dim, dim, sizeof dim);
  check (d, rand, like, s->dtype);
}

static void
check_whole_sequences (const struct cuda_case_device *d)
{
  GRand *rand = g_rand_new_with_seed (1);

  for (unsigned i = 0; i < G_N_ELEMENTS (whole); i++)
    check_whole_sequence (d, rand, &whole[i], (struct weft_kernel){ 0 });
  g_rand_free (rand);
}

void
cuda_case_fused_attention (const struct cuda_case_device *d)
{
  static const struct sample taken[] = {
    { 2, 1, 33, 4, 2, 64, 0, 0, WEFT_BF16 },    { 1, 1, 65, 2, 2, 64, 0, 0, WEFT_FP16 },
    { 1, 1, 24, 2, 1, 128, 0, 0, WEFT_BF16 },   { 1, 1, 50, 2, 1, 64, 17, 0, WEFT_BF16 },
    { 2, 1, 16, 2, 2, 192, 0, 128, WEFT_BF16 },
  };
  GRand *rand = g_rand_new_with_seed (5);

  for (unsigned i = 0; i < G_N_ELEMENTS (taken); i++)
    for (int same = 0; same < 2; same++)
      check_whole_sequence (d, rand, &taken[i],
                            (struct weft_kernel){ .fused = TRUE, .deterministic = same });
  g_rand_free (rand);
}

static void
check_part (const struct cuda_case_device *d, GRand *rand, const struct sample *s,
            struct weft_kernel k, uint64_t keys)
{
  const uint64_t dim[] = {
    s->batch * s->tokens, keys, s->heads, s->groups, s->width, s->window, s->value
  };

  k.kind = WEFT_OP_ATTENTION_PART;
  k.cp.of = s->size;
  memcpy (k.shape.dim, dim, sizeof dim);
  check (d, rand, k, s->dtype);
}

/* Checks the queries of one rank: first with the keys of the whole sequence; then, if the sample
 * has no window, with the keys of one rank per call. */
static void
check_parts_of_sequences (const struct cuda_case_device *d)
{
  GRand *rand = g_rand_new_with_seed (2);
  union weft_model model;

  weft_table_defaults (&weft_model_table, model.at);
  for (unsigned i = 0; i < G_N_ELEMENTS (parts); i++) {
    const struct sample *s = &parts[i];
    uint32_t rank = i % s->size;
    struct weft_kernel k = { .model = &model, .cp.at = rank };
    model.seq_length = (int64_t) (s->tokens * s->size);
    check_part (d, rand, s, k, s->tokens * s->size);
    for (k.before = 0; k.before < s->size && !s->window; k.before++)
      check_part (d, rand, s, k, s->tokens);
  }
  g_rand_free (rand);
}

void
cuda_case_attention (const struct cuda_case_device *d)
{
  check_whole_sequences (d);
  check_parts_of_sequences (d);
}
