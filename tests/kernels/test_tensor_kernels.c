/* Kernels of tensor parallel ranks, which share matmuls, heads or the vocabulary: each must agree
 * with its reference, and the results of all ranks together must be bitwise equal to the results of
 * one rank that computes everything. */
#include "kernels/float.h"
#include "kernels/kernel.h"
#include "tests/runner/runner.h"
#include <math.h>
#include <string.h>

#define SEQUENCE 8
#define TOKENS 24
#define HIDDEN 20
#define HEADS 8
#define GROUPS 4
#define WIDTH 6
#define VOCAB 37 /* vocabulary in eight leaves (kernels/leaves.h): seven of 5 columns, one of 2 */
#define PADDED 40

static union weft_model model;

static float *
draw (GRand *rand, uint64_t n)
{
  float *x = g_new (float, n + 1);

  for (uint64_t i = 0; i < n; i++)
    x[i] = (float) g_rand_double_range (rand, -2, 2);
  return x;
}

static struct weft_operand
floats (void *data, uint64_t n)
{
  return (struct weft_operand){ .data = data, .n = n, .dtype = WEFT_FP32 };
}

static struct weft_kernel
kernel (enum weft_op_kind kind, const uint64_t dim[5])
{
  struct weft_kernel k = { .kind = kind, .model = &model, .canonical = TRUE };

  memcpy (k.shape.dim, dim, 5 * sizeof *dim);
  return k;
}

/* Runs the reference on copies of the operands `before` as doubles, and asserts that all operands
 * agree within the rounding of fp32. */
static void
expect_reference (const struct weft_kernel *k, const struct weft_kernel *before)
{
  struct weft_kernel exact = *before;

  for (uint32_t o = 0; o < WEFT_MOST_OPERANDS; o++) {
    const struct weft_operand *given = &before->operand[o];
    if (!given->data || given->dtype == WEFT_INT32)
      continue;
    double *x = g_new (double, given->n + 1);
    for (uint64_t i = 0; i < given->n; i++)
      x[i] = ((float *) given->data)[i];
    exact.operand[o].data = x;
  }
  weft_kernels[k->kind].reference (&exact);
  for (uint32_t o = 0; o < WEFT_MOST_OPERANDS; o++) {
    const struct weft_operand *found = &k->operand[o];
    if (!found->data || found->dtype == WEFT_INT32)
      continue;
    double *wanted = exact.operand[o].data;
    for (uint64_t i = 0; i < found->n; i++)
      if (fabs (((float *) found->data)[i] - wanted[i]) > 2e-5 * (1 + fabs (wanted[i])))
        fail_msg ("%s operand %u element %u: found %.9g, wanted %.9g", weft_op_info[k->kind].word,
                  o, (unsigned) i, ((float *) found->data)[i], wanted[i]);
    g_free (wanted);
  }
}

/* Runs a kernel in three parts. Compares the result with one run of the whole kernel, and with its
 * reference. */
static void
check (const struct weft_kernel *k)
{
  struct weft_kernel before = *k, whole = *k;

  for (uint32_t o = 0; o < WEFT_MOST_OPERANDS; o++)
    if (k->operand[o].data) {
      before.operand[o].data = g_memdup2 (k->operand[o].data, k->operand[o].n * 4);
      whole.operand[o].data = g_memdup2 (k->operand[o].data, k->operand[o].n * 4);
    }
  weft_kernels[k->kind].cpu (&whole, 0, 1);
  for (uint32_t part = 0, n = !weft_op_info[k->kind].serial ? 3 : 1; part < n; part++)
    weft_kernels[k->kind].cpu (k, part, n);
  for (uint32_t o = 0; o < WEFT_MOST_OPERANDS; o++)
    if (k->operand[o].data) {
      assert_memory_equal (k->operand[o].data, whole.operand[o].data, k->operand[o].n * 4);
      assert_true (weft_kernels[k->kind].extent (k, o) == k->operand[o].n);
    }
  expect_reference (k, &before);
  for (uint32_t o = 0; o < WEFT_MOST_OPERANDS; o++) {
    g_free (before.operand[o].data);
    g_free (whole.operand[o].data);
  }
}

static int
make_model (void **state)
{
  (void) state;
  weft_table_defaults (&weft_model_table, model.at);
  model.num_attention_heads = HEADS;
  model.num_query_groups = GROUPS;
  model.kv_channels = WIDTH;
  model.hidden_size = HIDDEN;
  model.vocab_size = VOCAB;
  model.seq_length = model.max_position_embeddings = SEQUENCE;
  return 0;
}

