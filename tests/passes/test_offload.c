/* Activations and optimizer state in host memory: when copies start and how long they take, when
 * memory is freed, and that a missing dependency is detected. */
#include "core/plan/check.h"
#include "tests/made/made.h"
#include "tests/made/mutant.h"
#include "tests/runner/runner.h"

enum { LAYERS = 6 };

#define TINY                                                                                       \
  "--num-layers", "6", "--hidden-size", "256", "--num-attention-heads", "4", "--vocab-size",       \
      "50000", "--seq-length", "512", "--precision", "bf16", "--topology", "dgx-h100",             \
      "--global-batch-size"

/* A job of one microbatch per GPU. Without copies, kernels follow each other without gaps, so a
 * step takes the sum of the kernel times. */
static struct weft_job
tiny_job (uint32_t gpus, uint32_t batch)
{
  g_autofree char *n = g_strdup_printf ("%u", gpus), *sequences = g_strdup_printf ("%u", batch);
  const char *flags[] = { TINY, sequences, "--gpus", n, NULL };
  struct weft_job job;

  made_real_job (&job, flags);
  job.stack.kernel_gap = job.stack.launch_seconds = 0;
  /* Without fused kernels, the kernels of all layers take equally long. */
  job.stack.fused_add_norm = job.stack.fused_gelu = 0;
  return job;
}

static struct weft_job
offload_job (uint32_t n, gboolean windows)
{
  struct weft_job job = tiny_job (1, 1);

  job.strategy.cpu_offloading = TRUE;
  job.strategy.cpu_offloading_num_layers = n;
  job.strategy.cpu_offloading_double_buffering = windows;
  return job;
}

static double
seconds_of (const struct weft_job *job)
{
  g_autoptr (weft_plan) plan = made_real_plan (job);
  g_autoptr (weft_timeline) t = made_run (plan);
  return t->seconds;
}

/* Step time of the job with cpu_offloading switched off, in seconds. */
static double
seconds_without (struct weft_job job)
{
  job.strategy.cpu_offloading = FALSE;
  job.strategy.cpu_offloading_num_layers = 0;
  return seconds_of (&job);
}

/* ------------------------------------------------------------------ activations */

/* Bytes that one layer copies and seconds that its kernels take. */
struct layer {
  /* bytes copied in one direction; kernel seconds of the forward and of the backward pass */
  double bytes, forward, backward;
  /* seconds of the layer's backward pass from the first use of the tensor that is fetched last */
  double tail;
};

static uint32_t
first_use (const weft_program *p, uint32_t op, uint32_t buf)
{
  for (op++; op < p->n_op; op++)
    for (uint32_t u = p->op[op].uses; u < p->op[op + 1].uses; u++)
      if (p->uses[u].buf == buf)
        return op;
  fail_msg ("nobody uses buffer %u", buf);
  return 0;
}

static struct layer
layer_of (const weft_plan *plan)
{
  const weft_program *p = plan->role[0];
  struct layer layer = { 0 };
  uint32_t last = WEFT_NO_OP;

  for (uint32_t op = 0; op < p->n_op; op++) {
    const struct weft_op *row = &p->op[op];
    if (row->layer != 0)
      continue;
    if (row->kind == WEFT_OP_FROM_HOST)
      last = p->uses[row->uses + 1].buf;
    if (row->kind == WEFT_OP_TO_HOST)
      layer.bytes += weft_op_bytes (p, op);
    if (row->lane == WEFT_LANE_GPU)
      *(row->phase == WEFT_PHASE_FORWARD ? &layer.forward : &layer.backward) +=
          plan->seconds[0][op];
  }
  uint32_t use = first_use (p, first_use (p, 0, last), last);
  for (uint32_t op = use; op < p->n_op && p->op[op].layer == 0; op++)
    layer.tail += p->op[op].lane == WEFT_LANE_GPU ? plan->seconds[0][op] : 0;
  return layer;
}

static void
copies_are_hidden_while_they_take_no_longer_than_all_layers_but_two (void **state)
{
  (void) state;
  for (uint32_t n = 1; n <= LAYERS - 2; n++) {
    struct weft_job job = offload_job (n, FALSE);
    job.cluster.f.node_host_bandwidth = 1e18;
    g_autoptr (weft_plan) plan = made_real_plan (&job);
    struct layer layer = layer_of (plan);
    double room = (LAYERS - 2) * fmin (layer.forward, layer.backward);
    job.cluster.f.gpu_host_link = n * layer.bytes / room;
    assert_near (seconds_of (&job), seconds_without (job));
    job.cluster.f.gpu_host_link *= 0.99;
    assert_true (seconds_of (&job) > seconds_without (job) * (1 + 1e-6));
  }
}

