/* Context parallelism: which rank holds which tokens, kernels on parts of sequences, and the order
 * of canonical sums. */
#include "core/base/fold.h"
#include "kernels/float.h"
#include "kernels/kernel.h"
#include "tests/runner/runner.h"
#include <math.h>
#include <string.h>

/* --------------------------------------------------------------------------- zigzag */

static void
ranks_share_out_a_sequence_and_each_has_as_much_of_the_triangle (void **state)
{
  (void) state;
  for (uint32_t size = 1; size <= 8; size++) {
    uint64_t tokens = 12, whole = tokens * size, seen = 0;
    g_autofree uint8_t *owned = g_new0 (uint8_t, whole);
    for (uint32_t r = 0; r < size; r++, seen = 0) {
      for (uint64_t t = 0; t < tokens; t++) {
        uint64_t at = weft_position ((struct weft_place){ r, size }, tokens, t);
        assert_true (at < whole && !owned[at]++);
        seen += at + 1;
      }
      assert_int_equal (seen * size, whole * (whole + 1) / 2);
    }
  }
}

/* A context parallel rank holds two chunks of a sequence. Together they must be consecutive leaves
 * of the tree (core/base/fold.h) that sums a whole sequence; otherwise canonical sums would be
 * added in another order. */
static void
a_ranks_chunks_are_an_aligned_block_of_leaves (void **state)
{
  const uint32_t chunks = WEFT_MOST_CHUNKS;
  const uint64_t sequence = 48, leaf = sequence / chunks;

  (void) state;
  for (uint32_t size = 1; size <= 4; size *= 2)
    for (uint32_t r = 0; r < size; r++)
      for (uint32_t i = 0; i < chunks / size; i++) {
        uint64_t mine = weft_zigzag (i, chunks / size) * leaf;
        assert_int_equal (weft_position ((struct weft_place){ r, size }, sequence / size, mine),
                          weft_zigzag (r * chunks / size + i, chunks) * leaf);
      }
  assert_int_equal (weft_chunks (24), 8);
  assert_int_equal (weft_chunks (6), 2);
  assert_int_equal (weft_chunks (5), 1);
}

/* ---------------------------------------------------------------------- calls of ops */

/* A kernel call with its own operands: in the types of the kernel (`k`) and in double for the
 * reference (`exact`). */
struct call {
  struct weft_kernel k, exact;
  union weft_model model;
  /* dimensions 5 and 6 of an attention op's shape: window, and width of value heads */
  uint64_t more[2];
  uint32_t n;
};

/* Returns the number of operands of an op, as core/ops.def states them. */
static uint32_t
count_operands (enum weft_op_kind kind)
{
  g_auto (GStrv) words = g_strsplit (weft_op_info[kind].operands, " ", -1);
  return g_strv_length (words);
}

static void
add_operand (struct call *c, uint32_t i, GRand *rand)
{
  struct weft_operand *o = &c->k.operand[i];
  gboolean ids = strncmp (weft_op_info[c->k.kind].operands, "ids", 3) == 0 && i == 0;

  o->n = weft_kernels[c->k.kind].extent (&c->k, i);
  o->dtype = ids ? WEFT_INT32 : WEFT_FP32;
  o->data = g_new0 (float, o->n + 1);
  c->exact.operand[i] = *o;
  c->exact.operand[i].data = g_new0 (double, o->n + 1);
  for (uint64_t e = 0; e < o->n; e++)
    if (ids) {
      ((int32_t *) o->data)[e] = g_rand_int_range (rand, 0, (gint32) c->model.vocab_size);
    } else {
      ((float *) o->data)[e] = (float) g_rand_double_range (rand, -1, 1);
      ((double *) c->exact.operand[i].data)[e] = ((float *) o->data)[e];
    }
}

static void
call_open (struct call *c, enum weft_op_kind kind, const uint64_t dim[5], GRand *rand)
{
  c->k.kind = kind;
  memcpy (c->k.shape.dim, dim, 5 * sizeof *dim);
  memcpy (c->k.shape.dim + 5, c->more, sizeof c->more);
  c->k.model = &c->model;
  c->exact = c->k;
  c->n = count_operands (kind);
  for (uint32_t i = 0; i < c->n; i++)
    add_operand (c, i, rand);
}

