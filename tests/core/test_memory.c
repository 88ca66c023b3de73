/* The memory plan: offsets in small arenas computed by hand, random lifetimes against a slow and
 * simple check, and the bytes of real jobs against published formulas. */
#include "core/plan/check.h"
#include "core/passes/step.h"
#include "tests/made/random_job.h"
#include "tests/runner/runner.h"
#include <math.h>
#include <string.h>

#define UNIT 1024u

/* ------------------------------------------------------------ small programs */

static uint32_t
buffer (weft_builder *b, uint64_t bytes)
{
  struct weft_buf row = { .bytes = bytes,
                          .base = WEFT_NO_BUF,
                          .name = weft_build_name (b, "x"),
                          .layer = WEFT_NO_LAYER,
                          .micro = WEFT_NO_MICRO,
                          .kind = WEFT_BUF_ACTIVATIONS };
  return weft_build_buf (b, &row);
}

static uint32_t
add_op (weft_builder *b, enum weft_lane lane, enum weft_op_kind kind, int flags)
{
  struct weft_op row = { .kind = kind,
                         .lane = lane,
                         .flags = flags,
                         .layer = WEFT_NO_LAYER,
                         .micro = WEFT_NO_MICRO,
                         .name = weft_build_name (b, weft_op_info[kind].word) };
  return weft_build_op (b, &row, &(struct weft_shape){ .dim = { 1 } });
}

static uint32_t
writes (weft_builder *b, uint32_t buf)
{
  uint32_t op = add_op (b, WEFT_LANE_GPU, WEFT_OP_ZERO, 0);
  weft_build_use (b, buf, FALSE, TRUE);
  return op;
}

static uint32_t
reads (weft_builder *b, uint32_t buf)
{
  uint32_t op = add_op (b, WEFT_LANE_GPU, WEFT_OP_RELEASE, 0);
  weft_build_use (b, buf, TRUE, FALSE);
  return op;
}

static uint32_t
copies_out (weft_builder *b, uint32_t buf)
{
  uint32_t op = add_op (b, WEFT_LANE_D2H, WEFT_OP_COPY_OUT, 0);
  weft_build_use (b, buf, TRUE, FALSE);
  return op;
}

static uint64_t
top_of (const weft_program *p)
{
  uint64_t top = 0;
  for (uint32_t i = 0; i < p->n_buf; i++)
    if (p->buf[i].base == WEFT_NO_BUF)
      top = MAX (top,
                 p->buf[i].offset + (p->buf[i].bytes + WEFT_ALIGN - 1) / WEFT_ALIGN * WEFT_ALIGN);
  return top;
}

/* Freezes the program and plans its memory for an arena of at most `most` bytes. Checks the
 * addresses, and that the planned bytes end where the last buffer ends. */
static weft_program *
plan_in (weft_builder *b, const double *seconds, uint64_t most, struct weft_memory *memory)
{
  g_autoptr (GError) error = NULL;
  weft_program *p = weft_builder_freeze (b);

  weft_memory_plan (p, seconds, most, memory);
  if (!weft_check_program (p, &error) || !weft_check_addresses (p, &error))
    fail_msg ("%s", error->message);
  assert_int_equal (memory->planned[WEFT_POOL_DEVICE], top_of (p));
  return p;
}

static weft_program *
plan (weft_builder *b, const double *seconds, struct weft_memory *memory)
{
  return plan_in (b, seconds, G_MAXUINT64, memory);
}

static void
a_buffer_takes_the_bytes_of_one_that_is_gone (void **state)
{
  (void) state;
  g_autoptr (weft_builder) b = weft_builder_new (0, 1);
  struct weft_memory memory;
  uint32_t x[3];

  for (int i = 0; i < 3; i++) {
    x[i] = buffer (b, UNIT);
    writes (b, x[i]);
    reads (b, x[i]);
  }
  g_autoptr (weft_program) p = plan (b, NULL, &memory);
  assert_int_equal (p->buf[x[1]].offset, p->buf[x[0]].offset);
  assert_int_equal (p->buf[x[2]].offset, p->buf[x[0]].offset);
  assert_int_equal (memory.planned[WEFT_POOL_DEVICE], UNIT);
  assert_int_equal (memory.n_reuse_deps, 0);
}

/* Buffers that end leave holes of 4, 2 and 3 units in the arena. The memory plan must place each
 * new buffer in the smallest hole that is large enough. */
