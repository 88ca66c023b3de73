/* Small random jobs over all features of programs. Each plan must pass all checks; a printed
 * program must be parsed to the same program; folding and a second run must not change times;
 * closed formulas must bound the simulated times and bytes. */
#include "core/base/sanitize.h"
#include "core/exec/exec.h"
#include "exec_sim/exec_sim.h"
#include "core/program/coll_style.h"
#include "core/program/segment.h"
#include "core/passes/step.h"
#include "tests/made/own.h"
#include "tests/made/random_job.h"
#include "tests/runner/runner.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

/* numbers of jobs: usually, and with `./weft test --long` */
#define JOBS (WEFT_ADDRESS_SANITIZER || WEFT_THREAD_SANITIZER ? 250 : 300)
#define ALL_JOBS 1400
#define SEED 20261121
/* largest relative difference of two sums of doubles that are added in different orders */
#define EXACT 1e-9
/* in seconds; the simulator treats smaller differences as 0 (exec_sim/bridge.cc) */
#define DATE 1e-12

struct sample {
  char *words;
  weft_plan *plan;
  /* timelines of the folded simulations, by the executors clock and sim */
  weft_timeline *clock, *sim;
};

struct samples {
  struct sample *at; /* n elements */
  uint32_t n, filtered;
};

static weft_timeline *
run (const struct weft_exec_ops *ops, const struct sample *s,
     const struct weft_exec_options *options)
{
  g_autoptr (GError) error = NULL;
  weft_timeline *t = weft_exec_run (ops, s->plan, options, &error);

  if (!t)
    fail_msg ("%s: %s", s->words, error->message);
  return t;
}

static void
assert_close (const struct sample *s, const char *what, double a, double b)
{
  if (!(fabs (a - b) <= EXACT * s->sim->seconds + DATE))
    fail_msg ("%s: %s: %.15g and %.15g", s->words, what, a, b);
}

static void
assert_holds (const struct sample *s, const char *what, gboolean holds)
{
  if (!holds)
    fail_msg ("%s: %s", s->words, what);
}

/* Draws jobs until one of them is legal, and plans it. The plan must pass all checks. */
static void
draw (struct samples *all, struct sample *s, GRand *rand)
{
  g_autoptr (GError) unplanned = NULL;
  struct weft_job job;
  struct weft_exec_options folded = { 0 };

  for (;;) {
    g_autoptr (GError) error = NULL;
    s->words = weft_random_job (rand);
    if (weft_test_job (s->words, &job, &error))
      break;
    if (!strstr (error->message, "rule "))
      /* The job is printed last, because CMocka cuts a message at 1024 bytes. */
      fail_msg ("%s: %s", error->message, s->words);
    g_free (s->words);
    all->filtered++;
  }
  s->plan = weft_plan_new (&job, &unplanned);
  if (!s->plan)
    fail_msg ("%s: %s", unplanned->message, s->words);
  s->clock = run (&weft_exec_clock, s, &folded);
  s->sim = run (&weft_exec_sim, s, &folded);
}

static int
set_up (void **state)
{
  struct samples *all = g_new0 (struct samples, 1);

  all->n = weft_tests_cases (JOBS, ALL_JOBS);
  all->at = g_new0 (struct sample, all->n);
  GRand *rand = g_rand_new_with_seed (SEED);

  for (uint32_t i = 0; i < all->n; i++)
    draw (all, &all->at[i], rand);
  g_rand_free (rand);
  *state = all;
  return 0;
}

static int
tear_down (void **state)
{
  struct samples *all = *state;

  for (uint32_t i = 0; i < all->n; i++) {
    g_free (all->at[i].words);
    weft_plan_free (all->at[i].plan);
    weft_timeline_free (all->at[i].clock);
    weft_timeline_free (all->at[i].sim);
  }
  g_free (all->at);
  g_free (all);
  return 0;
}

/* ---------------------------------------------------------------- the sample */

static uint32_t
count_word (const struct samples *all, const char *word)
{
  uint32_t n = 0;
  for (uint32_t i = 0; i < all->n; i++)
    n += strstr (all->at[i].words, word) != NULL;
  return n;
}