static void
call_close (struct call *c)
{
  for (uint32_t i = 0; i < c->n; i++) {
    g_free (c->k.operand[i].data);
    g_free (c->exact.operand[i].data);
  }
}

static float *
floats (const struct call *c, uint32_t i)
{
  return c->k.operand[i].data;
}

static double *
doubles (const struct call *c, uint32_t i)
{
  return c->exact.operand[i].data;
}

static void
set (struct call *c, uint32_t i, const double *value)
{
  for (uint64_t e = 0; e < c->k.operand[i].n; e++)
    doubles (c, i)[e] = floats (c, i)[e] = (float) value[e];
}

static void
expect_near (const struct call *c, uint32_t i, double tolerance)
{
  for (uint64_t e = 0; e < c->k.operand[i].n; e++) {
    double want = doubles (c, i)[e], found = floats (c, i)[e];
    if (!(want == found || fabs (want - found) <= tolerance * fmax (1, fabs (want))))
      fail_msg ("%s operand %u element %zu: found %.9g, wanted %.9g", weft_op_info[c->k.kind].word,
                i, (size_t) e, found, want);
  }
}

/* Runs the CPU kernel in three parts, the last part first, and compares all operands with the
 * reference. */
static void
run_and_compare (struct call *c, double tolerance)
{
  for (uint32_t part = 3; part-- > 0;)
    if (!weft_op_info[c->k.kind].serial || part == 0)
      weft_kernels[c->k.kind].cpu (&c->k, part, !weft_op_info[c->k.kind].serial ? 3 : 1);
  weft_kernels[c->k.kind].reference (&c->exact);
  for (uint32_t i = 0; i < c->n; i++)
    expect_near (c, i, tolerance);
}

/* --------------------------------------------------------------- kernels and references */

static const struct {
  enum weft_op_kind kind;
  uint64_t dim[5], value;
} moves[] = {
  { WEFT_OP_TAKE_KV, { 7, 4, 2, 5 } },
  { WEFT_OP_PUT_KV, { 7, 4, 2, 5 } },
  { WEFT_OP_TAKE_KV, { 7, 4, 2, 5, 3 } },
  { WEFT_OP_PUT_KV, { 7, 4, 2, 5, 3 } },
  { WEFT_OP_SPLIT_SEQUENCE, { 3, 2, 8, 5 } },
  { WEFT_OP_JOIN_SEQUENCE, { 3, 2, 8, 5 } },
  { WEFT_OP_SPLIT_SEQUENCE, { 1, 2, 7, 5 } },
  { WEFT_OP_SPLIT_HEADS, { 7, 2, 8, 4, 5 } },
  { WEFT_OP_JOIN_HEADS, { 7, 2, 8, 4, 5 } },
  { WEFT_OP_SPLIT_HEADS, { 7, 4, 8, 0, 3 } },
  { WEFT_OP_SPLIT_HEADS, { 7, 2, 8, 4, 5 }, 3 },
  { WEFT_OP_JOIN_HEADS, { 7, 2, 8, 4, 5 }, 3 },
  { WEFT_OP_KEEP_PIECE, { 23 } },
};

static void
what_moves_elements_is_its_reference (void **state)
{
  g_autoptr (GRand) rand = g_rand_new_with_seed (1);

  (void) state;
  for (unsigned i = 0; i < G_N_ELEMENTS (moves); i++) {
    struct call c = { .model.seq_length = 8, .k.cp = { 2, 3 }, .more = { moves[i].value } };
    call_open (&c, moves[i].kind, moves[i].dim, rand);
    run_and_compare (&c, 0);
    call_close (&c);
  }
}