static void
the_smallest_hole_that_fits_is_taken (void **state)
{
  static const uint32_t hole[] = { 4, 2, 3 };
  (void) state;
  g_autoptr (weft_builder) b = weft_builder_new (0, 1);
  struct weft_memory memory;
  uint32_t gone[3], stay[3], next[3];

  for (int i = 0; i < 3; i++) {
    writes (b, gone[i] = buffer (b, hole[i] * UNIT));
    writes (b, stay[i] = buffer (b, UNIT));
  }
  for (int i = 0; i < 3; i++)
    reads (b, gone[i]);
  writes (b, next[1] = buffer (b, 2 * UNIT));
  writes (b, next[2] = buffer (b, 2 * UNIT + 1));
  writes (b, next[0] = buffer (b, 3 * UNIT + 1));
  for (int i = 0; i < 3; i++) {
    reads (b, stay[i]);
    reads (b, next[i]);
  }
  g_autoptr (weft_program) p = plan (b, NULL, &memory);
  for (int i = 0; i < 3; i++)
    assert_int_equal (p->buf[next[i]].offset, p->buf[gone[i]].offset);
  assert_int_equal (memory.planned[WEFT_POOL_DEVICE], 12 * UNIT);
}

static void
neighbours_that_are_gone_make_one_hole (void **state)
{
  (void) state;
  g_autoptr (weft_builder) b = weft_builder_new (0, 1);
  struct weft_memory memory;
  uint32_t x[4], large;

  for (int i = 0; i < 4; i++)
    writes (b, x[i] = buffer (b, UNIT));
  for (int i = 0; i < 3; i++)
    reads (b, x[(i * 2) % 3]); /* the last reads: x[0], x[2], then x[1] */
  writes (b, large = buffer (b, 3 * UNIT));
  reads (b, large);
  reads (b, x[3]);
  g_autoptr (weft_program) p = plan (b, NULL, &memory);
  assert_int_equal (p->buf[large].offset, p->buf[x[0]].offset);
  assert_int_equal (memory.planned[WEFT_POOL_DEVICE], 4 * UNIT);
}

static void
the_last_hole_grows_with_the_arena (void **state)
{
  (void) state;
  g_autoptr (weft_builder) b = weft_builder_new (0, 1);
  struct weft_memory memory;
  uint32_t first = buffer (b, UNIT), last = buffer (b, UNIT), large = buffer (b, 5 * UNIT);

  writes (b, first);
  writes (b, last);
  reads (b, last);
  writes (b, large);
  reads (b, large);
  reads (b, first);
  g_autoptr (weft_program) p = plan (b, NULL, &memory);
  assert_int_equal (p->buf[large].offset, p->buf[last].offset);
  assert_int_equal (memory.planned[WEFT_POOL_DEVICE], 6 * UNIT);
}

static void
permanent_buffers_share_with_nobody (void **state)
{
  (void) state;
  g_autoptr (weft_builder) b = weft_builder_new (0, 1);
  struct weft_memory memory;
  uint32_t kept = buffer (b, 100), x = buffer (b, UNIT), y = buffer (b, UNIT);

  weft_build_buf_at (b, kept)->permanent = 1;
  weft_build_buf_at (b, kept)->kind = WEFT_BUF_WEIGHTS;
  writes (b, x);
  reads (b, x);
  reads (b, kept);
  writes (b, y);
  reads (b, y);
  g_autoptr (weft_program) p = plan (b, NULL, &memory);
  assert_int_equal (p->buf[kept].offset, 0);
  assert_int_equal (p->buf[x].offset, WEFT_ALIGN);
  assert_int_equal (p->buf[y].offset, WEFT_ALIGN);
  assert_int_equal (memory.permanent[WEFT_POOL_DEVICE][WEFT_BUF_WEIGHTS], 100);
  assert_int_equal (memory.live[WEFT_POOL_DEVICE], UNIT + 100);
}

/* ------------------------------------------------------------- between lanes */

/* Computes begin and end of the launch group that starts with `op`. Returns whether any of these
 * times became later. */
static gboolean
place_group (const weft_program *p, uint32_t op, const double *seconds, double *begin, double *end)
{
  uint32_t lane = p->op[op].lane, from = p->pos[op], to = from + 1;
  double start = from ? end[p->lane_ops[lane][from - 1]] : 0, stop = 0;

  while (to < p->lane_n[lane] && p->op[p->lane_ops[lane][to]].flags & WEFT_OP_GROUPED)
    to++;
  for (uint32_t i = from; i < to; i++) {
    uint32_t member = p->lane_ops[lane][i];
    for (uint32_t d = p->op[member].deps; d < p->op[member + 1].deps; d++)
      start = fmax (start, end[p->deps[d]]);
  }
  for (uint32_t i = from; i < to; i++)
    stop = fmax (stop, start + seconds[p->lane_ops[lane][i]]);
  gboolean later = start > begin[op] || stop > end[op];
  for (uint32_t i = from; i < to; i++) {
    begin[p->lane_ops[lane][i]] = start;
    end[p->lane_ops[lane][i]] = stop;
  }
  return later;
}

/* Computes when each op of a role begins, as if receives did not wait for other roles. Returns
 * the end of the last op. The ops of a launch group begin together, when the dependencies of all
 * of them have ended, and end together. */