/* Returns the time of copies that no kernel overlaps with, if the host link is slow. Forward ends
 * with the last copy. Backward waits until the last tensor of the first layer has been fetched;
 * then only the rest of this layer's backward pass remains. */
static double
exposed (const struct layer *layer, uint32_t n, double rate)
{
  double copies = n * layer->bytes / rate;
  double forward = copies - (LAYERS - 2) * layer->forward;
  double backward = layer->backward + copies + layer->tail - LAYERS * layer->backward;

  return forward + backward;
}

static void
slow_copies_are_waited_for_as_long_as_the_formula_says (void **state)
{
  (void) state;
  for (uint32_t n = 1; n <= LAYERS - 2; n++) {
    struct weft_job job = offload_job (n, FALSE);
    job.cluster.f.node_host_bandwidth = 1e18;
    g_autoptr (weft_plan) plan = made_real_plan (&job);
    struct layer layer = layer_of (plan);
    double rate = job.cluster.f.gpu_host_link = layer.bytes / (8 * layer.backward);
    assert_near (seconds_of (&job), seconds_without (job) + exposed (&layer, n, rate));
  }
}

/* Two GPUs share the PCIe link to the host, or the bandwidth of the host memory. Each GPU then has
 * half of it. */
static void
gpus_share_the_way_to_the_host (void **state)
{
  (void) state;
  for (int shares_memory = 0; shares_memory < 2; shares_memory++) {
    struct weft_job job = tiny_job (2, 2);
    job.strategy.cpu_offloading = TRUE;
    job.strategy.cpu_offloading_num_layers = 3;
    g_autoptr (weft_plan) plan = made_real_plan (&job);
    struct layer layer = layer_of (plan);
    double rate = layer.bytes / (8 * layer.backward);
    job.cluster.f.gpu_host_link = shares_memory ? 1e18 : 2 * rate;
    job.cluster.f.node_gpus_per_switch = shares_memory ? 1 : 2;
    job.cluster.f.node_host_bandwidth = shares_memory ? 2 * rate : 1e18;
    assert_near (seconds_of (&job), seconds_without (job) + exposed (&layer, 3, rate));
  }
}

/* Returns the first or the last kernel of a layer in a phase. Releases of memory do not count as
 * kernels. */
static uint32_t
kernel_at (const weft_program *p, uint32_t layer, enum weft_phase phase, gboolean last)
{
  uint32_t found = WEFT_NO_OP;

  for (uint32_t op = 0; op < p->n_op; op++) {
    const struct weft_op *row = &p->op[op];
    if (row->lane != WEFT_LANE_GPU || row->layer != layer || row->phase != phase ||
        row->kind == WEFT_OP_RELEASE)
      continue;
    if (found == WEFT_NO_OP || last)
      found = op;
  }
  assert_true (found != WEFT_NO_OP);
  return found;
}

static gboolean
is_after (const weft_program *p, const uint32_t *before, uint32_t op, uint32_t layer,
          enum weft_phase phase, gboolean last)
{
  return weft_ordered (p, before, kernel_at (p, layer, phase, last), op);
}

/* Asserts that an op waits for all kernels of layer `done` in a phase, and for none of layer
 * `next`. */
static void
assert_starts_between (const weft_program *p, uint32_t op, enum weft_phase phase, uint32_t done,
                       uint32_t next)
{
  g_autofree uint32_t *before = weft_program_order (p);

  assert_true (is_after (p, before, op, done, phase, TRUE));
  if (next < LAYERS)
    assert_false (is_after (p, before, op, next, phase, FALSE));
}