static void
joining_what_was_split_gives_it_back (void **state)
{
  static const struct {
    enum weft_op_kind there, back;
    uint64_t dim[5];
  } pairs[] = {
    { WEFT_OP_SPLIT_SEQUENCE, WEFT_OP_JOIN_SEQUENCE, { 4, 3, 6, 5 } },
    { WEFT_OP_SPLIT_HEADS, WEFT_OP_JOIN_HEADS, { 6, 2, 4, 2, 3 } },
    { WEFT_OP_TAKE_KV, WEFT_OP_PUT_KV, { 6, 4, 2, 3 } },
  };
  g_autoptr (GRand) rand = g_rand_new_with_seed (2);

  (void) state;
  for (unsigned i = 0; i < G_N_ELEMENTS (pairs); i++) {
    struct call there = { 0 }, back = { 0 };
    call_open (&there, pairs[i].there, pairs[i].dim, rand);
    call_open (&back, pairs[i].back, pairs[i].dim, rand);
    memcpy (floats (&back, 1), floats (&there, 0), there.k.operand[0].n * sizeof (float));
    weft_kernels[there.k.kind].cpu (&there.k, 0, 1);
    memcpy (floats (&back, 0), floats (&there, 1), there.k.operand[1].n * sizeof (float));
    /* take_kv copies keys and values only, so the queries of both arrays need not agree */
    if (there.k.kind != WEFT_OP_TAKE_KV)
      memset (floats (&back, 1), 0, back.k.operand[1].n * sizeof (float));
    weft_kernels[back.k.kind].cpu (&back.k, 0, 1);
    assert_memory_equal (floats (&back, 1), floats (&there, 0),
                         there.k.operand[0].n * sizeof (float));
    call_close (&there);
    call_close (&back);
  }
}

/* Attention over `batch` sequences, which `size` context parallel ranks share. */
struct sample {
  uint32_t batch, size;
  uint64_t tokens, heads, groups, width, window, value;
  gboolean canonical;
};

static const struct sample samples[] = {
  { .batch = 2, .size = 1, .tokens = 24, .heads = 4, .groups = 2, .width = 6 },
  { .batch = 1, .size = 2, .tokens = 8, .heads = 2, .groups = 2, .width = 8 },
  { .batch = 2, .size = 2, .tokens = 340, .heads = 2, .groups = 1, .width = 40 },
  { .batch = 1, .size = 4, .tokens = 68, .heads = 4, .groups = 2, .width = 16 },
  { .batch = 1, .size = 2, .tokens = 40, .heads = 2, .groups = 1, .width = 300 },
  { .batch = 2, .size = 2, .tokens = 96, .heads = 2, .groups = 1, .width = 16, .window = 37 },
  { .batch = 2, .size = 2, .tokens = 72, .heads = 4, .groups = 4, .width = 24, .value = 16 },
  { .batch = 1, .size = 4, .tokens = 24, .heads = 4, .groups = 2, .width = 6, .value = 10 },
};

static struct call
part_call (const struct sample *s, uint32_t rank)
{
  return (struct call){ .model.seq_length = (int64_t) (s->tokens * s->size),
                        .more = { s->window, s->value },
                        .k = { .cp = { rank, s->size }, .canonical = s->canonical } };
}

static void
open_part (struct call *c, const struct sample *s, enum weft_op_kind kind, uint64_t keys,
           GRand *rand)
{
  const uint64_t dim[5] = { s->batch * s->tokens, keys, s->heads, s->groups, s->width };

  call_open (c, kind, dim, rand);
}

enum { QKV, KV, OUT, LSE, D_OUT, DQ, DKV };

/* Computes o and lse by the forward reference, as operands of a backward call. */
static void
forward_first (struct call *c, const struct sample *s, GRand *rand)
{
  struct call f = part_call (s, c->k.cp.at);

  f.k.before = c->k.before;
  open_part (&f, s, WEFT_OP_ATTENTION_PART, c->k.shape.dim[1], rand);
  set (&f, QKV, doubles (c, QKV));
  set (&f, KV, doubles (c, KV));
  weft_ref_attention_part (&f.exact);
  set (c, OUT, doubles (&f, OUT));
  set (c, LSE, doubles (&f, LSE));
  call_close (&f);
}