/* ------------------------------------------------------------------------------- rows */

static void
a_bias_and_positions_are_added (void **state)
{
  g_autoptr (GRand) rand = g_rand_new_with_seed (1);
  g_autofree float *x = draw (rand, TOKENS * HIDDEN), *b = draw (rand, SEQUENCE * HIDDEN),
                   *y = draw (rand, TOKENS * HIDDEN);
  struct weft_kernel bias = kernel (WEFT_OP_BIAS, (const uint64_t[5]){ TOKENS, HIDDEN });
  struct weft_kernel add = kernel (WEFT_OP_ADD_POSITIONS, (const uint64_t[5]){ TOKENS, HIDDEN, 1 });

  (void) state;
  bias.operand[0] = add.operand[0] = floats (x, TOKENS * HIDDEN);
  bias.operand[1] = floats (b, HIDDEN);
  bias.operand[2] = add.operand[2] = floats (y, TOKENS * HIDDEN);
  add.operand[1] = floats (b, SEQUENCE * HIDDEN);
  check (&bias);
  check (&add);
  add.shape.dim[2] = 4;
  add.operand[2].n /= 4;
  for (uint32_t rank = 0; rank < 4; rank++) {
    add.tp = (struct weft_place){ rank, 4 };
    check (&add);
    assert_true (y[1] ==
                 x[rank * TOKENS / 4 * HIDDEN + 1] + b[rank * TOKENS / 4 % SEQUENCE * HIDDEN + 1]);
  }
}

/* After a ring all-gather, slot j of rank r contains the piece of rank r - j. The kernel puts the
 * pieces in the order of ranks. */
static void
pieces_settle_in_the_order_of_ranks (void **state)
{
  enum { N = 700 };

  (void) state;
  for (uint32_t ranks = 2; ranks <= 7; ranks++)
    for (uint32_t rank = 0; rank < ranks; rank++) {
      struct weft_kernel k = kernel (WEFT_OP_SETTLE, (const uint64_t[5]){ ranks * N, ranks });
      g_autofree float *own = g_new (float, N), *all = g_new (float, (gsize) ranks *N);
      for (uint32_t i = 0; i < ranks * N; i++)
        all[i] = (float) ((rank + ranks - i / N) % ranks * N + i % N);
      memcpy (own, all, N * sizeof *own);
      memset (all, 0, N * sizeof *all);
      k.tp = (struct weft_place){ rank, ranks };
      k.operand[0] = floats (own, N);
      k.operand[2] = floats (all, ranks * N);
      check (&k);
      for (uint32_t i = 0; i < ranks * N; i++)
        assert_true (all[i] == (float) i);
    }
}

static void
pieces_of_columns_make_rows (void **state)
{
  float x[] = { 1, 2, 5, 6, 9, 10, 3, 4, 7, 8, 11, 12 }, y[12];
  struct weft_kernel k = kernel (WEFT_OP_JOIN_COLUMNS, (const uint64_t[5]){ 3, 2, 2 });

  (void) state;
  memset (y, 0, sizeof y);
  k.operand[0] = floats (x, 12);
  k.operand[1] = floats (y, 12);
  check (&k);
  for (int i = 0; i < 12; i++)
    assert_true (y[i] == (float) (i + 1));
}

/* Rank 1 of two tensor parallel ranks copies its columns, and then its rows, out of an array that
 * both ranks have. */
static void
a_rank_takes_its_part (void **state)
{
  float x[] = { 1, 2, 3, 4, 5, 6, 7, 8 }, y[4];
  const float columns[] = { 3, 4, 7, 8 }, rows[] = { 5, 6, 7, 8 };
  struct weft_kernel k = kernel (WEFT_OP_TAKE_PART, (const uint64_t[5]){ 2, 4, 1, 2 });

  (void) state;
  k.tp = (struct weft_place){ 1, 2 };
  k.operand[0] = floats (x, 8);
  k.operand[1] = floats (y, 4);
  check (&k);
  assert_memory_equal (y, columns, sizeof y);
  k.shape.dim[2] = 2;
  k.shape.dim[3] = 1;
  check (&k);
  assert_memory_equal (y, rows, sizeof y);
}

/* Four ranks with two key-value groups and four query heads of width 2. The qkv output of a rank
 * has one query head, half of a key head and half of a value head; out of the gathered outputs of
 * all ranks it takes its query head, and the whole key head and value head of its group. */
