/* Times at which a host issues the ops of its rank: launch-bound steps must take as long as closed
 * formulas say, and launch times must not make any random job faster. */
#include "core/exec/exec.h"
#include "core/report/report.h"
#include "exec_sim/exec_sim.h"
#include "tests/made/made.h"
#include "tests/made/random_job.h"
#include "tests/runner/runner.h"

#define LAUNCH 5e-6
#define US 1e-6

static const struct weft_exec_ops *const machines[] = { &weft_exec_sim, &weft_exec_clock };

/* A job whose only overhead is the launch time of each op. `waits`: whether the host waits for
 * the end of each step. */
static struct weft_job
job_of (uint32_t gpus, int64_t waits)
{
  struct weft_cluster cluster = made_cluster (1, gpus);
  struct weft_job job = made_job (&cluster);

  job.stack.launch_seconds = LAUNCH;
  job.stack.graph_launch = 3e-6;
  job.stack.graph_node = 0.1e-6;
  job.stack.step_waits = waits;
  return job;
}

static double
seconds_on (const struct weft_exec_ops *machine, const weft_plan *plan, gboolean graph)
{
  g_autoptr (weft_timeline) t = made_run_with (machine, plan, graph ? "graph" : "");
  return t->seconds;
}

/* Returns the simulated seconds of a step, and asserts that the clock executor returns the same
 * seconds. */
static double
seconds_of (const weft_plan *plan, gboolean graph)
{
  double seconds = seconds_on (machines[0], plan, graph);

  assert_near (seconds_on (machines[1], plan, graph), seconds);
  return seconds;
}

/* A plan of `steps` steps, each with n kernels one after the other. `microseconds`: duration of
 * each kernel. */
static weft_plan *
chain_plan (const struct weft_job *job, const uint32_t *microseconds, uint32_t n, uint32_t steps)
{
  g_autoptr (weft_builder) b = weft_builder_new (0, 1);

  for (uint32_t i = 0; i < n * steps; i++)
    made_kernel (b, microseconds[i % n]);
  return made_plan (job, weft_mesh_make (1, 1, 1, 1), &b);
}

static double
chain (int64_t waits, const uint32_t *microseconds, uint32_t n, uint32_t steps, gboolean graph)
{
  struct weft_job job = job_of (1, waits);
  g_autoptr (weft_plan) plan = chain_plan (&job, microseconds, n, steps);

  return seconds_of (plan, graph);
}

static const uint32_t tiny[] = { 1, 1, 1, 1, 1, 1, 1, 1, 1, 1 };
static const uint32_t long_first[] = { 300, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1 };
static const uint32_t long_last[] = { 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 30 };
static const uint32_t longer_last[] = { 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 100 };

static void
a_chain_of_tiny_kernels_costs_their_launches (void **state)
{
  (void) state;
  assert_near (chain (1, tiny, 10, 1, FALSE), 10 * LAUNCH + US);
  assert_near (chain (0, tiny, 10, 1, FALSE), 10 * LAUNCH);
}

static void
what_was_measured_stands_in_front_of_the_stack (void **state)
{
  struct weft_job job = job_of (1, 1);
  g_autoptr (weft_plan) plan = chain_plan (&job, tiny, 10, 1);

  (void) state;
  plan->table = weft_cost_table_parse ("launch_seconds 7e-06\n", -1, "here", NULL);
  assert_near (seconds_of (plan, FALSE), 10 * 7e-6 + US);
}

static void
add_op (weft_builder *b, enum weft_op_kind kind, enum weft_phase phase, uint16_t layer)
{
  struct weft_op row = made_row (b, kind, "op");
  struct weft_shape shape = { .dim = { 64, 64, 64, 8, 64 },
                              .dtype = WEFT_BF16,
                              .out_dtype = WEFT_BF16 };

  row.phase = phase;
  row.layer = layer;
  weft_build_op (b, &row, &shape);
}

/* Host time per op: its launch, plus framework time by the class of the op, plus a time for each
 * expert of a grouped matmul, plus a time for the first kernel of each pass through a layer.
 * Framework time is halved in the backward pass here, but for Python code with
 * host_python_backward, and divided by the speed of the host. */
