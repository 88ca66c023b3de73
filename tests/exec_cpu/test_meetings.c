/* Collectives and transfers of the CPU executor: sums must be taken in the documented order, bit
 * for bit, and transfers must deliver the right data. */
#include "core/base/fold.h"
#include "exec_cpu/exec_cpu.h"
#include "kernels/float.h"
#include "tests/made/made.h"
#include "tests/runner/runner.h"

enum { MOST_OPS = 3, JOBS = 120 };

/* ----------------------------------------------------------------- a collective */

/* One collective, and the inputs of all members: values[member * n + element], numbers of type
 * `dtype` (stored as float, or as 64-bit words if dtype is int64). */
struct meeting {
  enum weft_op_kind kind;
  enum weft_group_kind group;
  enum weft_dtype dtype;
  enum weft_reduce reduce;
  int peer; /* sender of a broadcast: 0: the first member of the group; -1: the last member */
  uint64_t n;
  uint32_t buf;
  void *values;
};

static uint32_t
up_to (GRand *rand, uint32_t most)
{
  return (uint32_t) g_rand_int_range (rand, 0, (gint32) most + 1);
}

/* Random numbers of many magnitudes, so that the order of a sum changes its bits. */
static float
random_float (GRand *rand, enum weft_dtype dtype)
{
  float value = ldexpf ((float) g_rand_double_range (rand, -1, 1), (int) up_to (rand, 12) - 6);

  weft_round (dtype, 1, &value);
  return value;
}

static void
draw_values (struct meeting *m, uint32_t members, GRand *rand)
{
  uint64_t total = m->n * members;

  m->values = g_malloc (8 * total);
  for (uint64_t i = 0; i < total; i++)
    if (m->dtype == WEFT_INT64)
      ((int64_t *) m->values)[i] = ((int64_t) g_rand_int (rand) << 20) - ((int64_t) 1 << 51);
    else
      ((float *) m->values)[i] = random_float (rand, m->dtype);
}

static gboolean
is_whole (enum weft_op_kind kind)
{
  return kind == WEFT_OP_ALL_REDUCE || kind == WEFT_OP_BROADCAST;
}

static gboolean
is_sum (enum weft_op_kind kind)
{
  return kind == WEFT_OP_ALL_REDUCE || kind == WEFT_OP_REDUCE_SCATTER;
}

static struct meeting
random_meeting (GRand *rand, uint32_t members)
{
  static const enum weft_op_kind kinds[] = { WEFT_OP_ALL_REDUCE, WEFT_OP_REDUCE_SCATTER,
                                             WEFT_OP_ALL_GATHER, WEFT_OP_BROADCAST };
  static const enum weft_dtype types[] = { WEFT_FP32, WEFT_BF16, WEFT_INT64 };
  static const enum weft_reduce reductions[] = { WEFT_REDUCE_SUM, WEFT_REDUCE_AVG, WEFT_REDUCE_MIN,
                                                 WEFT_REDUCE_MAX };
  struct meeting m = { .kind = kinds[up_to (rand, 3)],
                       .group = up_to (rand, 1) ? WEFT_GROUP_DP : WEFT_GROUP_WORLD,
                       .dtype = types[up_to (rand, 2)] };
  uint32_t slice = 1 + up_to (rand, up_to (rand, 3) ? 40 : 3000);

  /* a tensor that is split into slices has a multiple of `members` elements */
  m.n = is_whole (m.kind) ? slice : (uint64_t) slice * members;
  if (!is_whole (m.kind))
    m.group = WEFT_GROUP_DP;
  if (is_sum (m.kind))
    m.reduce = reductions[up_to (rand, G_N_ELEMENTS (reductions) - 1)];
  if (m.dtype == WEFT_INT64 && m.reduce == WEFT_REDUCE_AVG)
    m.reduce = WEFT_REDUCE_SUM;
  if (m.kind == WEFT_OP_BROADCAST)
    m.peer = -(int) up_to (rand, 1);
  draw_values (&m, members, rand);
  return m;
}

static uint32_t
add_buffer (weft_builder *b, enum weft_dtype dtype, uint64_t n)
{
  struct weft_buf row = { .bytes = n * weft_dtype_bytes (dtype),
                          .base = WEFT_NO_BUF,
                          .name = weft_build_name (b, "payload"),
                          .layer = WEFT_NO_LAYER,
                          .micro = WEFT_NO_MICRO,
                          .kind = WEFT_BUF_GRADIENTS,
                          .pool = WEFT_POOL_DEVICE,
                          .dtype = dtype,
                          .permanent = 1 };
  return weft_build_buf (b, &row);
}