static double
schedule (const weft_program *p, const double *seconds, double *begin)
{
  g_autofree double *end = g_new0 (double, p->n_op + 1);
  gboolean later = TRUE;
  double last = 0;

  memset (begin, 0, p->n_op * sizeof *begin);
  while (later) {
    later = FALSE;
    for (uint32_t op = 0; op < p->n_op; op++)
      if (!(p->op[op].flags & WEFT_OP_GROUPED))
        later |= place_group (p, op, seconds, begin, end);
  }
  for (uint32_t op = 0; op < p->n_op; op++)
    last = fmax (last, end[op]);
  return last;
}

/* buf[0] is copied to the host for five seconds while a kernel runs for `kernel_seconds`; then a
 * kernel writes buf[1]. buf[1] may reuse the memory of buf[0] only after the copy. */
static weft_program *
copy_beside_kernel (double kernel_seconds, struct weft_memory *memory, uint32_t buf[2])
{
  g_autoptr (weft_builder) b = weft_builder_new (0, 1);
  const double seconds[] = { 1, 5, kernel_seconds, 1, 1 };

  writes (b, buf[0] = buffer (b, UNIT));
  copies_out (b, buf[0]);
  add_op (b, WEFT_LANE_GPU, WEFT_OP_RELEASE, 0);
  writes (b, buf[1] = buffer (b, UNIT));
  reads (b, buf[1]);
  return plan (b, seconds, memory);
}

static void
lanes_share_bytes_where_there_is_time (void **state)
{
  (void) state;
  const double seconds[] = { 1, 5, 5, 1, 1 };
  struct weft_memory memory;
  uint32_t buf[2];
  double begin[5];
  g_autoptr (weft_program) p = copy_beside_kernel (5, &memory, buf);

  assert_int_equal (memory.n_reuse_deps, 1);
  assert_int_equal (p->op[3].deps + 1, p->op[4].deps);
  assert_int_equal (p->deps[p->op[3].deps], 1);
  assert_int_equal (p->buf[buf[1]].offset, p->buf[buf[0]].offset);
  assert_int_equal (memory.planned[WEFT_POOL_DEVICE], UNIT);
  assert_float_equal (schedule (p, seconds, begin), 8, 0);
}

static void
lanes_do_not_share_where_one_would_wait (void **state)
{
  (void) state;
  const double seconds[] = { 1, 5, 4.5, 1, 1 };
  struct weft_memory memory;
  uint32_t buf[2];
  double begin[5];
  g_autoptr (weft_program) p = copy_beside_kernel (4.5, &memory, buf);

  assert_int_equal (memory.n_reuse_deps, 0);
  assert_int_not_equal (p->buf[buf[1]].offset, p->buf[buf[0]].offset);
  assert_int_equal (memory.planned[WEFT_POOL_DEVICE], 2 * UNIT);
  assert_float_equal (schedule (p, seconds, begin), 7.5, 0);
}

/* Each of N kernels takes one second and writes a buffer, which is copied to the host in three
 * seconds. If all buffers fit, no kernel waits. If fewer fit, a kernel waits for the copy of the
 * buffer whose memory it reuses. If not even one fits, the limit is ignored and no kernel waits. */
static void
what_does_not_fit_waits_for_transfers (void **state)
{
  enum { N = 12, COPY = 3 };
  double seconds[2 * N], begin[2 * N];
  /* bytes of the plan without a memory limit; no kernel waits for memory there */
  uint64_t free = 0;

  (void) state;
  for (uint32_t i = 0; i < 2 * N; i++)
    seconds[i] = i % 2 ? COPY : 1;
  for (uint64_t room = 0; room <= N + 1; room++) {
    g_autoptr (weft_builder) b = weft_builder_new (0, 1);
    struct weft_memory memory;
    for (uint32_t i = 0; i < N; i++) {
      uint32_t x = buffer (b, UNIT);
      writes (b, x);
      copies_out (b, x);
    }
    g_autoptr (weft_program) p = plan_in (b, seconds, room * UNIT, &memory);
    /* If only one buffer fits into the memory, kernels and copies alternate. */
    double alone = room == 1 ? N * (1 + COPY) : 1 + N * COPY;
    assert_float_equal (schedule (p, seconds, begin), alone, 1e-12);
    assert_in_range (memory.planned[WEFT_POOL_DEVICE], UNIT, (room ? room : N) * UNIT);
    assert_int_equal (memory.live[WEFT_POOL_DEVICE], UNIT);
    free = room ? free : memory.planned[WEFT_POOL_DEVICE];
    assert_int_equal (memory.n_wait > 0, room > 0 && room * UNIT < free);
    /* A memory wait is valid only if a kernel (even op) waits for the copy (odd op) of an earlier
     * buffer. */
    for (uint32_t i = 0; i < memory.n_wait; i++)
      assert_true (memory.wait[i].op % 2 == 0 && memory.wait[i].on % 2 == 1 &&
                   memory.wait[i].on < memory.wait[i].op);
    if (room == 1)
      assert_int_equal (memory.n_wait, N - 1);
    weft_memory_clear (&memory);
  }
}