static const char *const wanted[] = { "dgx-h100",
                                      "dgx-a100",
                                      "l40s-pcie",
                                      "gb200-nvl72",
                                      "topology=cpu",
                                      "node_gpus=",
                                      "leaf_oversubscription=2",
                                      "llama-nano",
                                      "gpt2-nano",
                                      "=gelu",
                                      "=swiglu",
                                      "=squared_relu",
                                      "=layernorm",
                                      "=rmsnorm",
                                      "=learned",
                                      "=rope",
                                      "share_embeddings",
                                      "add_bias_linear",
                                      "add_qkv_bias",
                                      "qk_layernorm",
                                      "=fp32",
                                      "=bf16",
                                      "clip_grad=0",
                                      "gpipe",
                                      "1f1b",
                                      "use_distributed_optimizer",
                                      "overlap_grad_reduce",
                                      "overlap_param_gather",
                                      "fp8_param_gather",
                                      "reuse_grad_buf_for_mxfp8_param_ag",
                                      "bucket_size=1 ",
                                      "pad_buckets",
                                      "disable_bucketing",
                                      "average_in_collective",
                                      "grad_reduce_in_fp32",
                                      "gradient_accumulation_fusion",
                                      "=uniform",
                                      "=block",
                                      "deallocate_pipeline_outputs",
                                      "batch_p2p_sync=false",
                                      "pipeline_dtype=",
                                      "pipeline_schedule=zb",
                                      "virtual_pipeline_model_parallel_size",
                                      "overlap_p2p_comm=true",
                                      "model_parallel_size=1 ",
                                      "model_parallel_size=2 ",
                                      "model_parallel_size=4 " };

static void
the_sample_has_some_of_everything (void **state)
{
  const struct samples *all = *state;

  for (size_t i = 0; i < G_N_ELEMENTS (wanted); i++)
    if (count_word (all, wanted[i]) < all->n / 50)
      fail_msg ("only %u of %u jobs have %s", count_word (all, wanted[i]), all->n, wanted[i]);
  print_message ("%u jobs, %u drawn and refused by a rule\n", all->n, all->filtered);
  assert_in_range (all->filtered, 1, all->n);
}

/* ---------------------------------------------------------------------- text */

static void
every_program_comes_back_from_its_text (void **state)
{
  const struct samples *all = *state;

  for (uint32_t i = 0; i < all->n; i++)
    for (uint32_t role = 0; role < all->at[i].plan->n_roles; role++) {
      g_autoptr (GError) error = NULL;
      g_autofree char *text = weft_program_print (all->at[i].plan->role[role]);
      g_autoptr (weft_program) again = weft_program_parse (text, "text", &error);
      if (!again)
        fail_msg ("%s: role %u: %s", all->at[i].words, role, error->message);
      g_autofree char *second = weft_program_print (again);
      assert_string_equal (text, second);
    }
}

/* ------------------------------------------------------------------- folding */

/* Asserts that each rank of the unfolded simulation (`whole`) has the op times of its
 * representative in the folded simulation. */
static void
compare_rows (const struct sample *s, const weft_timeline *whole, const weft_actors *actors)
{
  for (uint32_t row = 0; row < whole->n; row++) {
    uint32_t actor = actors->actor_of[whole->rank[row]];
    assert_int_equal (whole->role[row], s->sim->role[actor]);
    for (uint32_t op = 0; op < s->plan->role[whole->role[row]]->n_op; op++) {
      assert_close (s, "begin", whole->begin[row][op], s->sim->begin[actor][op]);
      assert_close (s, "end", whole->end[row][op], s->sim->end[actor][op]);
    }
  }
}

static void
folding_changes_no_time_of_any_op_on_any_rank (void **state)
{
  const struct weft_exec_options unfolded = { .own = made_own (&weft_exec_sim, "unfolded") };
  const struct samples *all = *state;
  uint32_t n_folded = 0, n_partly = 0, n_contended = 0;

  for (uint32_t i = 0; i < all->n; i++) {
    const struct sample *s = &all->at[i];
    g_autoptr (weft_actors) actors = weft_actors_new (&s->plan->fabric, &s->plan->mesh, TRUE);
    g_autoptr (weft_timeline) whole = run (&weft_exec_sim, s, &unfolded);
    assert_int_equal (whole->n, s->plan->mesh.n_ranks);
    assert_int_equal (actors->n, s->sim->n);
    assert_close (s, "step", whole->seconds, s->sim->seconds);
    assert_holds (s, "contended folded as unfolded", whole->contended == s->sim->contended);
    compare_rows (s, whole, actors);
    n_folded += s->sim->folded;
    n_partly += s->sim->folded && s->sim->n > s->plan->n_roles;
    n_contended += s->sim->folded && s->sim->contended;
  }
  print_message ("%u of %u jobs fold, %u of them to more actors than roles, %u of them contended\n",
                 n_folded, all->n, n_partly, n_contended);
  assert_true (n_folded > all->n / 2);
  assert_true (n_partly > all->n / 20);
  assert_true (n_contended > all->n / 10);
}

/* --------------------------------------------------------------------- clock */

static void
the_clock_is_never_later_than_the_simulation (void **state)
{
  const struct samples *all = *state;
  uint32_t later = 0;

  for (uint32_t i = 0; i < all->n; i++) {
    const struct sample *s = &all->at[i];
    if (!(s->clock->seconds <= s->sim->seconds * (1 + EXACT)))
      fail_msg ("%s: clock %.15g, sim %.15g", s->words, s->clock->seconds, s->sim->seconds);
    later += s->sim->seconds > s->clock->seconds * (1 + EXACT);
  }
  print_message ("the simulation is later for %u of %u jobs\n", later, all->n);
  assert_true (later > all->n / 10);
}