static void
copies_start_and_memory_is_free_where_transformer_engine_says (void **state)
{
  (void) state;
  for (uint32_t n = 1; n < LAYERS; n++) {
    struct weft_job job = offload_job (n, FALSE);
    g_autoptr (weft_plan) plan = made_real_plan (&job);
    const weft_program *p = plan->role[0];
    uint32_t seen = 0;
    for (uint32_t op = 0; op < p->n_op; op++) {
      const struct weft_op *row = &p->op[op];
      uint32_t i = row->layer;
      if (row->kind == WEFT_OP_TO_HOST)
        assert_starts_between (p, op, WEFT_PHASE_FORWARD, i, i + 1);
      else if (row->kind == WEFT_OP_FROM_HOST)
        assert_starts_between (p, op, WEFT_PHASE_BACKWARD, LAYERS - n + i, LAYERS - 1 - n + i);
      else if (row->kind == WEFT_OP_RELEASE && row->phase == WEFT_PHASE_FORWARD)
        assert_starts_between (p, op, WEFT_PHASE_FORWARD, LAYERS - n + i - 1, LAYERS - n + i);
      else if (row->kind == WEFT_OP_RELEASE)
        assert_starts_between (p, op, WEFT_PHASE_BACKWARD, i, i - 1);
      else
        continue;
      seen++;
    }
    assert_true (seen >= 4 * 9 * n);
  }
}

static void
windows_end_where_the_map_says (void **state)
{
  static const struct {
    uint32_t n, end[LAYERS];
  } maps[] = { { 1, { 5 } }, { 2, { 2, 5 } }, { 4, { 1, 3, 4, 5 } }, { 5, { 1, 2, 3, 4, 5 } } };

  (void) state;
  for (size_t m = 0; m < G_N_ELEMENTS (maps); m++) {
    struct weft_job job = offload_job (maps[m].n, TRUE);
    g_autoptr (weft_plan) plan = made_real_plan (&job);
    const weft_program *p = plan->role[0];
    uint64_t standing = plan->memory[0].permanent[WEFT_POOL_DEVICE][WEFT_BUF_ACTIVATIONS];
    double a = layer_of (plan).bytes;
    assert_true (standing == MIN (2, maps[m].n) * a);
    for (uint32_t op = 0; op < p->n_op; op++) {
      const struct weft_op *row = &p->op[op];
      uint32_t i = row->layer, end = i < maps[m].n ? maps[m].end[i] : 0;
      if (row->kind == WEFT_OP_TO_HOST)
        assert_starts_between (p, op, WEFT_PHASE_FORWARD, i ? maps[m].end[i - 1] : 0,
                               i ? maps[m].end[i - 1] + 1 : 1);
      if (row->kind == WEFT_OP_RELEASE)
        assert_starts_between (p, op, WEFT_PHASE_FORWARD, end, end + 1);
      if (row->kind == WEFT_OP_FROM_HOST && i + 2 < maps[m].n)
        end = MIN (end, i + 1);
      if (row->kind == WEFT_OP_FROM_HOST && end + 1 < LAYERS)
        assert_starts_between (p, op, WEFT_PHASE_BACKWARD, end + 1, end);
    }
  }
}

static void
the_peak_is_lower_by_every_layer_on_the_host (void **state)
{
  struct weft_job job = tiny_job (1, 1);
  g_autoptr (weft_plan) whole = made_real_plan (&job);

  (void) state;
  for (uint32_t n = 1; n < LAYERS; n++) {
    job = offload_job (n, FALSE);
    g_autoptr (weft_plan) plan = made_real_plan (&job);
    const struct weft_memory *m = &plan->memory[0];
    uint64_t bytes = (uint64_t) layer_of (plan).bytes;
    assert_int_equal (whole->memory[0].live[WEFT_POOL_DEVICE] - m->live[WEFT_POOL_DEVICE],
                      n * bytes);
    assert_int_equal (m->live[WEFT_POOL_HOST], n * bytes);
    assert_int_equal (m->planned[WEFT_POOL_HOST], n * bytes);
    assert_true (m->planned[WEFT_POOL_DEVICE] < 1.02 * m->live[WEFT_POOL_DEVICE]);
  }
}

/* ------------------------------------------------------------------- optimizer */

static struct weft_job
optimizer_job (uint32_t gpus, double fraction, gboolean overlaps)
{
  struct weft_job job = tiny_job (gpus, gpus);

  job.strategy.optimizer_cpu_offload = TRUE;
  job.strategy.optimizer_offload_fraction = fraction;
  job.strategy.overlap_cpu_optimizer_d2h_h2d = overlaps;
  return job;
}

static uint64_t
permanent (const weft_plan *plan, enum weft_pool pool, enum weft_buf_kind kind)
{
  return plan->memory[0].permanent[pool][kind];
}