/* In one launch group, the buffers of a send and a receive must not share memory, because both
 * run at once, even if the send takes no time. In two launches they may share. */
static void
members_of_one_group_never_share (void **state)
{
  const double seconds[] = { 1, 0, 1, 1 };

  (void) state;
  for (int grouped = 0; grouped < 2; grouped++) {
    g_autoptr (weft_builder) b = weft_builder_new (0, 1);
    struct weft_memory memory;
    uint32_t sent = buffer (b, UNIT), received = buffer (b, UNIT);
    writes (b, sent);
    add_op (b, WEFT_LANE_PP, WEFT_OP_SEND, 0);
    weft_build_use (b, sent, TRUE, FALSE);
    add_op (b, WEFT_LANE_PP, WEFT_OP_RECV, grouped ? WEFT_OP_GROUPED : 0);
    weft_build_use (b, received, FALSE, TRUE);
    reads (b, received);
    g_autoptr (weft_program) p = plan (b, seconds, &memory);
    assert_int_equal (p->buf[sent].offset == p->buf[received].offset, !grouped);
    assert_int_equal (memory.planned[WEFT_POOL_DEVICE], (1 + grouped) * UNIT);
  }
}

/* A send is launched together with a receive, which waits for a kernel of ten seconds. The sent
 * buffer is free only when both transfers have ended. So the next buffer must get other memory, and
 * its op must not wait. */
static void
a_group_is_as_late_as_its_last_member (void **state)
{
  (void) state;
  g_autoptr (weft_builder) b = weft_builder_new (0, 1);
  const double seconds[] = { 1, 10, 1, 1, 1, 1 };
  struct weft_memory memory;
  double begin[6];
  uint32_t sent = buffer (b, UNIT), received = buffer (b, 64), next = buffer (b, UNIT);

  writes (b, sent);
  writes (b, received);
  add_op (b, WEFT_LANE_PP, WEFT_OP_SEND, 0);
  weft_build_use (b, sent, TRUE, FALSE);
  add_op (b, WEFT_LANE_PP, WEFT_OP_RECV, WEFT_OP_GROUPED);
  weft_build_use (b, received, FALSE, TRUE);
  writes (b, next);
  reads (b, next);
  g_autoptr (weft_program) p = plan (b, seconds, &memory);
  assert_int_equal (memory.n_reuse_deps, 0);
  assert_int_not_equal (p->buf[next].offset, p->buf[sent].offset);
  assert_float_equal (schedule (p, seconds, begin), 13, 0);
}

/* -------------------------------------------------------------------- random */

/* A random program: buffers of random size, each written once and then read a few times, by ops
 * of random length on `n_lane` lanes. About `alive` buffers are live at once. */
static weft_builder *
random_program (GRand *rand, uint32_t n_lane, uint32_t alive, double *seconds)
{
  static const enum weft_lane lanes[] = { WEFT_LANE_GPU, WEFT_LANE_D2H, WEFT_LANE_DP };
  weft_builder *b = weft_builder_new (0, 1);
  g_autofree uint32_t *live = g_new (uint32_t, alive);

  for (uint32_t i = 0; i < alive; i++)
    live[i] = WEFT_NO_BUF;
  for (uint32_t op = 0; op < 400; op++) {
    uint32_t slot = g_rand_int_range (rand, 0, alive);
    gboolean new = live[slot] == WEFT_NO_BUF || g_rand_int_range (rand, 0, 3) == 0;
    if (new) {
      live[slot] = buffer (b, g_rand_int_range (rand, 1, 100000));
      weft_build_buf_at (b, live[slot])->kind = g_rand_int_range (rand, 0, WEFT_N_BUF_KIND);
    }
    add_op (b, lanes[g_rand_int_range (rand, 0, n_lane)], WEFT_OP_ADD, 0);
    weft_build_use (b, live[slot], !new, new);
    seconds[op] = g_rand_int_range (rand, 1, 100);
  }
  return b;
}