static void
compare_clock (const struct sample *s)
{
  assert_int_equal (s->clock->n, s->sim->n);
  assert_close (s, "clock and sim", s->clock->seconds, s->sim->seconds);
  for (uint32_t row = 0; row < s->sim->n; row++)
    for (uint32_t op = 0; op < s->plan->role[s->sim->role[row]]->n_op; op++) {
      assert_close (s, "begin", s->clock->begin[row][op], s->sim->begin[row][op]);
      assert_close (s, "end", s->clock->end[row][op], s->sim->end[row][op]);
    }
}

static void
the_clock_is_exact_where_nothing_contends (void **state)
{
  const struct samples *all = *state;
  uint32_t n = 0, n_large = 0;

  for (uint32_t i = 0; i < all->n; i++)
    if (!all->at[i].sim->contended) {
      compare_clock (&all->at[i]);
      n++;
      n_large += all->at[i].plan->mesh.n_ranks > 8;
    }
  print_message ("%u of %u jobs are free of contention, %u of them on more than 8 GPUs\n", n,
                 all->n, n_large);
  assert_true (n > all->n / 4);
  assert_true (n_large > all->n / 10);
}

/* -------------------------------------------------------------------- rounds */

static struct weft_traffic
traffic (const weft_plan *plan, uint32_t role, uint32_t op, struct weft_coll_shape *shape)
{
  const weft_program *p = plan->role[role];
  struct weft_group group =
      weft_mesh_group (&plan->mesh, weft_mesh_stage_rank (&plan->mesh, role, 0), p->op[op].group);

  weft_coll_shape_init (shape, &plan->fabric, &group);
  return weft_coll_plan (shape, p->op[op].kind, weft_op_bytes (p, op), &plan->job.stack,
                         plan->job.train.reduction_order == WEFT_ORDER_CANONICAL);
}

static gboolean
is_collective (const weft_program *p, uint32_t op)
{
  return weft_op_info[p->op[op].kind].class == WEFT_CLASS_COLLECTIVE;
}

static gboolean
only_rings (const weft_plan *plan)
{
  for (uint32_t role = 0; role < plan->n_roles; role++)
    for (uint32_t op = 0; op < plan->role[role]->n_op; op++)
      if (is_collective (plan->role[role], op)) {
        struct weft_coll_shape shape;
        struct weft_traffic t = traffic (plan, role, op, &shape);
        weft_coll_shape_release (&shape);
        if (strcmp (t.algorithm, "ring") != 0)
          return FALSE;
      }
  return TRUE;
}

/* A collective that is simulated step by step has a latency in each round; a collective that is
 * simulated as one flow has its whole latency at the start. Without shared links, both take the
 * same time. Step by step is not faster if a send that ends during the initial latency shares links
 * with the rounds. */
static void
rounds_take_as_long_as_a_flow_where_rings_are_alone (void **state)
{
  const struct weft_exec_options in_rounds = { .own = made_own (&weft_exec_sim, "step-by-step") };
  const struct samples *all = *state;
  uint32_t n = 0, n_met = 0;

  for (uint32_t i = 0; i < all->n; i++) {
    const struct sample *s = &all->at[i];
    if (s->sim->contended || !only_rings (s->plan))
      continue;
    g_autoptr (weft_timeline) t = run (&weft_exec_sim, s, &in_rounds);
    if (t->contended) {
      assert_holds (s, "rounds are no shortcut", t->seconds >= s->sim->seconds * (1 - EXACT));
      n_met++;
      continue;
    }
    assert_close (s, "rounds and flow", t->seconds, s->sim->seconds);
    n++;
  }
  print_message ("%u jobs without trees are free of contention in both, %u only as flows\n", n,
                 n_met);
  assert_true (n > all->n / 10);
}

/* ---------------------------------------------------------------- repetition */

static void
assert_same_times (const struct sample *s, const weft_timeline *a, const weft_timeline *b)
{
  assert_int_equal (a->n, b->n);
  assert_memory_equal (&a->seconds, &b->seconds, sizeof a->seconds);
  assert_memory_equal (a->rank, b->rank, a->n * sizeof *a->rank);
  for (uint32_t row = 0; row < a->n; row++) {
    size_t bytes = s->plan->role[a->role[row]]->n_op * sizeof (double);
    assert_memory_equal (a->begin[row], b->begin[row], bytes);
    assert_memory_equal (a->end[row], b->end[row], bytes);
  }
}