static void
add_meeting (weft_builder *b, struct meeting *m)
{
  struct weft_op row = made_row (b, m->kind, "meeting");
  struct weft_shape shape = { .dim = { m->n }, .dtype = m->dtype, .out_dtype = m->dtype };

  m->buf = add_buffer (b, m->dtype, m->n);
  row.group = m->group;
  row.lane = weft_group_lane (m->group);
  row.reduce = m->reduce;
  row.peer = (int8_t) m->peer;
  uint32_t shard = m->buf;
  if (!is_whole (m->kind)) {
    shard = weft_build_view (b, m->buf, 0, m->n * weft_dtype_bytes (m->dtype), "shard");
    weft_build_buf_at (b, shard)->shard = WEFT_GROUP_DP;
  }
  weft_build_op (b, &row, &shape);
  if (m->kind == WEFT_OP_ALL_GATHER) {
    weft_build_use (b, shard, TRUE, FALSE);
    weft_build_use (b, m->buf, FALSE, TRUE);
  } else {
    weft_build_use (b, m->buf, TRUE, TRUE);
    if (m->kind == WEFT_OP_REDUCE_SCATTER)
      weft_build_use (b, shard, FALSE, TRUE);
  }
}

/* ------------------------------------------------------------- what must come out */

static float
value_at (const struct meeting *m, uint32_t member, uint64_t element)
{
  return ((const float *) m->values)[member * m->n + element];
}

static float
rounded (const struct meeting *m, float value)
{
  weft_round (m->dtype, 1, &value);
  return value;
}

static float
join (const struct meeting *m, float a, float b)
{
  return m->reduce == WEFT_REDUCE_MIN   ? fminf (a, b)
         : m->reduce == WEFT_REDUCE_MAX ? fmaxf (a, b)
                                        : rounded (m, a + b);
}

/* The sum over members [first, first + n) in the order of the canonical tree. */
static float
fold (const struct meeting *m, uint64_t element, uint32_t first, uint32_t n)
{
  if (n == 1)
    return value_at (m, first, element);
  uint32_t left = weft_fold_split (n);
  return join (m, fold (m, element, first, left), fold (m, element, first + left, n - left));
}

/* Returns the sum in the order of a ring all-reduce: it begins with the value of the member after
 * the owner of the piece, and adds the value of every other member in ring order. */
static float
around (const struct meeting *m, uint64_t element, uint32_t members)
{
  uint32_t owner = 0;

  while (element >= m->n * (owner + 1) / members)
    owner++;
  float sum = value_at (m, (owner + 1) % members, element);
  for (uint32_t i = 2; i <= members; i++)
    sum = join (m, sum, value_at (m, (owner + i) % members, element));
  return sum;
}

static float
wanted_sum (const struct meeting *m, uint64_t element, uint32_t members, gboolean canonical)
{
  float sum = canonical ? fold (m, element, 0, members) : around (m, element, members);
  return m->reduce == WEFT_REDUCE_AVG ? rounded (m, sum / (float) members) : sum;
}

static int64_t
wanted_words (const struct meeting *m, uint64_t element, uint32_t members)
{
  int64_t all = ((const int64_t *) m->values)[element];

  for (uint32_t i = 1; i < members; i++) {
    int64_t word = ((const int64_t *) m->values)[i * m->n + element];
    all = m->reduce == WEFT_REDUCE_MIN   ? MIN (all, word)
          : m->reduce == WEFT_REDUCE_MAX ? MAX (all, word)
                                         : all + word;
  }
  return all;
}

/* The expected result for an element, as bytes of the buffer's type. */
static void
wanted_bytes (const struct meeting *m, uint64_t element, uint32_t members, gboolean canonical,
              void *out)
{
  uint32_t owner = (uint32_t) (element / MAX (m->n / members, 1));

  if (m->kind == WEFT_OP_BROADCAST)
    owner = m->peer ? members - 1 : 0;
  if (m->dtype == WEFT_INT64) {
    int64_t word = is_sum (m->kind) ? wanted_words (m, element, members)
                                    : ((const int64_t *) m->values)[owner * m->n + element];
    memcpy (out, &word, sizeof word);
    return;
  }
  float value =
      is_sum (m->kind) ? wanted_sum (m, element, members, canonical) : value_at (m, owner, element);
  weft_store (out, m->dtype, 0, 1, &value);
}