static void
the_host_has_its_fraction_of_the_optimizer (void **state)
{
  static const double fractions[] = { 0, 0.25, 0.5, 1 };

  (void) state;
  for (int sharded = 0; sharded < 2; sharded++)
    for (size_t f = 0; f < G_N_ELEMENTS (fractions); f++) {
      struct weft_job job = optimizer_job (4, fractions[f], f % 2);
      job.strategy.use_distributed_optimizer = sharded;
      job.strategy.grad_reduce_in_fp32 = TRUE;
      g_autoptr (weft_plan) plan = made_real_plan (&job);
      uint64_t n = permanent (plan, WEFT_POOL_DEVICE, WEFT_BUF_WEIGHTS) / 2 / (sharded ? 4 : 1);
      uint64_t host = (uint64_t) llround (n * fractions[f]);
      assert_int_equal (permanent (plan, WEFT_POOL_DEVICE, WEFT_BUF_OPTIMIZER), 12 * (n - host));
      assert_int_equal (permanent (plan, WEFT_POOL_HOST, WEFT_BUF_OPTIMIZER), 12 * host);
      assert_int_equal (permanent (plan, WEFT_POOL_HOST, WEFT_BUF_GRADIENTS), 4 * host);
    }
}

static double
sum_of (const weft_plan *plan, enum weft_op_kind kind, enum weft_lane lane)
{
  const weft_program *p = plan->role[0];
  double sum = 0;

  for (uint32_t op = 0; op < p->n_op; op++)
    if (p->op[op].kind == kind && p->op[op].lane == lane)
      sum += plan->seconds[0][op];
  return sum;
}

/* Without overlap_cpu_optimizer_d2h_h2d, the update on the host has three parts in sequence: copy
 * of the gradients, Adam (28 bytes per element), copy of the weights. The copies of loss and norm
 * (8 bytes) run during Adam and share the host memory bandwidth. */
static void
an_update_on_the_host_takes_two_copies_and_adam (void **state)
{
  struct weft_job gpu = tiny_job (1, 1), job = optimizer_job (1, 1, FALSE);

  (void) state;
  gpu.train.precision = job.train.precision = WEFT_FP32;
  g_autoptr (weft_plan) before = made_real_plan (&gpu), plan = made_real_plan (&job);
  g_autoptr (weft_timeline) t = made_run (plan);
  double n = permanent (plan, WEFT_POOL_DEVICE, WEFT_BUF_WEIGHTS) / 4.0;
  double link = job.cluster.f.gpu_host_link, memory = job.cluster.f.node_host_bandwidth;
  double update = (4 * n + 4) / link + (28 * n + 8) / memory + 4 * n / link;
  assert_near (t->seconds,
               seconds_of (&gpu) - sum_of (before, WEFT_OP_ADAM, WEFT_LANE_GPU) + update);
}

/* With overlap_cpu_optimizer_d2h_h2d, the update takes as long as Adam on the host or the copies,
 * whichever is slower, plus one piece of the faster. Here the host link is fast, so Adam is
 * slower. */
static void
parts_that_overlap_take_as_long_as_the_longest (void **state)
{
  struct weft_job gpu = tiny_job (1, 1), job = optimizer_job (1, 1, TRUE);

  (void) state;
  gpu.train.precision = job.train.precision = WEFT_FP32;
  job.cluster.f.gpu_host_link = job.cluster.f.node_host_bandwidth / 4;
  g_autoptr (weft_plan) before = made_real_plan (&gpu), plan = made_real_plan (&job);
  g_autoptr (weft_timeline) t = made_run_with (&weft_exec_clock, plan, "");
  double base = seconds_of (&gpu) - sum_of (before, WEFT_OP_ADAM, WEFT_LANE_GPU);
  double adam = sum_of (plan, WEFT_OP_ADAM, WEFT_LANE_HOST),
         back = sum_of (plan, WEFT_OP_FROM_HOST, WEFT_LANE_H2D);
  assert_true (t->seconds - base < 1.1 * adam + 0.1 * back);
  assert_true (t->seconds - base > adam);
}

/* With pin_cpu_grads, the update of a piece waits only for the copy of its own gradients; without,
 * for all gradients. Without pin_cpu_params, the update also waits until the weights of all earlier
 * pieces have been copied back. */