static void
a_second_run_gives_the_same_bits (void **state)
{
  const struct weft_exec_options folded = { 0 };
  const struct samples *all = *state;

  for (uint32_t i = all->n; i-- > 0;) {
    const struct sample *s = &all->at[i];
    struct sample again = { .words = s->words, .plan = weft_test_plan ("%s", s->words) };
    for (uint32_t role = 0; role < s->plan->n_roles; role++) {
      g_autofree char *one = weft_program_print (s->plan->role[role]);
      g_autofree char *two = weft_program_print (again.plan->role[role]);
      assert_string_equal (one, two);
    }
    g_autoptr (weft_timeline) clock = run (&weft_exec_clock, &again, &folded);
    g_autoptr (weft_timeline) sim = run (&weft_exec_sim, &again, &folded);
    assert_same_times (s, clock, s->clock);
    assert_same_times (s, sim, s->sim);
    assert_int_equal (sim->n_activities, s->sim->n_activities);
    weft_plan_free (again.plan);
  }
}

/* -------------------------------------------------------------------- memory */

static void
check_memory (const struct sample *s, const weft_program *p, const struct weft_memory *m)
{
  uint64_t top[WEFT_N_POOL] = { 0 };

  for (uint32_t i = 0; i < p->n_buf; i++) {
    const struct weft_buf *b = &p->buf[i];
    if (b->base != WEFT_NO_BUF)
      continue;
    assert_holds (s, "offsets are aligned", b->offset % WEFT_ALIGN == 0);
    top[b->pool] = MAX (top[b->pool], b->offset + b->bytes);
  }
  for (int pool = 0; pool < WEFT_N_POOL; pool++) {
    uint64_t at_peak = 0;
    for (int kind = 0; kind < WEFT_N_BUF_KIND; kind++)
      at_peak += m->at_peak[pool][kind];
    assert_holds (s, "the parts make the peak", at_peak == m->live[pool]);
    assert_holds (s, "the arena holds what lives", m->planned[pool] >= m->live[pool]);
    assert_holds (s, "the arena ends with its last buffer",
                  m->planned[pool] == (top[pool] + WEFT_ALIGN - 1) / WEFT_ALIGN * WEFT_ALIGN);
  }
}

static void
arenas_are_aligned_and_large_enough (void **state)
{
  const struct samples *all = *state;
  double planned = 0, live = 0;

  for (uint32_t i = 0; i < all->n; i++)
    for (uint32_t role = 0; role < all->at[i].plan->n_roles; role++) {
      const struct weft_memory *m = &all->at[i].plan->memory[role];
      check_memory (&all->at[i], all->at[i].plan->role[role], m);
      planned += m->planned[WEFT_POOL_DEVICE];
      live += m->live[WEFT_POOL_DEVICE];
    }
  print_message ("arenas are %.2f %% larger than what lives in them at the peak\n",
                 100 * (planned / live - 1));
  assert_true (planned < 1.15 * live);
}

/* --------------------------------------------------------------------- bytes */

/* Checks the steps of a ring over n ranks on k nodes: n - 1 steps per round. An all-reduce has two
 * rounds. A round has at most k steps between nodes, and at least k - 1. */
static void
check_ring (const struct sample *s, const struct weft_coll_shape *shape,
            const struct weft_traffic *t, double rounds)
{
  uint32_t nodes = shape->side[WEFT_WAY_REMOTE];

  assert_holds (s, "steps of a ring", weft_coll_steps (t) == rounds * (shape->n - 1));
  assert_holds (s, "steps between nodes",
                t->steps[WEFT_WAY_REMOTE] >= rounds * (nodes - 1) &&
                    t->steps[WEFT_WAY_REMOTE] <= rounds * nodes);
}

static void
check_flows (const struct sample *s, uint32_t role, uint32_t op)
{
  struct weft_coll_shape shape;
  struct weft_traffic t = traffic (s->plan, role, op, &shape);
  double bytes = weft_op_bytes (s->plan->role[role], op), n = shape.n, sent = 0;
  double twice = s->plan->role[role]->op[op].kind == WEFT_OP_ALL_REDUCE ? 2 : 1;

  if (strcmp (t.algorithm, "shift") == 0) {
    assert_holds (s, "a shift is one flow of all",
                  t.bytes[WEFT_WAY_LOCAL] == bytes && t.bytes[WEFT_WAY_REMOTE] == 0);
    weft_coll_shape_release (&shape);
    return;
  }
  for (uint32_t member = 0; member < shape.n; member++) {
    struct weft_flow flows[WEFT_MAX_WAYS];
    uint32_t n_flow = weft_coll_flows (&shape, &s->plan->fabric, member, flows);
    for (uint32_t f = 0; f < n_flow; f++)
      sent += t.bytes[flows[f].way] / weft_coll_wire (&shape, t.protocol, flows[f].way);
  }
  if (strcmp (t.algorithm, "ring") == 0)
    check_ring (s, &shape, &t, twice);
  if (strcmp (t.algorithm, "tree") != 0 && strcmp (t.algorithm, "nvls") != 0 &&
      bytes > WEFT_COLL_SCALAR_BYTES)
    /* the simulator rounds the bytes of each flow to whole bytes */
    assert_holds (s, "members send what it takes", fabs (sent - twice * (n - 1) * bytes) <= n);
  if (bytes <= WEFT_COLL_SCALAR_BYTES)
    assert_holds (s, "a scalar rides in the latency", sent == 0);
  weft_coll_shape_release (&shape);
}