static void
ranks_that_share_a_group_take_all_of_it (void **state)
{
  enum { RANKS = 4, PART = 4, OWN = 6 };
  float parts[RANKS * PART], heads[OWN], back[RANKS * PART];
  /* Rank 2 must take its query head (8, 9), and the key head and the value head of its group. Rank
   * 2 has the first halves of these two heads, rank 3 has the second halves. */
  const float wanted[] = { 8, 9, 10, 14, 11, 15 };
  struct weft_kernel k = kernel (WEFT_OP_TAKE_HEADS, (const uint64_t[5]){ 1, RANKS, 4, 2, 2 });

  (void) state;
  for (int i = 0; i < RANKS * PART; i++)
    parts[i] = (float) i;
  k.tp = (struct weft_place){ 2, RANKS };
  k.operand[0] = floats (parts, RANKS * PART);
  k.operand[1] = floats (heads, OWN);
  check (&k);
  assert_memory_equal (heads, wanted, sizeof wanted);
  k.kind = WEFT_OP_PUT_HEADS;
  k.operand[0] = floats (heads, OWN);
  k.operand[1] = floats (back, RANKS * PART);
  check (&k);
  for (int i = 0; i < RANKS * PART; i++)
    assert_true (back[i] == ((i >= 8 && i < 12) || i >= 14 ? parts[i] : 0));
}

/* Two ops that compute the gradients of a norm separately must give results bitwise equal to those
 * of the op that computes both gradients. */
static void
a_norm_in_two_ops_is_the_norm_in_one (void **state)
{
  g_autoptr (GRand) rand = g_rand_new_with_seed (2);
  const uint64_t n = TOKENS * HIDDEN;
  g_autofree float *dy = draw (rand, n), *x = draw (rand, n), *w = draw (rand, HIDDEN),
                   *residual = draw (rand, n), *dx = draw (rand, 2 * n),
                   *sums = draw (rand, 4 * HIDDEN);
  struct weft_kernel both = kernel (WEFT_OP_NORM_BWD, (const uint64_t[5]){ TOKENS, HIDDEN });
  struct weft_kernel inputs = both, weights = both;
  struct weft_operand rows[] = { floats (dy, n), floats (x, n), floats (w, HIDDEN),
                                 floats (residual, n) };

  (void) state;
  inputs.kind = WEFT_OP_NORM_DGRAD;
  weights.kind = WEFT_OP_NORM_WGRAD;
  memcpy (both.operand, rows, sizeof rows);
  memcpy (inputs.operand, rows, sizeof rows);
  memcpy (weights.operand, rows, 2 * sizeof *rows);
  both.operand[4] = floats (dx, n);
  inputs.operand[4] = floats (dx + n, n);
  both.operand[5] = floats (sums, HIDDEN);
  both.operand[6] = floats (sums + HIDDEN, HIDDEN);
  weights.operand[2] = floats (sums + 2 * HIDDEN, HIDDEN);
  weights.operand[3] = floats (sums + 3 * HIDDEN, HIDDEN);
  weft_cpu_norm_bwd (&both, 0, 1);
  check (&inputs);
  check (&weights);
  assert_memory_equal (dx, dx + n, n * sizeof *dx);
  assert_memory_equal (sums, sums + 2 * HIDDEN, 2 * HIDDEN * sizeof *sums);
}

/* ------------------------------------------------------------------------------ heads */

/* Copies the columns of a rank's heads out of qkv: its queries, keys and values. */
static void
take_heads (const float *all, float *mine, uint64_t values, uint32_t rank, uint32_t ranks)
{
  const uint64_t first[] = { 0, HEADS, HEADS + GROUPS }, n[] = { HEADS, GROUPS, values };

  for (uint64_t t = 0; t < TOKENS; t++)
    for (int part = 0; part < 3; part++) {
      uint64_t share = n[part] / ranks * WIDTH;
      memcpy (mine, all + (t * (HEADS + GROUPS + values) + first[part]) * WIDTH + rank * share,
              share * sizeof *mine);
      mine += share;
    }
}