static void
memory_that_is_not_page_locked_blocks (void **state)
{
  (void) state;
  for (int pinned = 0; pinned < 4; pinned++) {
    struct weft_job job = optimizer_job (1, 1, TRUE);
    job.strategy.pin_cpu_grads = pinned & 1;
    job.strategy.pin_cpu_params = pinned >> 1;
    g_autoptr (weft_plan) plan = made_real_plan (&job);
    const weft_program *p = plan->role[0];
    g_autofree uint32_t *before = weft_program_order (p);
    uint32_t n_out = 0, n_back = 0, n = 0;
    for (uint32_t op = 0; op < p->n_op; op++) {
      n_out += p->op[op].kind == WEFT_OP_TO_HOST;
      n_back += p->op[op].kind == WEFT_OP_FROM_HOST;
    }
    assert_true (n_back > 4);
    for (uint32_t i = 0; i < p->lane_n[WEFT_LANE_HOST]; i++) {
      uint32_t op = p->lane_ops[WEFT_LANE_HOST][i];
      if (p->op[op].kind != WEFT_OP_ADAM)
        continue;
      const uint32_t *known = &before[(size_t) op * WEFT_N_LANE];
      uint32_t out = known[WEFT_LANE_D2H], back = known[WEFT_LANE_H2D];
      assert_true (pinned & 1 ? out < n_out || n + 1 == n_back : out >= n_out);
      if (pinned == 1)
        assert_true (back >= n);
      n++;
    }
    assert_int_equal (n, n_back);
  }
}

/* ----------------------------------------------------------------------- proofs */

/* Mutants that lack one dependency on a copy. A kernel that does not wait for the copy that fetches
 * its operand must be refused. A release of memory that does not wait for the copy out of this
 * memory must be refused if another buffer uses the memory afterwards. */
static void
whoever_does_not_wait_for_a_copy_is_found (void **state)
{
  struct weft_job job = offload_job (3, FALSE);
  uint32_t reuse = 0, use = 0;

  (void) state;
  job.strategy.optimizer_cpu_offload = TRUE;
  job.stack.fused_add_norm = job.stack.fused_gelu = 1;
  g_autoptr (weft_plan) plan = made_real_plan (&job);
  const weft_program *p = plan->role[0];
  for (uint32_t op = 0; op < p->n_op; op++)
    for (uint32_t d = p->op[op].deps; d < p->op[op + 1].deps; d++) {
      enum weft_op_kind dep = p->op[p->deps[d]].kind;
      gboolean release = p->op[op].kind == WEFT_OP_RELEASE && dep == WEFT_OP_TO_HOST;
      gboolean reads = dep == WEFT_OP_FROM_HOST && p->op[op].lane == WEFT_LANE_GPU;
      if (!release && !reads)
        continue;
      g_autoptr (weft_program) q = weft_mutant_without_edge (p, op, d);
      gboolean proved = weft_check_program (q, NULL) && weft_check_addresses (q, NULL);
      assert_true (release || !proved);
      reuse += release && !proved;
      use += reads;
    }
  /* At least two of the three removed waits of a release must be refused. The third release may
   * free memory that no later buffer uses. */
  assert_true (reuse >= 2);
  assert_true (use >= 3 * 8);
}

/* ------------------------------------------------------------------------ nodes */

static void
host_memory_of_a_node_is_that_of_its_ranks (void **state)
{
  struct weft_job job = optimizer_job (4, 1, FALSE);

  (void) state;
  g_autoptr (weft_plan) plan = made_real_plan (&job);
  uint64_t rank = plan->memory[0].planned[WEFT_POOL_HOST];
  assert_int_equal (weft_plan_host_bytes (plan), 4 * rank);
  assert_true (weft_plan_fits (plan));
  plan->job.cluster.f.node_host_memory = 4 * rank - 1;
  assert_false (weft_plan_host_fits (plan) || weft_plan_fits (plan));
}

static const struct CMUnitTest tests[] = {
  cmocka_unit_test (copies_are_hidden_while_they_take_no_longer_than_all_layers_but_two),
  cmocka_unit_test (slow_copies_are_waited_for_as_long_as_the_formula_says),
  cmocka_unit_test (gpus_share_the_way_to_the_host),
  cmocka_unit_test (copies_start_and_memory_is_free_where_transformer_engine_says),
  cmocka_unit_test (windows_end_where_the_map_says),
  cmocka_unit_test (the_peak_is_lower_by_every_layer_on_the_host),
  cmocka_unit_test (the_host_has_its_fraction_of_the_optimizer),
  cmocka_unit_test (an_update_on_the_host_takes_two_copies_and_adam),
  cmocka_unit_test (parts_that_overlap_take_as_long_as_the_longest),
  cmocka_unit_test (memory_that_is_not_page_locked_blocks),
  cmocka_unit_test (whoever_does_not_wait_for_a_copy_is_found),
  cmocka_unit_test (host_memory_of_a_node_is_that_of_its_ranks),
};

WEFT_TESTS (tests)