/* ----------------------------------------------------------------------- running */

static uint64_t
bytes_of (const struct meeting *m)
{
  return m->n * weft_dtype_bytes (m->dtype);
}

static void
bring (weft_exec *x, const struct meeting *m, uint32_t member)
{
  g_autofree uint8_t *raw = g_malloc (bytes_of (m));

  if (m->dtype == WEFT_INT64)
    memcpy (raw, (const int64_t *) m->values + member * m->n, bytes_of (m));
  else
    weft_store (raw, m->dtype, 0, m->n, (const float *) m->values + member * m->n);
  x->ops->write (x, member, m->buf, 0, bytes_of (m), raw);
}

/* Checks the result of a member: the whole tensor, or the member's slice. */
static void
assert_holds (weft_exec *x, const struct meeting *m, uint32_t member, const char *what)
{
  gboolean canonical = x->plan->job.train.reduction_order == WEFT_ORDER_CANONICAL;
  g_autofree uint8_t *raw = g_malloc (bytes_of (m));
  uint32_t size = weft_dtype_bytes (m->dtype), members = x->actors->n;
  gboolean sliced = m->kind == WEFT_OP_REDUCE_SCATTER;
  uint64_t first = sliced ? m->n / members * member : 0;
  uint64_t end = sliced ? m->n / members * (member + 1) : m->n;

  x->ops->read (x, member, m->buf, 0, bytes_of (m), raw);
  for (uint64_t e = first; e < end; e++) {
    uint8_t wanted[8];
    wanted_bytes (m, e, members, canonical, wanted);
    if (memcmp (raw + e * size, wanted, size))
      fail_msg ("%s: %s of %u elements (%s, %s): element %u of member %u has other bits", what,
                weft_op_words[m->kind], (unsigned) m->n, weft_dtype_words[m->dtype],
                weft_reduce_words[m->reduce], (unsigned) e, member);
  }
}

static void
run_plan (weft_exec *x, const char *what)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (weft_timeline) t = weft_exec_step (x, &error);

  if (!t)
    fail_msg ("%s: %s", what, error->message);
}

static weft_exec *
open_plan (const weft_plan *plan, uint64_t stress)
{
  g_autoptr (GError) error = NULL;
  const union weft_cpu_options own = { { .stress = (int64_t) stress, .poison = TRUE } };
  struct weft_exec_options options = { .own = weft_own_options_of (weft_exec_cpu.options, own.at) };
  weft_exec *x = weft_exec_cpu.open (plan, &options, &error);

  if (!x)
    fail_msg ("%s", error->message);
  return x;
}

/* Runs two steps, because the counters of a communicator continue from step to step. */
static void
assert_meetings (const weft_plan *plan, const struct meeting *m, uint32_t n, uint64_t stress,
                 const char *what)
{
  weft_exec *x = open_plan (plan, stress);

  for (int step = 0; step < 2; step++) {
    for (uint32_t i = 0; i < n; i++)
      for (uint32_t member = 0; member < x->actors->n; member++)
        bring (x, &m[i], member);
    run_plan (x, what);
    for (uint32_t i = 0; i < n; i++)
      for (uint32_t member = 0; member < x->actors->n; member++)
        assert_holds (x, &m[i], member, what);
  }
  weft_exec_cpu.close (x);
}

static void
random_meetings (uint32_t seed, enum weft_reduction_order order)
{
  g_autoptr (GRand) rand = g_rand_new_with_seed (seed);
  uint32_t members = 1 + up_to (rand, 16), n = 1 + up_to (rand, MOST_OPS - 1);
  struct weft_cluster cluster = made_cluster (1, members);
  struct weft_job job = made_job (&cluster);
  g_autoptr (weft_builder) b = weft_builder_new (0, 1);
  struct meeting m[MOST_OPS];

  job.train.reduction_order = order;
  for (uint32_t i = 0; i < n; i++) {
    m[i] = random_meeting (rand, members);
    add_meeting (b, &m[i]);
  }
  g_autoptr (weft_plan) plan = made_plan (&job, weft_mesh_make (1, 1, members, 1), &b);
  g_autofree char *what =
      g_strdup_printf ("seed %u, %s, %u members", seed, weft_reduction_order_words[order], members);
  assert_meetings (plan, m, n, 0, what);
  assert_meetings (plan, m, n, seed + 1, what);
  for (uint32_t i = 0; i < n; i++)
    g_free (m[i].values);
}