/* Checks the peak of the memory plan: sums the bytes of all live buffers at every op. */
static void
assert_peak (const weft_program *p, const struct weft_memory *memory)
{
  uint64_t peak = 0, by_kind[WEFT_N_BUF_KIND] = { 0 };
  uint32_t peak_op = 0;

  for (uint32_t op = 0; op < p->n_op; op++) {
    uint64_t sum = 0, kinds[WEFT_N_BUF_KIND] = { 0 };
    for (uint32_t i = 0; i < p->n_buf; i++) {
      const struct weft_buf *b = &p->buf[i];
      if (b->base != WEFT_NO_BUF || b->first > op || b->last < op)
        continue;
      sum += b->bytes;
      kinds[b->kind] += b->bytes;
    }
    if (sum > peak) {
      peak = sum;
      peak_op = op;
      memcpy (by_kind, kinds, sizeof kinds);
    }
  }
  assert_int_equal (memory->live[WEFT_POOL_DEVICE], peak);
  assert_int_equal (memory->peak_op[WEFT_POOL_DEVICE], peak_op);
  assert_memory_equal (memory->at_peak[WEFT_POOL_DEVICE], by_kind, sizeof by_kind);
}

static void
the_peak_and_its_parts_are_exact (void **state)
{
  (void) state;
  GRand *rand = g_rand_new_with_seed (1);
  double seconds[400];

  for (int i = 0; i < 20; i++) {
    struct weft_memory memory;
    g_autoptr (weft_builder) b = random_program (rand, 1 + i % 3, 5 + i, seconds);
    g_autoptr (weft_program) p = plan (b, seconds, &memory);
    assert_peak (p, &memory);
  }
  g_rand_free (rand);
  g_autoptr (weft_plan) real =
      weft_test_plan ("model=llama-nano topology=dgx-h100 gpus=4 "
                      "pipeline_model_parallel_size=2 global_batch_size=8");
  for (uint32_t role = 0; role < 2; role++)
    assert_peak (real->role[role], &real->memory[role]);
}

static void
random_lifetimes_leave_few_gaps (void **state)
{
  (void) state;
  GRand *rand = g_rand_new_with_seed (2);
  double seconds[400], worst = 0, sum = 0;

  for (int i = 0; i < 100; i++) {
    struct weft_memory memory;
    g_autoptr (weft_builder) b = random_program (rand, 1, 5 + i % 40, seconds);
    g_autoptr (weft_program) p = plan (b, seconds, &memory);
    double ratio = (double) memory.planned[WEFT_POOL_DEVICE] / memory.live[WEFT_POOL_DEVICE];
    worst = fmax (worst, ratio);
    sum += ratio;
  }
  g_rand_free (rand);
  print_message ("arena over peak: mean %.3f, worst %.3f\n", sum / 100, worst);
  assert_true (worst < 1.5);
  assert_true (sum / 100 < 1.25);
}

/* Checks that the dependencies which the memory plan has added delay no op. `bare`: the program
 * without these dependencies. Returns their number. */
static uint32_t
assert_no_delay (const weft_program *bare, const weft_program *planned, const double *seconds)
{
  g_autofree double *without = g_new (double, bare->n_op + 1),
                    *with = g_new (double, bare->n_op + 1);
  double end = schedule (bare, seconds, without);

  assert_true (schedule (planned, seconds, with) == end);
  for (uint32_t op = 0; op < bare->n_op; op++)
    if (without[op] != with[op])
      fail_msg ("role %u op %u begins at %g, not at %g", bare->role, op, with[op], without[op]);
  return planned->op[planned->n_op].deps - bare->op[bare->n_op].deps;
}

static void
sharing_between_lanes_delays_no_op (void **state)
{
  (void) state;
  double seconds[400];
  uint32_t edges = 0, shared = 0;

  for (uint32_t seed = 0; seed < 60; seed++) {
    struct weft_memory memory;
    GRand *one = g_rand_new_with_seed (seed), *two = g_rand_new_with_seed (seed);
    g_autoptr (weft_builder) b = random_program (one, 3, 30, seconds);
    g_autoptr (weft_builder) again = random_program (two, 3, 30, seconds);
    g_autoptr (weft_program) bare = weft_builder_freeze (again), p = plan (b, seconds, &memory);
    edges += assert_no_delay (bare, p, seconds);
    shared += memory.n_reuse_deps;
    g_rand_free (one);
    g_rand_free (two);
  }
  print_message ("%u dependencies let lanes share bytes\n", edges);
  assert_int_equal (edges, shared);
  assert_true (edges > 100);
}

/* The dependencies that the memory plan adds delay no op of real steps with pipelines, gradient
 * buckets and token copies. Each role is scheduled without the others. */
static void
sharing_in_real_steps_delays_no_op (void **state)
{
  (void) state;
  GRand *rand = g_rand_new_with_seed (3);
  uint32_t edges = 0, n = 0;

  while (n < 60) {
    struct weft_job job;
    g_autofree char *words = weft_random_job (rand);
    if (!weft_test_job (words, &job, NULL))
      continue;
    g_autoptr (weft_plan) whole = weft_test_plan ("%s", words);
    for (uint32_t role = 0; role < whole->n_roles; role++) {
      g_autoptr (weft_program) bare = weft_step_build (&job, &whole->mesh, role);
      edges += assert_no_delay (bare, whole->role[role], whole->seconds[role]);
    }
    n++;
  }
  g_rand_free (rand);
  print_message ("%u dependencies let lanes share bytes in %u jobs\n", edges, n);
}