static void
check_part (const struct sample *s, uint64_t keys, uint32_t rank, uint32_t before)
{
  g_autoptr (GRand) rand = g_rand_new_with_seed (3 + rank + before);
  struct call f = part_call (s, rank), b = part_call (s, rank);

  f.k.before = b.k.before = before;
  open_part (&f, s, WEFT_OP_ATTENTION_PART, keys, rand);
  run_and_compare (&f, 2e-5);
  open_part (&b, s, WEFT_OP_ATTENTION_PART_BWD, keys, rand);
  b.k.operand[DQ].accumulate = b.exact.operand[DQ].accumulate = before % 2;
  b.k.operand[DKV].accumulate = b.exact.operand[DKV].accumulate = rank % 2;
  forward_first (&b, s, rand);
  run_and_compare (&b, 1e-4);
  call_close (&f);
  call_close (&b);
}

static void
a_part_of_attention_is_its_reference (void **state)
{
  (void) state;
  for (unsigned i = 0; i < G_N_ELEMENTS (samples); i++)
    for (uint32_t rank = 0; rank < samples[i].size; rank++) {
      struct sample s = samples[i];
      check_part (&s, s.tokens * s.size, rank, 0);
      for (uint32_t before = 0; before < s.size && !s.window; before++)
        check_part (&s, s.tokens, rank, before);
      s.canonical = TRUE;
      check_part (&s, s.tokens * s.size, rank, 0);
    }
}

static void
parts_are_merged_as_the_reference_does (void **state)
{
  const uint64_t dim[5] = { 24, 3, 1030 };
  g_autoptr (GRand) rand = g_rand_new_with_seed (5);
  struct call c = { .model.seq_length = 24, .k.cp = { 1, 2 } };

  (void) state;
  call_open (&c, WEFT_OP_ATTENTION_MERGE, dim, rand);
  for (uint64_t i = 0; i < c.k.operand[1].n; i++) {
    if (i % 3 == 0)
      floats (&c, 1)[i] = -INFINITY;
    if (i % 5 == 0)
      floats (&c, 3)[i] = -INFINITY;
    doubles (&c, 1)[i] = floats (&c, 1)[i];
    doubles (&c, 3)[i] = floats (&c, 3)[i];
  }
  run_and_compare (&c, 1e-6);
  call_close (&c);
}

/* ---------------------------------------------------------------- parts and the whole */

/* Attention over the whole sequences on one rank, forward and backward. */
struct whole {
  const struct sample *s;
  struct call forward, backward;
};

static void
open_whole (struct whole *w, const struct sample *s, GRand *rand)
{
  const uint64_t dim[5] = { s->batch, s->tokens * s->size, s->heads, s->groups, s->width };

  *w = (struct whole){ .s = s };
  w->forward = part_call (s, 0);
  w->backward = part_call (s, 0);
  w->forward.k.cp = w->backward.k.cp = (struct weft_place){ 0 };
  call_open (&w->forward, WEFT_OP_ATTENTION, dim, rand);
  weft_kernels[WEFT_OP_ATTENTION].cpu (&w->forward.k, 0, 1);
  weft_kernels[WEFT_OP_ATTENTION].reference (&w->forward.exact);
  call_open (&w->backward, WEFT_OP_ATTENTION_BWD, dim, rand);
  for (uint32_t i = 0; i < 3; i++)
    memcpy (floats (&w->backward, i), floats (&w->forward, i),
            w->forward.k.operand[i].n * sizeof (float));
  weft_kernels[WEFT_OP_ATTENTION_BWD].cpu (&w->backward.k, 0, 1);
}

static void
close_whole (struct whole *w)
{
  call_close (&w->forward);
  call_close (&w->backward);
}

static uint64_t
whole_row (const struct sample *s, uint32_t rank, uint64_t row)
{
  struct weft_place place = { rank, s->size };

  return row / s->tokens * s->tokens * s->size + weft_position (place, s->tokens, row % s->tokens);
}

/* Copies the rows of a rank, of n floats each, out of an array for the whole sequences. */
static void
take_rows (const struct sample *s, uint32_t rank, const float *whole, float *mine, uint64_t n)
{
  for (uint64_t row = 0; row < s->batch * s->tokens; row++)
    memcpy (mine + row * n, whole + whole_row (s, rank, row) * n, n * sizeof *mine);
}