static void
canonical_sums_are_the_tree_over_members (void **state)
{
  (void) state;
  for (uint32_t seed = 0; seed < JOBS; seed++)
    random_meetings (seed, WEFT_ORDER_CANONICAL);
}

static void
fast_sums_go_once_around_the_ring (void **state)
{
  (void) state;
  for (uint32_t seed = 0; seed < JOBS; seed++)
    random_meetings (JOBS + seed, WEFT_ORDER_FAST);
}

static void
an_average_of_words_is_refused (void **state)
{
  struct weft_cluster cluster = made_cluster (1, 2);
  struct weft_job job = made_job (&cluster);
  g_autoptr (weft_builder) b = weft_builder_new (0, 1);
  g_autoptr (GError) error = NULL;
  struct meeting m = { .kind = WEFT_OP_ALL_REDUCE,
                       .group = WEFT_GROUP_DP,
                       .dtype = WEFT_INT64,
                       .reduce = WEFT_REDUCE_AVG,
                       .n = 5 };

  (void) state;
  add_meeting (b, &m);
  g_autoptr (weft_plan) plan = made_plan (&job, weft_mesh_make (1, 1, 2, 1), &b);
  assert_null (weft_exec_cpu.open (plan, &(const struct weft_exec_options){ 0 }, &error));
  assert_non_null (strstr (error->message, "has no all_reduce of avg over int64"));
}

/* --------------------------------------------------------------------- transfers */

enum { MOST_STAGES = 7, MOST_ROUNDS = 12, PAYLOAD = 37 };

/* Transfers between neighbouring stages, in rounds. In each round a stage sends its own buffer, or
 * one that it has received in an earlier round, to the next stage, to the previous one, or to
 * both. */
struct relay {
  uint32_t stages, rounds, replicas;
  /* [round][sending stage]: whether the stage sends to the next stage (0), to the previous stage
   * (1) */
  gboolean moves[MOST_ROUNDS][MOST_STAGES][2];
  /* [round][sending stage]: number of the buffer that the stage sends in each direction */
  uint32_t sent[MOST_ROUNDS][MOST_STAGES][2];
  uint32_t n[MOST_STAGES]; /* number of buffers that each stage has so far */
  uint32_t buf[MOST_STAGES][2 * MOST_ROUNDS + 1];
  /* value of the first element of each buffer; each further element is larger by 1 */
  float holds[MOST_STAGES][2 * MOST_ROUNDS + 1];
};

static void
add_transfer (weft_builder *b, enum weft_op_kind kind, int peer, uint32_t buf, gboolean grouped)
{
  struct weft_op row = made_row (b, kind, "transfer");
  struct weft_shape shape = { .dim = { PAYLOAD }, .dtype = WEFT_FP32, .out_dtype = WEFT_FP32 };

  row.group = WEFT_GROUP_PP;
  row.lane = WEFT_LANE_PP;
  row.peer = (int8_t) peer;
  row.flags = grouped ? WEFT_OP_GROUPED : 0;
  weft_build_op (b, &row, &shape);
  weft_build_use (b, buf, kind == WEFT_OP_SEND, kind == WEFT_OP_RECV);
}

/* Whether stage `from` sends in direction d (0: to the next stage, 1: to the previous one). */
static gboolean
has_move (const struct relay *r, uint32_t round, uint32_t from, uint32_t d)
{
  return (d ? from > 0 : from + 1 < r->stages) && r->moves[round][from][d];
}

static void
receive (struct relay *r, weft_builder *b, uint32_t round, uint32_t stage, uint32_t d,
         gboolean grouped)
{
  uint32_t from = d ? stage + 1 : stage - 1, to = r->n[stage]++;

  r->buf[stage][to] = add_buffer (b, WEFT_FP32, PAYLOAD);
  r->holds[stage][to] = r->holds[from][r->sent[round][from][d]];
  add_transfer (b, WEFT_OP_RECV, d ? 1 : -1, r->buf[stage][to], grouped);
}

/* Adds the transfers of one stage in one round, in a random order. */
static void
add_round (struct relay *r, weft_builder *b, uint32_t round, uint32_t stage, GRand *rand)
{
  uint32_t start = up_to (rand, 3);
  gboolean grouped = FALSE;

  for (uint32_t i = 0; i < 4; i++) {
    uint32_t d = (start + i) % 2;
    gboolean sends = (start + i) % 4 < 2;
    if (sends && has_move (r, round, stage, d)) {
      add_transfer (b, WEFT_OP_SEND, d ? -1 : 1, r->buf[stage][r->sent[round][stage][d]], grouped);
      grouped = TRUE;
    }
    uint32_t from = d ? stage + 1 : stage - 1;
    if (!sends && from < r->stages && has_move (r, round, from, d)) {
      receive (r, b, round, stage, d, grouped);
      grouped = TRUE;
    }
  }
}