static void
head_norms_of_two_ranks_are_those_of_one (void **state)
{
  g_autoptr (GRand) rand = g_rand_new_with_seed (3);
  enum { RANKS = 2, ROWS = TOKENS * (HEADS + GROUPS) };
  const uint64_t n = TOKENS * (HEADS + 2 * GROUPS) * WIDTH, n_raw = (uint64_t) ROWS * WIDTH;
  g_autofree float *dqkv = draw (rand, n), *raw = draw (rand, n_raw), *w = draw (rand, 2 * WIDTH),
                   *sums = draw (rand, 4 * WIDTH), *mine = draw (rand, n),
                   *mine_raw = draw (rand, n_raw), *wanted = draw (rand, n);
  struct weft_kernel one = kernel (WEFT_OP_HEAD_NORM_BWD, (const uint64_t[5]){ ROWS, WIDTH });
  struct weft_kernel weights =
      kernel (WEFT_OP_HEAD_NORM_WGRAD, (const uint64_t[5]){ ROWS / RANKS, WIDTH, RANKS });
  struct weft_kernel inputs =
      kernel (WEFT_OP_HEAD_NORM_DGRAD, (const uint64_t[5]){ ROWS / RANKS, WIDTH });

  (void) state;
  for (uint32_t r = 0; r < RANKS; r++) {
    take_heads (dqkv, mine + r * n / RANKS, GROUPS, r, RANKS);
    take_heads (raw, mine_raw + r * n_raw / RANKS, 0, r, RANKS);
  }
  one.operand[0] = floats (dqkv, n);
  one.operand[1] = floats (raw, n_raw);
  inputs.operand[2] = one.operand[2] = floats (w, WIDTH);
  inputs.operand[3] = one.operand[3] = floats (w + WIDTH, WIDTH);
  one.operand[4] = floats (sums, WIDTH);
  one.operand[5] = floats (sums + WIDTH, WIDTH);
  weights.tp = (struct weft_place){ 1, RANKS };
  weights.operand[0] = floats (mine, n);
  weights.operand[1] = floats (mine_raw, n_raw);
  weights.operand[2] = floats (sums + 2 * WIDTH, WIDTH);
  weights.operand[3] = floats (sums + 3 * WIDTH, WIDTH);
  weft_cpu_head_norm_bwd (&one, 0, 1);
  check (&weights);
  assert_memory_equal (sums, sums + 2 * WIDTH, 2 * WIDTH * sizeof *sums);
  for (uint32_t r = 0; r < RANKS; r++) {
    inputs.tp = (struct weft_place){ r, RANKS };
    inputs.operand[0] = floats (mine + r * n / RANKS, n / RANKS);
    inputs.operand[1] = floats (mine_raw + r * n_raw / RANKS, n_raw / RANKS);
    check (&inputs);
    take_heads (dqkv, wanted, GROUPS, r, RANKS);
    assert_memory_equal (inputs.operand[0].data, wanted, n / RANKS * sizeof *wanted);
  }
}

/* ------------------------------------------------------------------------------- loss */

struct loss {
  float *logits, *lse, *stats;
  int32_t target[TOKENS];
  float loss;
};

static void
make_loss (struct loss *l, GRand *rand)
{
  l->logits = draw (rand, TOKENS * VOCAB);
  l->lse = draw (rand, TOKENS);
  l->stats = draw (rand, 8 * 3 * TOKENS);
  for (int t = 0; t < TOKENS; t++)
    /* a target of -1 stands for a token without a target, as at the end of a sequence */
    l->target[t] = g_rand_int_range (rand, -1, VOCAB);
}

static void
free_loss (struct loss *l)
{
  g_free (l->logits);
  g_free (l->lse);
  g_free (l->stats);
}

/* Returns the logits of a rank; columns beyond the vocabulary contain 1e30. */
static float *
logits_of (const struct loss *l, uint32_t rank, uint64_t columns)
{
  float *mine = g_new (float, TOKENS *columns);

  for (uint64_t t = 0; t < TOKENS; t++)
    for (uint64_t c = 0; c < columns; c++) {
      uint64_t at = rank * columns + c;
      mine[t * columns + c] = at < VOCAB ? l->logits[t * VOCAB + at] : 1e30f;
    }
  return mine;
}

static struct weft_operand
targets (struct loss *l)
{
  return (struct weft_operand){ .data = l->target, .n = TOKENS, .dtype = WEFT_INT32 };
}

static float
loss_of_one (struct loss *l, gboolean own)
{
  struct weft_kernel k = kernel (WEFT_OP_XENT, (const uint64_t[5]){ TOKENS, VOCAB, 8, VOCAB, own });
  float loss = 0;

  k.operand[0] = floats (l->logits, TOKENS * VOCAB);
  k.operand[1] = targets (l);
  k.operand[2] = floats (l->lse, TOKENS);
  k.operand[4] = floats (&loss, 1);
  weft_cpu_xent (&k, 0, 1);
  expect_reference (&k, &k);
  return loss;
}