static uint64_t
q_columns (const struct sample *s)
{
  return s->heads * s->width;
}

static uint64_t
value_width (const struct sample *s)
{
  return s->value ? s->value : s->width;
}

static uint64_t
kv_columns (const struct sample *s)
{
  return s->groups * (s->width + value_width (s));
}

static uint64_t
o_columns (const struct sample *s)
{
  return s->heads * value_width (s);
}

/* Copies keys and values out of rows that contain queries, keys and values (qkv). */
static void
take_kv (const struct sample *s, const float *qkv, float *kv, uint64_t rows)
{
  uint64_t q = q_columns (s), n = kv_columns (s);

  for (uint64_t row = 0; row < rows; row++)
    memcpy (kv + row * n, qkv + row * (q + n) + q, n * sizeof *kv);
}

/* Copies the log-sum-exp of a rank's tokens. The log-sum-exp is stored head by head. */
static void
take_lse (const struct sample *s, uint32_t rank, const float *whole, float *mine)
{
  for (uint64_t b = 0; b < s->batch * s->heads; b++)
    for (uint64_t t = 0; t < s->tokens; t++)
      mine[b * s->tokens + t] =
          whole[b * s->tokens * s->size +
                weft_position ((struct weft_place){ rank, s->size }, s->tokens, t)];
}

static void
expect_rows (const struct sample *s, uint32_t rank, const float *whole, const float *mine,
             uint64_t n)
{
  for (uint64_t row = 0; row < s->batch * s->tokens; row++)
    assert_memory_equal (mine + row * n, whole + whole_row (s, rank, row) * n, n * sizeof *mine);
}

/* Checks that a rank's attention over all keys, and the gradient dq, are bitwise equal to the
 * results of attention on one rank. Returns the rank's gradient dkv, which the caller frees. */
static float *
check_rank_bits (const struct whole *w, uint32_t rank, GRand *rand)
{
  const struct sample *s = w->s;
  uint64_t q = q_columns (s), all = q + kv_columns (s), rows = s->batch * s->tokens * s->size;
  struct call f = part_call (s, rank), b = part_call (s, rank);

  open_part (&f, s, WEFT_OP_ATTENTION_PART, s->tokens * s->size, rand);
  take_rows (s, rank, floats (&w->forward, 0), floats (&f, QKV), all);
  take_kv (s, floats (&w->forward, 0), floats (&f, KV), rows);
  weft_kernels[f.k.kind].cpu (&f.k, 0, 1);
  expect_rows (s, rank, floats (&w->forward, 1), floats (&f, OUT), o_columns (s));
  open_part (&b, s, WEFT_OP_ATTENTION_PART_BWD, s->tokens * s->size, rand);
  for (uint32_t i = QKV; i <= LSE; i++)
    memcpy (floats (&b, i), floats (&f, i), f.k.operand[i].n * sizeof (float));
  take_rows (s, rank, floats (&w->backward, 3), floats (&b, D_OUT), o_columns (s));
  weft_kernels[b.k.kind].cpu (&b.k, 0, 1);
  for (uint64_t row = 0; row < s->batch * s->tokens; row++)
    assert_memory_equal (floats (&b, DQ) + row * all,
                         floats (&w->backward, 4) + whole_row (s, rank, row) * all,
                         q * sizeof (float));
  float *dkv = g_memdup2 (floats (&b, DKV), b.k.operand[DKV].n * sizeof (float));
  call_close (&f);
  call_close (&b);
  return dkv;
}