static void
choose_moves (struct relay *r, uint32_t round, GRand *rand)
{
  for (uint32_t stage = 0; stage < r->stages; stage++)
    for (uint32_t d = 0; d < 2; d++) {
      r->moves[round][stage][d] = up_to (rand, 3) > 0;
      r->sent[round][stage][d] = up_to (rand, r->n[stage] - 1);
    }
}

static weft_plan *
relay_plan (struct relay *r, GRand *rand)
{
  struct weft_cluster cluster = made_cluster (1, r->stages * r->replicas);
  struct weft_job job = made_job (&cluster);
  weft_builder *b[MOST_STAGES];

  for (uint32_t stage = 0; stage < r->stages; stage++) {
    b[stage] = weft_builder_new (stage, r->stages);
    r->buf[stage][0] = add_buffer (b[stage], WEFT_FP32, PAYLOAD);
    r->holds[stage][0] = 1000.0f * (float) (stage + 1);
    r->n[stage] = 1;
  }
  for (uint32_t round = 0; round < r->rounds; round++) {
    choose_moves (r, round, rand);
    for (uint32_t stage = 0; stage < r->stages; stage++)
      add_round (r, b[stage], round, stage, rand);
  }
  weft_plan *plan = made_plan (&job, weft_mesh_make (1, 1, r->replicas, r->stages), b);
  for (uint32_t stage = 0; stage < r->stages; stage++)
    weft_builder_free (b[stage]);
  return plan;
}

/* Returns the element that a buffer must have after all transfers. Buffers of different replicas
 * have different fractions. */
static float
payload (const struct relay *r, uint32_t row, uint32_t buf, uint32_t element)
{
  uint32_t stage = row / r->replicas;
  return r->holds[stage][buf] + (float) element + (float) (row % r->replicas) * 0x1p-6f;
}

static void
assert_relayed (const weft_plan *plan, const struct relay *r, uint64_t stress, const char *what)
{
  weft_exec *x = open_plan (plan, stress);
  float value[PAYLOAD];

  for (int step = 0; step < 2; step++) {
    for (uint32_t row = 0; row < x->actors->n; row++) {
      for (uint32_t e = 0; e < PAYLOAD; e++)
        value[e] = payload (r, row, 0, e);
      x->ops->write (x, row, r->buf[row / r->replicas][0], 0, sizeof value, value);
    }
    run_plan (x, what);
    for (uint32_t row = 0; row < x->actors->n; row++)
      for (uint32_t i = 0; i < r->n[row / r->replicas]; i++) {
        x->ops->read (x, row, r->buf[row / r->replicas][i], 0, sizeof value, value);
        for (uint32_t e = 0; e < PAYLOAD; e++)
          if (value[e] != payload (r, row, i, e))
            fail_msg ("%s: buffer %u of rank %u holds %g, wanted %g", what, i, row,
                      (double) value[e], (double) payload (r, row, i, e));
      }
  }
  weft_exec_cpu.close (x);
}

static void
transfers_between_stages_never_get_stuck (void **state)
{
  (void) state;
  for (uint32_t seed = 1; seed <= JOBS; seed++) {
    g_autoptr (GRand) rand = g_rand_new_with_seed (seed);
    struct relay r = { .stages = 2 + up_to (rand, MOST_STAGES - 2),
                       .rounds = 1 + up_to (rand, MOST_ROUNDS - 1),
                       .replicas = 1 + up_to (rand, 1) };
    g_autoptr (weft_plan) plan = relay_plan (&r, rand);
    g_autofree char *what = g_strdup_printf ("seed %u", seed);
    assert_relayed (plan, &r, 0, what);
    for (uint64_t stress = 1; stress <= 5; stress++)
      assert_relayed (plan, &r, 1000 * seed + stress, what);
  }
}

static const struct CMUnitTest tests[] = {
  cmocka_unit_test (canonical_sums_are_the_tree_over_members),
  cmocka_unit_test (fast_sums_go_once_around_the_ring),
  cmocka_unit_test (an_average_of_words_is_refused),
  cmocka_unit_test (transfers_between_stages_never_get_stuck),
};

WEFT_TESTS (tests)