/* Computes the loss statistics of one rank's logits and stores them in `stats`, the largest logits
 * first. */
static void
tell (struct loss *l, uint32_t rank, uint32_t ranks, gboolean own, float *stats)
{
  uint64_t columns = PADDED / ranks;
  const uint64_t dim[5] = { TOKENS, columns, 8 / ranks, VOCAB };
  g_autofree float *mine = logits_of (l, rank, columns);
  struct weft_kernel most = kernel (WEFT_OP_XENT_MAX, dim), part = kernel (WEFT_OP_XENT_PART, dim);

  most.tp = part.tp = (struct weft_place){ rank, ranks };
  most.operand[0] = part.operand[0] = floats (mine, TOKENS * columns);
  part.operand[1] = targets (l);
  if (own) {
    part.operand[3] = floats (stats, 3 * TOKENS);
  } else {
    g_autofree float *local = g_new (float, TOKENS);
    most.operand[1] = floats (local, TOKENS);
    check (&most);
    part.operand[2] = floats (stats, TOKENS);
    part.operand[3] = floats (stats + TOKENS, 2 * TOKENS);
  }
  check (&part);
}

static float
end (struct loss *l, uint32_t parts, float *lse)
{
  struct weft_kernel k = kernel (WEFT_OP_XENT_END, (const uint64_t[5]){ TOKENS, parts });
  float loss = 0;

  k.operand[0] = floats (l->stats, parts * 3 * TOKENS);
  k.operand[1] = floats (lse, TOKENS);
  k.operand[3] = floats (&loss, 1);
  k.operand[4] = targets (l);
  check (&k);
  return loss;
}

/* Computes the loss of several ranks: all ranks use the maximum of their largest logits; other
 * statistics are added in pairs, as in an all-reduce. */
static float
loss_of_many (struct loss *l, uint32_t ranks, float *lse)
{
  g_autofree float *part = g_new (float, (gsize) ranks * 3 * TOKENS);

  for (uint64_t t = 0; t < TOKENS; t++) {
    float most = -INFINITY;
    for (uint64_t c = 0; c < VOCAB; c++)
      most = fmaxf (most, l->logits[t * VOCAB + c]);
    for (uint32_t r = 0; r < ranks; r++)
      part[r * 3 * TOKENS + t] = most;
  }
  for (uint32_t r = 0; r < ranks; r++)
    tell (l, r, ranks, FALSE, part + r * 3 * TOKENS);
  for (uint32_t step = 1; step < ranks; step *= 2)
    for (uint32_t r = 0; r < ranks; r += 2 * step)
      for (uint64_t i = TOKENS; i < 3 * TOKENS; i++)
        part[r * 3 * TOKENS + i] += part[(r + step) * 3 * TOKENS + i];
  memcpy (l->stats, part, 3 * TOKENS * sizeof *part);
  return end (l, 1, lse);
}

static void
a_vocabulary_that_ranks_share_has_the_loss_of_one (void **state)
{
  g_autoptr (GRand) rand = g_rand_new_with_seed (4);
  float lse[TOKENS];

  (void) state;
  for (int trial = 0; trial < 4; trial++) {
    struct loss l;
    make_loss (&l, rand);
    for (uint32_t ranks = 2; ranks <= 8; ranks *= 2) {
      float one = loss_of_one (&l, FALSE), many = loss_of_many (&l, ranks, lse);
      assert_memory_equal (&one, &many, sizeof one);
      assert_memory_equal (l.lse, lse, sizeof lse);
      one = loss_of_one (&l, TRUE);
      for (uint32_t r = 0; r < ranks; r++)
        tell (&l, r, ranks, TRUE, l.stats + r * 3 * TOKENS);
      many = end (&l, ranks, lse);
      assert_memory_equal (&one, &many, sizeof one);
      assert_memory_equal (l.lse, lse, sizeof lse);
    }
    free_loss (&l);
  }
}

/* Each rank computes the gradients of its own columns of the vocabulary; gradients of padding must
 * be 0. */