/* Returns the number of ranks that sum their gradients with each other. */
static uint32_t
sharing (const weft_plan *plan)
{
  return weft_mesh_group_size (&plan->mesh, WEFT_GROUP_DP);
}

struct tally {
  uint64_t reduced, gathered, reduced_outside, gathered_outside, sent[2],
      /* bytes of the role's collectives and transfers; sent and received: [0] in forward, [1] in
       * backward */
      received[2];
};

static struct tally
add_up (const struct sample *s, uint32_t role)
{
  const weft_program *p = s->plan->role[role];
  struct tally sum = { 0 };

  for (uint32_t op = 0; op < p->n_op; op++) {
    uint64_t bytes = weft_op_bytes (p, op);
    int backward = p->op[op].phase != WEFT_PHASE_FORWARD;
    if (is_collective (p, op))
      check_flows (s, role, op);
    const char *name = p->name[p->op[op].name];
    if (g_str_has_prefix (name, "outer gather "))
      sum.gathered_outside += bytes;
    else if (g_str_has_prefix (name, "outer ") || g_str_has_prefix (name, "instances "))
      sum.reduced_outside += bytes;
    else if (g_str_has_prefix (name, "bucket ") || g_str_equal (name, "reduce") ||
             (is_collective (p, op) && g_str_equal (name, "tied head")))
      sum.reduced += bytes;
    else if (p->op[op].kind == WEFT_OP_ALL_GATHER && p->op[op].lane == WEFT_LANE_DP)
      sum.gathered += bytes;
    else if (g_str_equal (name, "shape"))
      continue; /* a pipeline also sends the shapes of tensors, which are not counted here */
    else if (p->op[op].kind == WEFT_OP_SEND && p->op[op].group == WEFT_GROUP_PP)
      sum.sent[backward] += bytes;
    else if (p->op[op].kind == WEFT_OP_RECV && p->op[op].group == WEFT_GROUP_PP)
      sum.received[backward] += bytes;
  }
  return sum;
}

static gboolean
is_of_experts (const weft_program *p, const struct weft_buf *buf)
{
  return strstr (p->name[buf->name], "expert ") != NULL;
}

/* Whether a buffer belongs to experts that have no replica on another rank. */
static gboolean
is_alone (const weft_plan *plan, const weft_program *p, const struct weft_buf *buf)
{
  return weft_mesh_expert_replicas (&plan->mesh) == 1 && is_of_experts (p, buf);
}

/* Returns the number of ranks over which a flat buffer can be sharded. */
static uint32_t
sharers (const weft_plan *plan, const weft_program *p, const struct weft_buf *buf)
{
  const struct weft_mesh *m = &plan->mesh;
  gboolean experts = is_of_experts (p, buf);

  return weft_mesh_group_size (m, experts ? weft_mesh_expert_sharing (m) : weft_mesh_sharing (m));
}

static gboolean
is_flat (const weft_program *p, const struct weft_buf *buf, enum weft_buf_kind kind)
{
  return buf->kind == kind && buf->permanent && buf->base == WEFT_NO_BUF &&
         /* buffers named host_ are copies for optimizer_cpu_offload */
         !g_str_has_prefix (p->name[buf->name], "host_");
}

/* Returns the bytes of all flat buffers of a kind over all ranks. A buffer that holds one rank's
 * slice counts with the slices of all ranks. */
static uint64_t
flat_bytes (const weft_plan *plan, const weft_program *p, enum weft_buf_kind kind)
{
  uint64_t bytes = 0;
  for (uint32_t i = 0; i < p->n_buf; i++)
    if (is_flat (p, &p->buf[i], kind) && !is_alone (plan, p, &p->buf[i]))
      bytes += p->buf[i].bytes * weft_mesh_group_size (&plan->mesh, p->buf[i].slice);
  return bytes;
}

/* Bytes of one rank's slice of all flat gradient buffers that may be sharded over several ranks. */
static uint64_t
gradient_slice_bytes (const weft_plan *plan, const weft_program *p)
{
  uint64_t bytes = 0;
  for (uint32_t i = 0; i < p->n_buf; i++) {
    const struct weft_buf *buf = &p->buf[i];
    uint32_t n = sharers (plan, p, buf);
    if (is_flat (p, buf, WEFT_BUF_GRADIENTS) && n > 1)
      bytes += buf->bytes * weft_mesh_group_size (&plan->mesh, buf->slice) / n;
  }
  return bytes;
}

/* Bytes of an all-gather of all weights: the flat weight buffers; for fp8 weights that are
 * gathered through the gradient buffer, two bytes per gradient. `slices`: only the slices of one
 * rank. */