/* -------------------------------------------------------------- model states */

/* Elements of all parameters of a role. n_flat() returns the elements of the role's flat buffer,
 * which may have gaps between parameters. */
static uint64_t
n_trained (const weft_program *p)
{
  uint64_t n = 0;
  for (uint32_t i = 0; i < p->n_param; i++)
    n += p->param[i].rows * p->param[i].columns;
  return n;
}

static uint64_t
n_flat (const weft_program *p)
{
  const struct weft_buf *flat = &p->buf[p->buf[p->param[0].weight].base];
  return flat->bytes / weft_dtype_bytes (flat->dtype);
}

static uint64_t
state_bytes (const struct weft_memory *m)
{
  const uint64_t *kind = m->permanent[WEFT_POOL_DEVICE];
  return kind[WEFT_BUF_WEIGHTS] + kind[WEFT_BUF_GRADIENTS] + kind[WEFT_BUF_OPTIMIZER];
}

/* Bytes of weights, gradients and optimizer state per parameter. `all`: on every rank; `split`:
 * divided among the replicas by the distributed optimizer. */
static const struct states {
  const char *words;
  uint32_t all, split;
} states[] = {
  /* 4 bytes: fp32 master weight; 8 bytes: two fp32 moments */
  { "precision=bf16 grad_reduce_in_fp32=true", 2 + 4, 4 + 8 },
  { "precision=bf16", 2 + 2, 4 + 8 },
  /* the optimizer shards include an fp32 copy of the gradients */
  { "precision=bf16 copies_gradients=1", 2 + 2, 4 + 4 + 8 },
  /* the loss scale divides an fp32 copy of the gradients */
  { "precision=fp16", 2 + 2, 4 + 4 + 8 },
  { "precision=fp32", 4 + 4, 8 },
};

static const char *const shapes[] = {
  "model=llama-nano topology=dgx-h100 gpus=8 global_batch_size=16",
  "model=gpt2-nano topology=dgx-h100 gpus=8 global_batch_size=16 pipeline_model_parallel_size=2",
  "model=llama-nano topology=dgx-h100 gpus=24 node_gpus=6 global_batch_size=24 "
  "pipeline_model_parallel_size=4 share_embeddings_and_output_weights=true",
  "model=gpt2-nano topology=dgx-h100 gpus=1",
};

static void
replicas_hold_18_20_or_16_bytes_of_each_parameter (void **state)
{
  (void) state;
  for (size_t i = 0; i < G_N_ELEMENTS (states) * G_N_ELEMENTS (shapes); i++) {
    const struct states *s = &states[i % G_N_ELEMENTS (states)];
    g_autoptr (weft_plan) all =
        weft_test_plan ("%s %s", shapes[i / G_N_ELEMENTS (states)], s->words);
    for (uint32_t role = 0; role < all->n_roles; role++) {
      assert_int_equal (n_flat (all->role[role]), n_trained (all->role[role]));
      assert_int_equal (state_bytes (&all->memory[role]),
                        (s->all + s->split) * n_trained (all->role[role]));
    }
  }
}

/* Checks the gaps of a flat buffer. Tensors begin at multiples of 64 elements. Buckets end at
 * multiples of lcm (128, replicas) or, if `wide`, of lcm (128, replicas, 65536). Every gap is
 * smaller than the alignment that causes it. */
static void
assert_gaps (const weft_program *p, uint32_t replicas, gboolean wide)
{
  uint64_t gaps = n_flat (p) - n_trained (p), step = wide ? 65536 : 128, end = 0;

  while (step % replicas)
    step += wide ? 65536 : 128;
  assert_int_equal (n_flat (p) % step, 0);
  for (uint32_t i = p->n_param; i-- > 0;) {
    const struct weft_param *param = &p->param[i];
    gboolean same = i + 1 < p->n_param && param->bucket == p->param[i + 1].bucket;
    assert_int_equal (param->start % 64, 0);
    assert_in_range (param->start - end, 0, same ? 63 : step - 1 + 63);
    gaps -= param->start - end;
    end = param->start + param->rows * param->columns;
  }
  assert_int_equal (gaps, n_flat (p) - end);
  assert_in_range (gaps, 0, step - 1);
}