static void
the_framework_takes_time_around_each_launch (void **state)
{
  static const struct {
    enum weft_op_kind kind;
    enum weft_phase phase;
    uint16_t layer;
    double framework; /* microseconds of framework time per op, on a host of speed 1 */
    double python;    /* the same with host_python_backward */
  } row[] = {
    { WEFT_OP_EMBED, WEFT_PHASE_FORWARD, WEFT_NO_LAYER, 1, 1 },
    { WEFT_OP_NORM, WEFT_PHASE_FORWARD, 0, 1 + 300 + 10, 1 + 300 + 10 },
    { WEFT_OP_MATMUL, WEFT_PHASE_FORWARD, 0, 1 + 20, 1 + 20 },
    { WEFT_OP_ATTENTION, WEFT_PHASE_FORWARD, 0, 1 + 30, 1 + 30 },
    { WEFT_OP_MOE_PERMUTE, WEFT_PHASE_FORWARD, 0, 1 + 40, 1 + 40 },
    { WEFT_OP_MOE_MATMUL, WEFT_PHASE_FORWARD, 1, 1 + 300 + 20 + 8 * 2, 1 + 300 + 20 + 8 * 2 },
    { WEFT_OP_ADD, WEFT_PHASE_FORWARD, 1, 1, 1 },
    { WEFT_OP_MATMUL_DGRAD, WEFT_PHASE_BACKWARD, 1, 0.5 * (1 + 300 + 20), 0.5 * (1 + 300 + 20) },
    { WEFT_OP_MOE_MATMUL_DGRAD, WEFT_PHASE_BACKWARD, 1, 0.5 * (1 + 20 + 8 * 2),
      0.5 * (1 + 20) + 8 * 2 },
    { WEFT_OP_MOE_PERMUTE, WEFT_PHASE_BACKWARD, 1, 0.5 * (1 + 40), 0.5 * 1 + 40 },
    { WEFT_OP_ATTENTION_BWD, WEFT_PHASE_BACKWARD, 1, 0.5 * (1 + 30), 0.5 * 1 + 30 },
    { WEFT_OP_NORM, WEFT_PHASE_RECOMPUTE, 1, 1 + 300 + 10, 1 + 300 + 10 },
    { WEFT_OP_ADAM, WEFT_PHASE_OPTIMIZER, 1, 1 + 50, 1 + 50 },
  };
  struct weft_job job = job_of (1, 1);

  (void) state;
  job.stack.host_op_seconds = 1e-6;
  job.stack.host_norm_seconds = 10e-6;
  job.stack.host_matmul_seconds = 20e-6;
  job.stack.host_attention_seconds = 30e-6;
  job.stack.host_dispatch_seconds = 40e-6;
  job.stack.host_optimizer_seconds = 50e-6;
  job.stack.host_expert_seconds = 2e-6;
  job.stack.host_layer_seconds = 300e-6;
  job.stack.host_backward_share = 0.5;
  job.cluster.f.node_host_speed = 0.25;
  for (int python = 0; python < 2; python++) {
    job.stack.host_python_backward = python;
    g_autoptr (weft_builder) b = weft_builder_new (0, 1);
    for (unsigned i = 0; i < G_N_ELEMENTS (row); i++)
      add_op (b, row[i].kind, row[i].phase, row[i].layer);
    g_autoptr (weft_plan) plan = made_plan (&job, weft_mesh_make (1, 1, 1, 1), &b);
    g_autoptr (weft_host) host = weft_host_new (plan, 0, FALSE);
    double upto = 0;
    for (unsigned i = 0; i < G_N_ELEMENTS (row); i++) {
      upto += LAUNCH + (python ? row[i].python : row[i].framework) * US / 0.25;
      assert_near (host->upto[i], upto);
    }
  }
}

static void
one_long_kernel_hides_the_launches_behind_it (void **state)
{
  (void) state;
  assert_near (chain (1, long_first, 11, 1, FALSE), LAUNCH + 310 * US);
  assert_near (chain (0, long_first, 11, 1, FALSE), 310 * US);
}

static void
a_graph_takes_the_launches_away (void **state)
{
  (void) state;
  assert_near (chain (1, tiny, 10, 1, TRUE), 3e-6 + 10 * 0.1e-6 + 10 * US);
  assert_near (chain (0, tiny, 10, 1, TRUE), 10 * US);
}

/* While the device runs one step, the host already issues the next one. So the predicted step time
 * is the time that one more step adds to many steps (`step`). A single step may take longer
 * (`alone`), because its first launches overlap with no kernel. */