static void
gradients_of_logits_are_those_of_one_rank (void **state)
{
  g_autoptr (GRand) rand = g_rand_new_with_seed (5);
  enum { RANKS = 4, COLUMNS = PADDED / RANKS };
  struct loss l;

  (void) state;
  make_loss (&l, rand);
  loss_of_one (&l, FALSE);
  struct weft_kernel k =
      kernel (WEFT_OP_XENT_BWD, (const uint64_t[5]){ TOKENS, COLUMNS, 7, VOCAB });
  k.operand[1] = targets (&l);
  k.operand[2] = floats (l.lse, TOKENS);
  float *part[RANKS];
  for (uint32_t r = 0; r < RANKS; r++) {
    part[r] = logits_of (&l, r, COLUMNS);
    k.tp = (struct weft_place){ r, RANKS };
    k.operand[0] = floats (part[r], TOKENS * COLUMNS);
    check (&k);
  }
  k.tp = (struct weft_place){ 0 };
  k.shape.dim[1] = VOCAB;
  k.operand[0] = floats (l.logits, TOKENS * VOCAB);
  weft_cpu_xent_bwd (&k, 0, 1);
  for (uint64_t t = 0; t < TOKENS; t++)
    for (uint64_t c = 0; c < PADDED; c++) {
      float found = part[c / COLUMNS][t * COLUMNS + c % COLUMNS];
      assert_true (found == (c < VOCAB ? l.logits[t * VOCAB + c] : 0));
    }
  for (uint32_t r = 0; r < RANKS; r++)
    g_free (part[r]);
  free_loss (&l);
}

/* Computes loss and gradient in three ways: by one op, by this op in two calls of half of the
 * tokens each, and by two ops. All three must have the same bits. */
static void
both_at_once_are_the_loss_and_then_its_gradient (void **state)
{
  g_autoptr (GRand) rand = g_rand_new_with_seed (6);
  struct loss l;
  float loss = 0, count = 0, gradient = 3, sums[2] = { 0, 0 };

  (void) state;
  make_loss (&l, rand);
  l.target[1] = -1;
  g_autofree float *logits = g_memdup2 (l.logits, TOKENS * VOCAB * sizeof (float));
  struct weft_kernel both =
      kernel (WEFT_OP_XENT_GRAD, (const uint64_t[5]){ TOKENS / 2, VOCAB, 8, VOCAB });
  both.shape.dim[5] = 7;
  for (uint64_t first = 0; first < TOKENS; first += TOKENS / 2) {
    both.operand[0] = floats (logits + first * VOCAB, TOKENS / 2 * VOCAB);
    both.operand[1] = targets (&l);
    both.operand[1].data = l.target + first;
    both.operand[2] = floats (&count, 1);
    both.operand[3] = floats (&gradient, 1);
    both.operand[4] = floats (&sums[first > 0], 1);
    both.operand[2].accumulate = TRUE;
    weft_cpu_xent_grad (&both, 0, 1);
  }
  loss = loss_of_one (&l, FALSE);
  struct weft_kernel backward =
      kernel (WEFT_OP_XENT_BWD, (const uint64_t[5]){ TOKENS, VOCAB, 7, VOCAB });
  backward.operand[0] = floats (l.logits, TOKENS * VOCAB);
  backward.operand[1] = targets (&l);
  backward.operand[2] = floats (l.lse, TOKENS);
  backward.operand[3] = floats (&gradient, 1);
  weft_cpu_xent_bwd (&backward, 0, 1);
  assert_memory_equal (logits, l.logits, TOKENS * VOCAB * sizeof (float));
  assert_true (fabsf (sums[0] + sums[1] - loss) <= 1e-5f * loss);
  assert_true (count == TOKENS && sums[0] > 0 && sums[1] > 0);
  free_loss (&l);
}

static const struct CMUnitTest tests[] = {
  cmocka_unit_test (both_at_once_are_the_loss_and_then_its_gradient),
  cmocka_unit_test (a_bias_and_positions_are_added),
  cmocka_unit_test (pieces_settle_in_the_order_of_ranks),
  cmocka_unit_test (pieces_of_columns_make_rows),
  cmocka_unit_test (a_rank_takes_its_part),
  cmocka_unit_test (ranks_that_share_a_group_take_all_of_it),
  cmocka_unit_test (a_norm_in_two_ops_is_the_norm_in_one),
  cmocka_unit_test (head_norms_of_two_ranks_are_those_of_one),
  cmocka_unit_test (a_vocabulary_that_ranks_share_has_the_loss_of_one),
  cmocka_unit_test (gradients_of_logits_are_those_of_one_rank),
};

WEFT_TESTS (tests, .set_up = make_model)