static void
the_distributed_optimizer_splits_all_but_weights_and_gradients (void **state)
{
  (void) state;
  for (size_t i = 0; i < 2 * G_N_ELEMENTS (states) * G_N_ELEMENTS (shapes); i++) {
    const struct states *s = &states[i % G_N_ELEMENTS (states)];
    gboolean wide = i / G_N_ELEMENTS (states) & 1;
    g_autoptr (weft_plan) all = weft_test_plan (
        "%s %s use_distributed_optimizer=true overlap_grad_reduce=true bucket_size=20000%s",
        shapes[i / 2 / G_N_ELEMENTS (states)], s->words,
        wide ? " pad_buckets_for_high_nccl_busbw=true" : "");
    for (uint32_t role = 0; role < all->n_roles; role++) {
      const weft_program *p = all->role[role];
      uint64_t replicas = all->mesh.dp, padding = n_flat (p) - n_trained (p);
      /* bytes of weights, gradients and optimizer state per parameter, summed over all replicas */
      uint64_t share = s->all * replicas + s->split;
      assert_gaps (p, replicas, wide);
      assert_int_equal (replicas * state_bytes (&all->memory[role]) - share * padding,
                        share * n_trained (p));
    }
  }
}

/* --------------------------------------------------------------- activations */

/* Bytes of activations that the forward pass of one layer and microbatch keeps for later passes. */
static uint64_t
saved_bytes (const weft_program *p, uint32_t layer, uint32_t micro)
{
  g_autofree gboolean *seen = g_new0 (gboolean, p->n_buf + 1);
  uint64_t bytes = 0;

  for (uint32_t op = 0; op < p->n_op; op++) {
    if (p->op[op].layer != layer || p->op[op].micro != micro ||
        p->op[op].phase == WEFT_PHASE_FORWARD)
      continue;
    for (uint32_t u = p->op[op].uses; u < p->op[op + 1].uses; u++) {
      uint32_t buf = p->uses[u].buf;
      if (buf == WEFT_NO_BUF || seen[buf] || p->buf[buf].kind != WEFT_BUF_ACTIVATIONS ||
          p->op[p->buf[buf].first].phase != WEFT_PHASE_FORWARD)
        continue;
      seen[buf] = TRUE;
      bytes += p->buf[buf].bytes;
    }
  }
  return bytes;
}

/* The layer of these tests: hidden size h = 64 = 8 heads of 8; MLP width f = 192 = 3 h; sequence
 * length s = 32; microbatch size b = 3. */
#define LAYER_WORDS                                                                                \
  "num_layers=8 hidden_size=64 num_attention_heads=8 ffn_hidden_size=192 vocab_size=100 "          \
  "seq_length=32 micro_batch_size=3 topology=dgx-h100 gpus=2 "
#define X (32 * 3 * 64)
#define LSE (4 * 8 * 32 * 3)

/* Korthikanti et al., "Reducing Activation Recomputation in Large Transformer Models", arXiv
 * 2205.05198, section 4, without dropout and with flash attention, whose log-sum-exp takes 4 a s b.
 * Bytes: inputs of the two norms 4 X, input of qkv 2 X, queries 2 X, keys and values 4 X k/a, input
 * of proj 2 X, input of fc1 2 X, input of the activation 2 X f/h per up projection, input of fc2
 * 2 X f/h (X = s b h; a: attention heads; k: key-value heads).  In fp32 all but the log-sum-exp
 * double. */
static const struct activations {
  const char *words;
  uint64_t bytes;
} kept[] = {
  { "num_query_groups=8 activation=gelu precision=bf16",
    (4 + 2 + 2 + 4 + 2 + 2 + 4 * 3) * X + LSE },
  { "num_query_groups=8 activation=squared_relu precision=bf16", (12 + 4 + 4 * 3) * X + LSE },
  { "num_query_groups=2 activation=gelu precision=bf16", (12 + 1 + 4 * 3) * X + LSE },
  { "num_query_groups=2 activation=swiglu precision=bf16", (12 + 1 + 6 * 3) * X + LSE },
  { "num_query_groups=8 activation=swiglu precision=bf16", (12 + 4 + 6 * 3) * X + LSE },
  { "num_query_groups=2 activation=swiglu precision=fp32", 2 * (12 + 1 + 6 * 3) * X + LSE },
  /* With qk_layernorm the norms of queries and keys keep their inputs: 2 X bytes of queries and
   * 2 X k/a bytes of keys, where X = s b h, and here k = 2 key-value heads and a = 8 attention
   * heads. */
  { "num_query_groups=2 activation=swiglu precision=bf16 qk_layernorm=true",
    (12 + 1 + 6 * 3) * X + 5 * X / 2 + LSE },
};

static void
a_layer_keeps_what_the_formula_says (void **state)
{
  (void) state;
  for (size_t i = 0; i < 2 * G_N_ELEMENTS (kept); i++) {
    const struct activations *a = &kept[i / 2];
    g_autoptr (weft_plan) all =
        weft_test_plan (LAYER_WORDS "%s pipeline_model_parallel_size=%zu", a->words, 1 + i % 2);
    for (uint32_t layer = 0; layer < 8; layer++)
      assert_int_equal (saved_bytes (all->role[layer / (8 / all->n_roles)], layer, 0), a->bytes);
  }
}