static void
the_next_step_is_issued_while_this_one_runs (void **state)
{
  const struct {
    const uint32_t *microseconds;
    uint32_t n;
    double step, alone;
  } cases[] = {
    { tiny, 10, 10 * LAUNCH, 10 * LAUNCH + US },
    { long_first, 11, 310 * US, LAUNCH + 310 * US },
    { long_last, 11, 11 * LAUNCH, 11 * LAUNCH + 30 * US },
    { longer_last, 11, 110 * US, 11 * LAUNCH + 100 * US },
  };

  (void) state;
  for (size_t i = 0; i < G_N_ELEMENTS (cases); i++) {
    const uint32_t *us = cases[i].microseconds;
    double many = chain (1, us, cases[i].n, 24, FALSE),
           fewer = chain (1, us, cases[i].n, 23, FALSE);
    assert_near (chain (1, us, cases[i].n, 1, FALSE), cases[i].alone);
    assert_near (chain (0, us, cases[i].n, 1, FALSE), cases[i].step);
    assert_near (many - fewer, cases[i].step);
  }
}

/* A plan of two pipeline stages. The second stage receives two microbatches, and runs two kernels
 * after each receive. */
static weft_plan *
exchange_plan (const struct weft_job *job)
{
  weft_builder *b[2] = { weft_builder_new (0, 2), weft_builder_new (1, 2) };
  weft_plan *plan;

  for (int i = 0; i < 2; i++) {
    uint32_t made = made_kernel (b[0], 20);
    made_transfer (b[0], WEFT_OP_SEND, 1, 4);
    weft_build_dep (b[0], made);
    uint32_t got = made_transfer (b[1], WEFT_OP_RECV, -1, 4);
    made_kernel (b[1], 10);
    weft_build_dep (b[1], got);
    made_kernel (b[1], 1);
  }
  plan = made_plan (job, weft_mesh_make (1, 1, 1, 2), b);
  weft_builder_free (b[0]);
  weft_builder_free (b[1]);
  return plan;
}

static void
communication_has_host_time_of_its_own (void **state)
{
  struct weft_job job = job_of (2, 1);

  (void) state;
  job.stack.host_collective_seconds = 7e-6;
  job.stack.host_p2p_seconds = 3e-6;
  g_autoptr (weft_builder) b = weft_builder_new (0, 1);
  made_collective (b, WEFT_OP_ALL_REDUCE, WEFT_GROUP_DP, 1000);
  g_autoptr (weft_plan) plan = made_plan (&job, weft_mesh_make (1, 1, 2, 1), &b);
  g_autoptr (weft_host) host = weft_host_new (plan, 0, FALSE);
  assert_near (host->launches, LAUNCH + 7 * US);
  job.strategy.batch_p2p_comm = job.strategy.batch_p2p_sync = FALSE;
  g_autoptr (weft_plan) pair = exchange_plan (&job);
  g_autoptr (weft_host) second = weft_host_new (pair, 1, FALSE);
  assert_near (second->upto[0], LAUNCH + 3 * US);
  assert_near (second->upto[1] - second->upto[0], LAUNCH);
}

/* Some software copies the part of each rank on its own, before or after all-gathers of weights
 * and reduce-scatters of gradients (host_rank_seconds). Only these collectives cost host time
 * per rank. */
static void
parts_of_ranks_are_copied_one_by_one (void **state)
{
  static const struct {
    enum weft_op_kind kind;
    enum weft_group_kind group;
    double ranks;
  } row[] = {
    { WEFT_OP_ALL_GATHER, WEFT_GROUP_DP, 4 },
    { WEFT_OP_REDUCE_SCATTER, WEFT_GROUP_DP, 4 },
    { WEFT_OP_ALL_REDUCE, WEFT_GROUP_DP, 0 },
    { WEFT_OP_ALL_GATHER, WEFT_GROUP_TP, 0 },
  };
  struct weft_job job = job_of (8, 1);

  (void) state;
  job.stack.host_rank_seconds = 5e-6;
  for (unsigned i = 0; i < G_N_ELEMENTS (row); i++) {
    g_autoptr (weft_builder) b = weft_builder_new (0, 1);
    made_collective (b, row[i].kind, row[i].group, 1024);
    g_autoptr (weft_plan) plan = made_plan (&job, weft_mesh_make (2, 1, 4, 1), &b);
    g_autoptr (weft_host) host = weft_host_new (plan, 0, FALSE);
    assert_near (host->launches, LAUNCH + row[i].ranks * 5 * US);
  }
}