static uint64_t
gathered_bytes (const weft_plan *plan, const weft_program *p, gboolean slices)
{
  gboolean staged = plan->job.strategy.reuse_grad_buf_for_mxfp8_param_ag;
  uint64_t bytes = 0;

  for (uint32_t i = 0; i < p->n_buf; i++) {
    const struct weft_buf *b = &p->buf[i];
    const char *name = p->name[b->name];
    if (!b->permanent || b->base != WEFT_NO_BUF || sharers (plan, p, b) == 1)
      continue;
    if (g_str_equal (name, "weights") || g_str_equal (name, "fp8 weights") ||
        g_str_equal (name, "expert weights") || g_str_equal (name, "fp8 expert weights"))
      bytes += b->bytes * weft_mesh_group_size (&plan->mesh, b->slice) /
               (slices ? sharers (plan, p, b) : 1);
    else if (staged && g_str_equal (name, "fp8 gradients"))
      bytes += b->bytes / weft_dtype_bytes (b->dtype) * 2;
  }
  return bytes;
}

/* A unit is gathered into a buffer with one slot for each rank's slice. Returns the number of
 * slots of a weight; 0 if one rank holds the whole unit. */
static uint64_t
slots_of (const weft_plan *plan, const weft_program *p, uint32_t weight)
{
  const struct weft_mesh *m = &plan->mesh;

  if (weft_mesh_group_size (m, p->buf[weight].slice) == 1)
    return 0;
  return p->buf[weight].slice == weft_mesh_expert_sharing (m) ? weft_mesh_expert_slots (m)
                                                              : weft_mesh_slots (m);
}

/* Returns the bytes of the gathered weights of layers [first, end), with padding. */
static uint64_t
unit_bytes (const weft_plan *plan, const weft_program *p, uint32_t first, uint32_t end)
{
  uint32_t n_slice;
  g_autofree struct weft_slice *slice = weft_slices (p, &plan->mesh, 0, &n_slice);
  uint64_t bytes = 0;

  for (uint32_t k = 0; k < n_slice; k++) {
    gboolean fp8 = p->buf[slice[k].weight].dtype == WEFT_FP8;
    uint32_t size = weft_dtype_bytes (fp8 ? WEFT_FP8 : weft_job_dtype (&plan->job));
    for (uint32_t i = 0; i < p->n_param; i++)
      if (p->param[i].start == slice[k].flat) {
        if (p->param[i].layer >= first && p->param[i].layer < end &&
            /* Weights of the prediction layers (multi-token prediction) are not in the unit of the
             * layer with this number. */
            !g_str_has_prefix (p->name[p->param[i].name], "mtp_"))
          bytes += slice[k].n * slots_of (plan, p, slice[k].weight) * size;
        break;
      }
  }
  return bytes;
}

/* Returns an upper bound of the bytes that full recompute gathers in addition per microbatch.
 * Before the backward pass of a block, its layers run forward again and are gathered once more,
 * except the last layer (and the layer before it, if the last one was prefetched). */
static uint64_t
most_gathered_again (const weft_plan *plan, const weft_program *p)
{
  const union weft_strategy *k = &plan->job.strategy;
  uint32_t n = k->recompute_num_layers == WEFT_NONE ? 1 : k->recompute_num_layers;
  g_autoptr (weft_grid) grid = weft_job_grid (&plan->job, NULL);
  uint64_t bytes = 0;

  if (k->recompute_granularity != WEFT_RECOMPUTE_FULL ||
      k->recompute_method == WEFT_RECOMPUTE_BLOCK)
    return 0;
  for (uint32_t chunk = 0; chunk < grid->n_chunks; chunk++) {
    struct weft_stage stage = weft_stage_at (&plan->job, grid, p->role, chunk);
    uint32_t end = stage.first_layer + stage.n_layers;
    for (uint32_t l = stage.first_layer; l < end; l += n)
      bytes += unit_bytes (plan, p, l, MIN (l + n, end) - 1);
  }
  return bytes;
}

/* How often a stage of a pipeline gathers a chunk if every backward pass reduces its gradients and
 * frees its weights: for the first pass after each of them. */
static uint64_t
gathers_of_chunk (const weft_grid *grid, uint32_t rank, uint32_t chunk)
{
  gboolean gathered = FALSE;
  uint64_t n = 0;

  for (uint32_t i = 0; i < grid->n_cell[rank]; i++)
    if (grid->cell[rank][i].chunk == chunk) {
      n += !gathered;
      gathered = grid->cell[rank][i].phase == WEFT_PHASE_FORWARD;
    }
  return n;
}

/* FSDP2 with a pipeline gathers all weights once; with reductions of each microbatch, the layers of
 * a chunk as gathers_of_chunk() says and all others at most twice in a microbatch. */