/* Full recompute keeps only the input of each block of N layers, 2 X. With recompute_method =
 * block, only the first N layers of a stage are recomputed; the other layers keep all
 * activations. */
static void
full_recompute_keeps_the_input_of_a_block (void **state)
{
  (void) state;
  for (uint32_t n = 1; n <= 8; n++) {
    uint64_t uniform = 0, block = 0;
    g_autoptr (weft_plan) a =
        weft_test_plan (LAYER_WORDS "%s recompute_granularity=full "
                                    "recompute_method=uniform recompute_num_layers=%u",
                        kept[3].words, n);
    g_autoptr (weft_plan) b =
        weft_test_plan (LAYER_WORDS "%s recompute_granularity=full "
                                    "recompute_method=block recompute_num_layers=%u",
                        kept[3].words, n);
    for (uint32_t layer = 0; layer < 8; layer++) {
      uniform += saved_bytes (a->role[0], layer, 0);
      block += saved_bytes (b->role[0], layer, 0);
      if (n == 1)
        assert_int_equal (saved_bytes (a->role[0], layer, 0), 2 * X);
    }
    assert_int_equal (uniform, (8 + n - 1) / n * 2 * X);
    assert_int_equal (block, n * 2 * X + (8 - n) * kept[3].bytes);
  }
}

/* The largest number of microbatches whose forward pass through a layer has run, but whose
 * backward pass has not. */
static uint32_t
in_flight (const weft_program *p, uint32_t n_micro)
{
  uint32_t most = 0;
  g_autofree uint32_t *from = g_new0 (uint32_t, n_micro), *to = g_new0 (uint32_t, n_micro);

  for (uint32_t i = 0; i < p->n_buf; i++)
    if (strcmp (p->name[p->buf[i].name], "lse") == 0) {
      uint32_t micro = p->buf[i].micro;
      from[micro] = p->buf[i].first;
      to[micro] = p->buf[i].last;
    }
  for (uint32_t m = 0; m < n_micro; m++) {
    uint32_t n = 0;
    for (uint32_t other = 0; other < n_micro; other++)
      n += from[other] <= from[m] && from[m] <= to[other];
    most = MAX (most, n);
  }
  return most;
}

static void
a_stage_holds_as_many_microbatches_as_its_schedule_says (void **state)
{
  (void) state;
  for (uint32_t stages = 1; stages <= 8; stages *= 2)
    for (uint32_t m = 1; m <= 10; m += 3)
      for (int gpipe = 0; gpipe < 2; gpipe++) {
        g_autoptr (weft_plan) all = weft_test_plan (
            "num_layers=8 hidden_size=8 num_attention_heads=1 vocab_size=20 seq_length=8 "
            "topology=dgx-h100 "
            "gpus=8 pipeline_model_parallel_size=%u global_batch_size=%u pipeline_schedule=%s",
            stages, m * 8 / stages, gpipe ? "gpipe" : "1f1b");
        for (uint32_t role = 0; role < stages; role++)
          assert_int_equal (in_flight (all->role[role], m), gpipe ? m : MIN (m, stages - role));
      }
}

static const struct CMUnitTest tests[] = {
  cmocka_unit_test (a_buffer_takes_the_bytes_of_one_that_is_gone),
  cmocka_unit_test (the_smallest_hole_that_fits_is_taken),
  cmocka_unit_test (neighbours_that_are_gone_make_one_hole),
  cmocka_unit_test (the_last_hole_grows_with_the_arena),
  cmocka_unit_test (permanent_buffers_share_with_nobody),
  cmocka_unit_test (lanes_share_bytes_where_there_is_time),
  cmocka_unit_test (lanes_do_not_share_where_one_would_wait),
  cmocka_unit_test (what_does_not_fit_waits_for_transfers),
  cmocka_unit_test (members_of_one_group_never_share),
  cmocka_unit_test (a_group_is_as_late_as_its_last_member),
  cmocka_unit_test (the_peak_and_its_parts_are_exact),
  cmocka_unit_test (random_lifetimes_leave_few_gaps),
  cmocka_unit_test (sharing_between_lanes_delays_no_op),
  cmocka_unit_test (sharing_in_real_steps_delays_no_op),
  cmocka_unit_test (replicas_hold_18_20_or_16_bytes_of_each_parameter),
  cmocka_unit_test (the_distributed_optimizer_splits_all_but_weights_and_gradients),
  cmocka_unit_test (a_layer_keeps_what_the_formula_says),
  cmocka_unit_test (full_recompute_keeps_the_input_of_a_block),
  cmocka_unit_test (a_stage_holds_as_many_microbatches_as_its_schedule_says),
};

WEFT_TESTS (tests)