/* Weights that stay gathered during a step are gathered after the update. The host copies their
 * parts before the first gather of the next step, once for all microbatches. */
static void
small_weights_are_copied_once_a_step (void **state)
{
  static const char words[] = "model=gpt2-nano topology=dgx-h100 gpus=2 distributed_config=fsdp2 "
                              "host_rank_seconds=1us gather_persistent_elements=1e15 "
                              "global_batch_size=%d";

  (void) state;
  for (int micro = 1; micro <= 2; micro++) {
    g_autoptr (weft_plan) plan = weft_test_plan (words, 2 * micro);
    const weft_program *p = plan->role[0];
    g_autoptr (weft_host) with = weft_host_new (plan, 0, FALSE);
    plan->job.stack.host_rank_seconds = 0;
    g_autoptr (weft_host) without = weft_host_new (plan, 0, FALSE);
    uint32_t op = 0;
    while (p->op[op].kind != WEFT_OP_ALL_GATHER)
      op++;
    assert_near (with->upto[op] - without->upto[op], 2 * p->n_param * US);
  }
}

/* Whether an op writes the fp8 codes of a weight, or their transposed copy. */
static gboolean
writes_converted_weight (const weft_program *p, uint32_t op)
{
  for (uint32_t u = p->op[op].uses; u < p->op[op + 1].uses; u++)
    if (p->uses[u].write && p->uses[u].buf != WEFT_NO_BUF) {
      const struct weft_buf *b = &p->buf[weft_buf_owner (p, p->uses[u].buf)];
      if (b->kind == WEFT_BUF_WEIGHTS && b->dtype == WEFT_FP8 && !b->permanent)
        return TRUE;
    }
  return FALSE;
}

/* With fp8_weight_lifetime = 2, conversions of weights take no time and no launch from the second
 * of four microbatches on; with fp8_weight_lifetime = 3, also in the first. All other ops cost what
 * they cost with fp8_weight_lifetime = 1. */
static void
weights_kept_in_fp8_are_converted_in_the_first_microbatch (void **state)
{
  static const char *const recipe[] = { "delayed", "tensorwise", "blockwise", "mxfp8" };

  (void) state;
  for (unsigned i = 0; i < 2 * G_N_ELEMENTS (recipe); i++) {
    int from_micro = i % 2 == 0;
    const char *words = "model=llama-nano topology=dgx-b200 precision=fp8 gpus=1 "
                        "own_kernels=0 global_batch_size=4 fp8_recipe=";
    g_autoptr (weft_plan) again =
        weft_test_plan ("%s%s fp8_weight_lifetime=1", words, recipe[i / 2]);
    g_autoptr (weft_plan) once =
        weft_test_plan ("%s%s fp8_weight_lifetime=%d", words, recipe[i / 2], 3 - from_micro);
    const weft_program *p = again->role[0];
    uint32_t n_omitted = 0;

    for (uint32_t op = 0; op < p->n_op; op++) {
      gboolean omitted = p->op[op].micro >= from_micro && writes_converted_weight (p, op);
      if (p->op[op].kind != WEFT_OP_RELEASE)
        assert_true (once->seconds[0][op] == (omitted ? 0 : again->seconds[0][op]));
      n_omitted += omitted;
    }
    g_autoptr (weft_host) all = weft_host_new (again, 0, FALSE);
    g_autoptr (weft_host) fewer = weft_host_new (once, 0, FALSE);
    assert_true (n_omitted >= 3 * 4);
    assert_true (all->launches - fewer->launches >
                 n_omitted * again->job.stack.launch_seconds * 0.99);
  }
}

/* With batch_p2p_sync, the host waits for each receive, so the next kernel begins one launch time
 * after the data have arrived. Without batch_p2p_sync, the next kernel begins at once. */
static void
batch_p2p_sync_shows_a_launch_after_each_exchange (void **state)
{
  struct weft_job job = job_of (2, 1);

  (void) state;
  job.strategy.batch_p2p_comm = job.strategy.batch_p2p_sync = TRUE;
  for (int waits = 0; waits < 2; waits++)
    for (size_t m = 0; m < G_N_ELEMENTS (machines); m++) {
      job.stack.host_waits = waits;
      g_autoptr (weft_plan) plan = exchange_plan (&job);
      g_autoptr (weft_timeline) t = made_run_with (machines[m], plan, "");
      for (uint32_t recv = 0; recv < 6; recv += 3) {
        assert_near (t->begin[1][recv + 1], t->end[1][recv] + waits * LAUNCH);
        assert_near (t->begin[1][recv + 2], t->end[1][recv + 1]);
      }
    }
  job.strategy.batch_p2p_sync = FALSE;
  g_autoptr (weft_plan) plan = exchange_plan (&job);
  g_autoptr (weft_timeline) t = made_run_with (machines[0], plan, "");
  assert_near (t->begin[1][1], t->end[1][0]);
}