static void
ranks_compute_nodes_of_the_sums_that_one_rank_takes (void **state)
{
  g_autoptr (GRand) rand = g_rand_new_with_seed (7);

  (void) state;
  for (unsigned i = 0; i < G_N_ELEMENTS (samples); i++) {
    struct sample s = samples[i];
    float *node[4];
    struct whole w;
    s.canonical = TRUE;
    open_whole (&w, &s, rand);
    uint64_t rows = s.batch * s.tokens * s.size, n = rows * kv_columns (&s);
    for (uint32_t r = 0; r < s.size; r++)
      node[r] = check_rank_bits (&w, r, rand);
    for (uint32_t left = s.size; left > 1; left /= 2)
      for (uint32_t r = 0; r < left / 2; r++)
        for (uint64_t e = 0; e < n; e++)
          node[r][e] = node[2 * r][e] + node[2 * r + 1][e];
    g_autofree float *want = g_new (float, n);
    take_kv (&s, floats (&w.backward, 4), want, rows);
    assert_memory_equal (node[0], want, n * sizeof (float));
    for (uint32_t r = 0; r < s.size; r++)
      g_free (node[r]);
    close_whole (&w);
  }
}

/* Ring attention in forward: attention to the keys of one rank after the other, merged, must give
 * nearly the result of attention to all keys at once. */
static void
a_ring_of_parts_is_the_whole_attention (void **state)
{
  g_autoptr (GRand) rand = g_rand_new_with_seed (9);

  (void) state;
  for (unsigned i = 0; i < G_N_ELEMENTS (samples); i++) {
    const struct sample *s = &samples[i];
    struct whole w;
    open_whole (&w, s, rand);
    for (uint32_t rank = 0; rank < s->size && !s->window; rank++) {
      uint64_t all = q_columns (s) + kv_columns (s);
      const uint64_t dim[5] = { s->batch * s->tokens, s->heads, value_width (s) };
      g_autofree float *theirs = g_new (float, s->batch * s->tokens * all);
      struct call part = part_call (s, rank), merge = part_call (s, rank);
      open_part (&part, s, WEFT_OP_ATTENTION_PART, s->tokens, rand);
      call_open (&merge, WEFT_OP_ATTENTION_MERGE, dim, rand);
      take_rows (s, rank, floats (&w.forward, 0), floats (&part, QKV), all);
      for (part.k.before = 0; part.k.before < s->size; part.k.before++) {
        uint32_t from = (rank + s->size - part.k.before) % s->size;
        take_rows (s, from, floats (&w.forward, 0), theirs, all);
        take_kv (s, theirs, floats (&part, KV), s->batch * s->tokens);
        weft_kernels[part.k.kind].cpu (&part.k, 0, 1);
        memcpy (floats (&merge, part.k.before ? 2 : 0), floats (&part, OUT),
                part.k.operand[OUT].n * sizeof (float));
        memcpy (floats (&merge, part.k.before ? 3 : 1), floats (&part, LSE),
                part.k.operand[LSE].n * sizeof (float));
        if (part.k.before)
          weft_kernels[merge.k.kind].cpu (&merge.k, 0, 1);
      }
      take_rows (s, rank, floats (&w.forward, 1), theirs, o_columns (s));
      for (uint64_t e = 0; e < merge.k.operand[0].n; e++)
        assert_true (fabsf (theirs[e] - floats (&merge, 0)[e]) < 1e-6);
      take_lse (s, rank, floats (&w.forward, 2), theirs);
      for (uint64_t e = 0; e < merge.k.operand[1].n; e++)
        assert_true (fabsf (theirs[e] - floats (&merge, 1)[e]) < 1e-5);
      call_close (&part);
      call_close (&merge);
    }
    close_whole (&w);
  }
}

/* ------------------------------------------------- gradients of weights, rank by rank */

/* Ops that sum over tokens. `rows`: operands with one row per token; `sums`: operands that are sums
 * over tokens. */
static const struct folded {
  enum weft_op_kind kind;
  /* numbers of operands; a 0 that is not the first entry ends the list */
  uint32_t rows[4], sums[2];
  uint64_t per_token, columns, other;
} folded[] = {
  { WEFT_OP_MATMUL_WGRAD, { 0, 1 }, { 2, 3 }, 1, 5, 7 },
  { WEFT_OP_NORM_BWD, { 0, 1, 3, 4 }, { 5, 6 }, 1, 9, 0 },
  { WEFT_OP_HEAD_NORM_BWD, { 0, 1 }, { 4, 5 }, 6, 5, 0 },
  { WEFT_OP_EMBED_BWD, { 0, 1 }, { 2, 3 }, 1, 6, 0 },
};