static gboolean
fsdp2_stage_gathers_are_right (const weft_plan *plan, const weft_program *p, uint64_t gathered,
                               uint64_t flat)
{
  g_autoptr (weft_grid) grid = weft_job_grid (&plan->job, NULL);
  uint64_t least = 0, layers = 0, micros = weft_job_microbatches (&plan->job);

  if (!weft_job_reduces_each (&plan->job))
    return gathered == flat;
  for (uint32_t chunk = 0; chunk < grid->n_chunks; chunk++) {
    struct weft_stage stage = weft_stage_at (&plan->job, grid, p->role, chunk);
    uint32_t first = stage.first_layer;
    uint64_t bytes = unit_bytes (plan, p, first, first + stage.n_layers);
    layers += bytes;
    least += bytes * gathers_of_chunk (grid, p->role, chunk);
  }
  return gathered >= least && gathered <= least + 2 * micros * (flat - layers);
}

/* FSDP2 without a pipeline gathers every unit in every microbatch for forward, and all layers
 * except the last again for backward. Gathered weights have the compute type, shards are fp32. */
static gboolean
fsdp2_gathers_are_right (const weft_plan *plan, const weft_program *p, uint64_t gathered)
{
  uint32_t n = plan->job.model.num_layers;
  uint64_t flat = flat_bytes (plan, p, WEFT_BUF_WEIGHTS) / 4 *
                  weft_dtype_bytes (weft_job_dtype (&plan->job)),
           micros = weft_job_microbatches (&plan->job);

  if (plan->n_roles > 1)
    return fsdp2_stage_gathers_are_right (plan, p, gathered, flat);
  uint64_t least = micros * (flat + unit_bytes (plan, p, 0, n - 1));
  return gathered >= least && gathered <= least + micros * most_gathered_again (plan, p);
}

/* Returns the largest number of all-gathers of a unit per microbatch: one for forward and one for
 * backward. Full recompute of a block of several layers needs one more, because running the block
 * forward again reshards the units of all its layers but the last. */
static uint32_t
passes (const weft_plan *plan)
{
  return plan->job.strategy.recompute_granularity == WEFT_RECOMPUTE_FULL ? 3 : 2;
}

/* Checks the bytes of all-gathers. Weights are gathered once per step; if weights are sharded,
 * every unit is gathered twice in every microbatch. Which modules are units is tested by
 * test_fsdp_knobs.c. */
static gboolean
gathers_are_right (const weft_plan *plan, const weft_program *p, uint64_t gathered)
{
  uint32_t n = plan->job.model.num_layers + plan->job.model.mtp_num_layers;
  uint64_t flat = gathered_bytes (plan, p, FALSE), units = unit_bytes (plan, p, 0, n),
           micros = weft_job_microbatches (&plan->job),
           uses = (plan->job.model.share_embeddings_and_output_weights ? 2 : 1) *
                  /* The prediction layers (multi-token prediction) also read the weights of
                   * embedding and head. */
                  (1 + plan->job.model.mtp_num_layers);
  int level = weft_job_sharding (&plan->job);

  /* Every rank holds all weights, so no weights may be gathered. */
  if (sharing (plan) == plan->mesh.instances)
    return gathered == 0;
  if (plan->job.strategy.distributed_config == WEFT_FSDP2)
    return fsdp2_gathers_are_right (plan, p, gathered);
  if (level == WEFT_SHARD_PARAMS && plan->job.knob_set[WEFT_KNOB_megatron_fsdp_unit_modules])
    return gathered >= flat && gathered <= passes (plan) * uses * flat * micros;
  if (level == WEFT_SHARD_PARAMS) {
    uint64_t least = flat - units + 2 * units * micros;
    return gathered >= least && gathered <= least + micros * most_gathered_again (plan, p);
  }
  return gathered ==
         (level >= WEFT_SHARD_OPTIM || plan->job.strategy.use_distributed_optimizer ? flat : 0);
}

/* With tied embeddings, the head has a gradient buffer of its own. Returns its bytes, 0 if
 * gradients are sharded. All replicas sum this gradient in one collective. */
static uint64_t
tied_head_bytes (const weft_plan *plan, const weft_program *p)
{
  uint64_t bytes = 0;

  for (uint32_t i = 0; i < p->n_buf && weft_job_sharding (&plan->job) < WEFT_SHARD_GRADS; i++)
    if (g_str_equal (p->name[p->buf[i].name], "head_gradients"))
      bytes += p->buf[i].bytes;
  return bytes;
}

/* Bytes that instances (copies of the sharded state) reduce among each other: one rank's slice
 * of the gradients, or all gradients if nothing is sharded. */
static uint64_t
reduced_outside (const weft_plan *plan, const weft_program *p)
{
  gboolean whole = plan->mesh.hybrid && weft_job_sharding (&plan->job) == WEFT_NO_SHARD;

  if (plan->mesh.instances == 1 || sharing (plan) == plan->mesh.instances ||
      plan->job.strategy.distributed_config == WEFT_FSDP2)
    return 0;
  if (whole)
    return flat_bytes (plan, p, WEFT_BUF_GRADIENTS) - tied_head_bytes (plan, p);
  return gradient_slice_bytes (plan, p) -
         tied_head_bytes (plan, p) / weft_mesh_group_size (&plan->mesh, WEFT_GROUP_INTRA);
}