/* A plan with ten kernels, an op whose result the host reads (`reads`: a copy of a scalar, a timer
 * or the clip factor of the gradient norm), and ten more kernels. */
static weft_plan *
reading_plan (const struct weft_job *job, enum weft_op_kind reads)
{
  g_autoptr (weft_builder) b = weft_builder_new (0, 1);
  uint32_t last = WEFT_NO_OP;

  for (int i = 0; i < 10; i++)
    last = made_kernel (b, 50);
  if (reads == WEFT_OP_COPY_OUT) {
    uint32_t copy = made_copy (b, WEFT_OP_COPY_OUT, 4);
    weft_build_dep (b, last);
    made_kernel (b, 1);
    weft_build_dep (b, copy);
  } else {
    struct weft_op row = made_row (b, reads, "before");
    struct weft_shape shape = { .dtype = WEFT_FP32, .out_dtype = WEFT_FP32 };
    weft_build_op (b, &row, &shape);
    made_kernel (b, 1);
  }
  for (int i = 0; i < 9; i++)
    made_kernel (b, 1);
  return made_plan (job, weft_mesh_make (1, 1, 1, 1), &b);
}

static void
what_the_host_reads_stops_it (void **state)
{
  static const enum weft_op_kind kinds[] = { WEFT_OP_COPY_OUT, WEFT_OP_TIMER, WEFT_OP_CLIP };
  struct weft_job job = job_of (1, 1);

  (void) state;
  for (size_t i = 0; i < G_N_ELEMENTS (kinds); i++)
    for (int waits = 0; waits < 2; waits++) {
      job.stack.host_waits = kinds[i] == WEFT_OP_CLIP ? !waits : waits;
      job.stack.norm_waits = kinds[i] == WEFT_OP_CLIP ? waits : !waits;
      g_autoptr (weft_plan) plan = reading_plan (&job, kinds[i]);
      double read = LAUNCH + 500 * US + plan->seconds[0][10];
      assert_near (seconds_of (plan, FALSE), read + (waits ? 10 * LAUNCH + US : 10 * US));
    }
}

static gboolean
waits_for (const weft_host *host, uint32_t op, uint32_t awaited)
{
  const struct weft_launch_segment *s = &host->segment[host->segment_of[op]];

  for (uint32_t i = s->awaited; i < s[1].awaited; i++)
    if (host->awaited[i] == awaited)
      return TRUE;
  return FALSE;
}

/* The device counts the tokens of each expert. The host must read these counts before it issues
 * the first exchange of a layer's forward pass, so the step cannot be one CUDA graph. With
 * padding to the expert capacity, sizes are fixed, and the host reads no counts. */
static void
counts_of_experts_stop_all_hosts (void **state)
{
#define EXPERTS                                                                                    \
  "model=mixtral-nano topology=dgx-h100 gpus=2 global_batch_size=2 reduction_order=fast "
  static const char *const jobs[] = {
    EXPERTS "expert_model_parallel_size=2",
    EXPERTS "tensor_model_parallel_size=2 sequence_parallel=true",
  };
  const char *const pad = "moe_expert_capacity_factor=1.5 moe_pad_expert_input_to_capacity=true";

  (void) state;
  for (size_t i = 0; i < G_N_ELEMENTS (jobs); i++) {
    g_autoptr (weft_plan) plan = weft_test_plan ("%s", jobs[i]),
                          padded = weft_test_plan ("%s %s", jobs[i], pad);
    const weft_program *p = plan->role[0];
    uint64_t layers = 0;
    g_autoptr (weft_host) host = weft_host_new (plan, 0, FALSE);
    assert_non_null (host);
    for (uint32_t op = 0, copy = WEFT_NO_OP; op < p->n_op; op++) {
      enum weft_op_kind kind = p->op[op].kind;
      if (kind == WEFT_OP_COPY_OUT && p->op[op].phase == WEFT_PHASE_FORWARD)
        copy = op;
      if (kind == weft_op_even (kind) || copy == WEFT_NO_OP)
        continue;
      /* The exchange of expert rows waits for the copy of the counts to the host. The kernel before
       * the exchange does not wait. */
      assert_true (waits_for (host, op, copy) && !waits_for (host, op - 1, copy));
      copy = WEFT_NO_OP;
      layers++;
    }
    assert_int_equal (layers, plan->job.model.num_layers * weft_job_microbatches (&plan->job));
    assert_int_not_equal (weft_host_reads (p), WEFT_NO_OP);
    assert_int_equal (weft_host_reads (padded->role[0]), WEFT_NO_OP);
  }
}