static void
open_folded (struct call *c, const struct folded *f, uint64_t tokens, struct weft_place place,
             GRand *rand)
{
  const uint64_t dim[5] = { tokens * f->per_token, f->columns, f->other };

  *c = (struct call){ .k = { .cp = place, .canonical = TRUE } };
  weft_table_defaults (&weft_model_table, c->model.at);
  c->model.seq_length = 32;
  c->model.max_position_embeddings = 40;
  c->model.vocab_size = 6;
  c->model.num_attention_heads = 4;
  c->model.num_query_groups = 2;
  c->model.kv_channels = 5;
  call_open (c, f->kind, dim, rand);
}

/* Copies the rows of a rank out of the operands of a call on whole sequences. */
static void
deal (const struct folded *f, const struct call *whole, struct call *mine)
{
  struct sample s = { .batch = 1, .size = mine->k.cp.of, .tokens = 32 / mine->k.cp.of };

  for (unsigned i = 0; i < 4 && (i == 0 || f->rows[i]); i++)
    take_rows (&s, mine->k.cp.at, floats (whole, f->rows[i]), floats (mine, f->rows[i]),
               whole->k.operand[f->rows[i]].n / 32);
  if (f->kind == WEFT_OP_NORM_BWD || f->kind == WEFT_OP_HEAD_NORM_BWD)
    for (uint32_t i = 2; i < 4; i++)
      if (whole->k.operand[i].n == mine->k.operand[i].n)
        memcpy (floats (mine, i), floats (whole, i), whole->k.operand[i].n * sizeof (float));
}

static void
check_folded (const struct folded *f, uint32_t size, GRand *rand)
{
  struct call whole, mine[4];

  open_folded (&whole, f, 32, (struct weft_place){ 0, 1 }, rand);
  for (uint32_t r = 0; r < size; r++) {
    open_folded (&mine[r], f, 32 / size, (struct weft_place){ r, size }, rand);
    deal (f, &whole, &mine[r]);
    weft_kernels[f->kind].cpu (&mine[r].k, 0, 1);
  }
  weft_kernels[f->kind].cpu (&whole.k, 0, 1);
  for (unsigned i = 0; i < 2; i++) {
    uint32_t o = f->sums[i];
    for (uint32_t left = size; left > 1; left /= 2)
      for (uint32_t r = 0; r < left / 2; r++)
        for (uint64_t e = 0; e < whole.k.operand[o].n; e++)
          floats (&mine[r], o)[e] = floats (&mine[2 * r], o)[e] + floats (&mine[2 * r + 1], o)[e];
    assert_memory_equal (floats (&mine[0], o), floats (&whole, o),
                         whole.k.operand[o].n * sizeof (float));
  }
  for (uint32_t r = 0; r < size; r++)
    call_close (&mine[r]);
  call_close (&whole);
}

static void
weight_gradients_of_ranks_are_nodes_of_those_of_one (void **state)
{
  g_autoptr (GRand) rand = g_rand_new_with_seed (11);

  (void) state;
  for (unsigned i = 0; i < G_N_ELEMENTS (folded); i++)
    for (uint32_t size = 1; size <= 4; size *= 2)
      check_folded (&folded[i], size, rand);
}

static const struct CMUnitTest tests[] = {
  cmocka_unit_test (ranks_share_out_a_sequence_and_each_has_as_much_of_the_triangle),
  cmocka_unit_test (a_ranks_chunks_are_an_aligned_block_of_leaves),
  cmocka_unit_test (what_moves_elements_is_its_reference),
  cmocka_unit_test (joining_what_was_split_gives_it_back),
  cmocka_unit_test (a_part_of_attention_is_its_reference),
  cmocka_unit_test (parts_are_merged_as_the_reference_does),
  cmocka_unit_test (ranks_compute_nodes_of_the_sums_that_one_rank_takes),
  cmocka_unit_test (a_ring_of_parts_is_the_whole_attention),
  cmocka_unit_test (weight_gradients_of_ranks_are_nodes_of_those_of_one),
};

WEFT_TESTS (tests)