/* Bytes of one reduction of all gradients. FSDP2 keeps gradients in fp32 and reduces them in the
 * type mp_policy_reduce_dtype, in canonical order in fp32. */
static uint64_t
bytes_to_reduce (const weft_plan *plan, const weft_program *p)
{
  uint64_t bytes = flat_bytes (plan, p, WEFT_BUF_GRADIENTS);

  if (plan->job.strategy.distributed_config != WEFT_FSDP2 ||
      plan->job.train.reduction_order == WEFT_ORDER_CANONICAL)
    return bytes;
  return bytes / 4 * weft_dtype_bytes (plan->job.strategy.mp_policy_reduce_dtype);
}

/* Returns how many forward passes of a role send their output to another rank (`after`), or receive
 * their input from another rank. */
static uint32_t
crossings (const weft_plan *plan, uint32_t role, gboolean after)
{
  g_autoptr (weft_grid) grid = weft_job_grid (&plan->job, NULL);
  uint32_t n = 0;

  for (uint32_t i = 0; i < grid->n_cell[role]; i++) {
    uint32_t rank = role, chunk = grid->cell[role][i].chunk;
    if (grid->cell[role][i].phase == WEFT_PHASE_FORWARD)
      n += (after ? weft_grid_next : weft_grid_prev) (grid, &rank, &chunk) && rank != role;
  }
  return n;
}

/* Whether the role reduces the right number of gradient bytes: exactly `all`. With
 * finalize_model_grads_func none, only the reductions that the backward passes launch take place,
 * so any number up to `all` is right. */
static gboolean
is_reduced (const weft_plan *plan, uint64_t reduced, uint64_t all)
{
  if (plan->job.strategy.finalize_model_grads_func == WEFT_FINALIZE_NONE)
    return reduced <= all;
  return reduced == all;
}

static void
check_bytes (const struct sample *s, uint32_t role)
{
  const weft_plan *plan = s->plan;
  const union weft_strategy *k = &plan->job.strategy;
  uint64_t reductions = weft_job_reduces_each (&plan->job) ? weft_job_microbatches (&plan->job) : 1;
  struct tally sum = add_up (s, role);
  enum weft_dtype sent_as =
      k->pipeline_dtype == WEFT_NONE ? weft_job_dtype (&plan->job) : k->pipeline_dtype;
  uint64_t cell = plan->job.train.micro_batch_size * plan->job.model.seq_length *
                  plan->job.model.hidden_size * weft_dtype_bytes (sent_as) / plan->mesh.cp /
                  (k->sequence_parallel ? plan->mesh.tp : 1);
  uint64_t before = cell * crossings (plan, role, FALSE),
           after = cell * crossings (plan, role, TRUE);
  gboolean shared = sharing (plan) > 1;
  const weft_program *p = plan->role[role];

  assert_holds (
      s, "buckets are all gradients, as often as they are reduced",
      is_reduced (plan, sum.reduced, shared ? reductions * bytes_to_reduce (plan, p) : 0));
  assert_holds (s, "instances add what each has reduced, once",
                is_reduced (plan, sum.reduced_outside, reduced_outside (plan, p)));
  assert_holds (s, "slices that were cut again are put together once",
                sum.gathered_outside ==
                    (plan->mesh.outer_slices == 1 ? 0 : gathered_bytes (plan, p, TRUE)));
  assert_holds (s, "gathers are all weights", gathers_are_right (plan, p, sum.gathered));
  assert_holds (s, "sent forward", sum.sent[0] == after);
  assert_holds (s, "sent backward", sum.sent[1] == before);
  assert_holds (s, "received forward", sum.received[0] == before);
  assert_holds (s, "received backward", sum.received[1] == after);
}

static void
bytes_of_all_communication_add_up (void **state)
{
  const struct samples *all = *state;

  for (uint32_t i = 0; i < all->n; i++)
    for (uint32_t role = 0; role < all->at[i].plan->n_roles; role++)
      check_bytes (&all->at[i], role);
}

static const struct CMUnitTest tests[] = {
  cmocka_unit_test (the_sample_has_some_of_everything),
  cmocka_unit_test (every_program_comes_back_from_its_text),
  cmocka_unit_test (folding_changes_no_time_of_any_op_on_any_rank),
  cmocka_unit_test (the_clock_is_never_later_than_the_simulation),
  cmocka_unit_test (the_clock_is_exact_where_nothing_contends),
  cmocka_unit_test (rounds_take_as_long_as_a_flow_where_rings_are_alone),
  cmocka_unit_test (a_second_run_gives_the_same_bits),
  cmocka_unit_test (arenas_are_aligned_and_large_enough),
  cmocka_unit_test (bytes_of_all_communication_add_up),
};

WEFT_TESTS (tests, .seconds = 8, .set_up = set_up, .tear_down = tear_down)