/* expert_clamp_waits: the host waits for the device before each activation of experts, in forward
 * and recomputation, only if experts are priced as those of GPT-OSS. */
static void
activations_of_gpt_oss_wait_for_the_device (void **state)
{
  (void) state;
  for (int priced = 0; priced < 2; priced++) {
    g_autoptr (weft_plan) plan =
        weft_test_plan (EXPERTS "expert_clamp_waits=1 launch_seconds=1us norm_waits=0 "
                                "experts_priced_as_gpt_oss=%s",
                        priced ? "true" : "false");
    const weft_program *p = plan->role[0];
    g_autoptr (weft_host) host = weft_host_new (plan, 0, FALSE);
    uint64_t waits = 0;
    for (uint32_t op = 1; host && op < p->n_op; op++)
      waits += p->op[op].kind == WEFT_OP_MOE_ACT && waits_for (host, op, op - 1);
    assert_int_equal (waits, priced ? plan->job.model.num_layers *
                                          (uint64_t) weft_job_microbatches (&plan->job)
                                    : 0);
  }
}

/* gather_waits: before an all-gather of sharded weights, the host waits until all earlier ops have
 * ended. For weights that are not sharded the host does not wait. */
static void
gathers_of_sharded_weights_wait_for_the_device (void **state)
{
#define NANO "model=gpt2-nano topology=dgx-h100 gpus=2 "
  static const struct {
    const char *job;
    gboolean waits;
  } row[] = {
    { NANO "distributed_config=fsdp2", TRUE },
    { NANO "use_distributed_optimizer=true overlap_param_gather=true overlap_grad_reduce=true",
      FALSE },
  };

  (void) state;
  for (size_t i = 0; i < G_N_ELEMENTS (row); i++)
    for (int waits = 0; waits < 2; waits++) {
      g_autoptr (weft_plan) plan = weft_test_plan ("%s", row[i].job);
      const weft_program *p = plan->role[0];
      uint32_t kernel = WEFT_NO_OP, n = 0;
      plan->job.stack.gather_waits = waits;
      g_autoptr (weft_host) host = weft_host_new (plan, 0, FALSE);
      assert_non_null (host);
      for (uint32_t op = 0; op < p->n_op; op++) {
        if (p->op[op].lane == WEFT_LANE_GPU)
          kernel = op;
        if (p->op[op].kind != WEFT_OP_ALL_GATHER || kernel == WEFT_NO_OP)
          continue;
        assert_int_equal (waits_for (host, op, kernel), row[i].waits && waits);
        kernel = WEFT_NO_OP;
        n++;
      }
      assert_true (n > 0);
      g_autoptr (weft_timeline) t = made_run_with (machines[0], plan, "");
      assert_true (t->seconds > 0);
    }
}

/* The host waits for the gradient norm, and only then issues the optimizer update, while the device
 * is idle. While the device runs the update of 100 us, the host issues the ten 1 us kernels of the
 * next step. So at the end of the step the host is ahead by the duration of the update minus its
 * launch time. */
static void
a_host_that_waits_runs_ahead_of_what_comes_behind (void **state)
{
  struct weft_job job = job_of (1, 0);
  g_autoptr (weft_builder) b = weft_builder_new (0, 1);

  (void) state;
  for (int i = 0; i < 10; i++)
    made_kernel (b, 1);
  struct weft_op row = made_row (b, WEFT_OP_CLIP, "clip");
  struct weft_shape shape = { .dtype = WEFT_FP32, .out_dtype = WEFT_FP32 };
  weft_build_op (b, &row, &shape);
  made_kernel (b, 100);
  job.stack.norm_waits = 1;
  g_autoptr (weft_plan) plan = made_plan (&job, weft_mesh_make (1, 1, 1, 1), &b);
  assert_near (seconds_of (plan, FALSE), 110 * US + plan->seconds[0][10] + LAUNCH);
}

static void
a_report_says_what_waits_for_launches (void **state)
{
  struct weft_job job = job_of (1, 1);
  g_autoptr (weft_plan) plan = chain_plan (&job, tiny, 10, 1);

  (void) state;
  for (size_t m = 0; m < G_N_ELEMENTS (machines); m++) {
    g_autoptr (weft_timeline) t = made_run_with (machines[m], plan, "");
    g_autoptr (weft_report) r = weft_report_new (plan, t);
    assert_near (r->overlap.launch_wait_s, 10 * LAUNCH - 9 * US);
  }
}

/* ------------------------------------------------------------------ random jobs */

enum { N_JOB = 60 };

static weft_plan *
draw (GRand *rand)
{
  struct weft_job job;

  for (;;) {
    g_autofree char *words = weft_random_job (rand);
    if (weft_test_job (words, &job, NULL))
      return weft_test_plan ("%s", words);
  }
}

/* Runs a plan on an executor, with `launch` seconds per kernel launch. Returns the timeline. */
static weft_timeline *
priced (const struct weft_exec_ops *machine, weft_plan *plan, double launch, gboolean unfolded)
{
  plan->job.stack.launch_seconds = launch;
  return made_run_with (machine, plan, unfolded ? "unfolded" : "");
}

static void
launches_make_no_job_quicker (void **state)
{
  GRand *rand = g_rand_new_with_seed (20261122);
  uint32_t slower = 0;

  (void) state;
  for (int i = 0; i < N_JOB; i++) {
    g_autoptr (weft_plan) plan = draw (rand);
    plan->job.stack.step_waits = i % 3 == 0;
    plan->job.stack.host_waits = plan->job.stack.norm_waits = i % 2;
    for (size_t m = 0; m < G_N_ELEMENTS (machines); m++) {
      g_autoptr (weft_timeline) none = priced (machines[m], plan, 0, FALSE),
                                some = priced (machines[m], plan, 2e-6, FALSE),
                                more = priced (machines[m], plan, 40e-6, FALSE),
                                whole = priced (machines[m], plan, 40e-6, m || i % 4 == 0);
      assert_true (some->seconds >= none->seconds * (1 - 1e-12));
      assert_true (more->seconds >= some->seconds * (1 - 1e-12));
      assert_true (fabs (whole->seconds - more->seconds) <= 1e-9 * more->seconds);
      slower += more->seconds > none->seconds;
    }
    g_autoptr (weft_timeline) sim = priced (machines[0], plan, 40e-6, FALSE),
                              clock = priced (machines[1], plan, 40e-6, FALSE);
    assert_true (clock->seconds <= sim->seconds * (1 + 1e-9));
  }
  assert_true (slower > N_JOB);
  g_rand_free (rand);
}

static const struct CMUnitTest tests[] = {
  cmocka_unit_test (weights_kept_in_fp8_are_converted_in_the_first_microbatch),
  cmocka_unit_test (a_chain_of_tiny_kernels_costs_their_launches),
  cmocka_unit_test (what_was_measured_stands_in_front_of_the_stack),
  cmocka_unit_test (the_framework_takes_time_around_each_launch),
  cmocka_unit_test (communication_has_host_time_of_its_own),
  cmocka_unit_test (parts_of_ranks_are_copied_one_by_one),
  cmocka_unit_test (small_weights_are_copied_once_a_step),
  cmocka_unit_test (one_long_kernel_hides_the_launches_behind_it),
  cmocka_unit_test (a_graph_takes_the_launches_away),
  cmocka_unit_test (the_next_step_is_issued_while_this_one_runs),
  cmocka_unit_test (batch_p2p_sync_shows_a_launch_after_each_exchange),
  cmocka_unit_test (what_the_host_reads_stops_it),
  cmocka_unit_test (counts_of_experts_stop_all_hosts),
  cmocka_unit_test (activations_of_gpt_oss_wait_for_the_device),
  cmocka_unit_test (gathers_of_sharded_weights_wait_for_the_device),
  cmocka_unit_test (a_host_that_waits_runs_ahead_of_what_comes_behind),
  cmocka_unit_test (a_report_says_what_waits_for_launches),
  cmocka_unit_test (launches_make_no_job_quicker),
};

WEFT_TESTS (tests)
