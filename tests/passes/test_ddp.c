/* What the DDP wrapper and the pipeline add to a program: buckets with their sizes and launch
 * points, parameter gathers, the tied embedding, the gradient norm, and the transfers between
 * stages. */
#include "core/program/layout.h"
#include "tests/made/nano.h"
#include "tests/runner/runner.h"

/* Returns the first or the last kernel that uses the weights of a bucket's parameters, or that
 * writes their gradients. */
static uint32_t
kernel_of_bucket (const weft_program *p, uint32_t bucket, gboolean weights, gboolean last)
{
  uint32_t found = WEFT_NO_OP;

  for (uint32_t op = 0; op < p->n_op; op++) {
    if (p->op[op].lane != WEFT_LANE_GPU || p->op[op].phase == WEFT_PHASE_OPTIMIZER)
      continue;
    for (uint32_t u = p->op[op].uses; u < p->op[op + 1].uses; u++)
      for (uint32_t i = 0; i < p->n_param; i++)
        if (p->param[i].bucket == bucket &&
            p->uses[u].buf == (weights ? p->param[i].weight : p->param[i].grad) &&
            (found == WEFT_NO_OP || last))
          found = op;
  }
  assert_true (found != WEFT_NO_OP);
  return found;
}

/* ----------------------------------------------------------------- buckets */

/* The all-reduce of a bucket waits for the kernel that writes the bucket's last gradient, and for
 * no later kernel. Later kernels do not wait for the all-reduce. */
static void
a_bucket_waits_for_its_last_gradient (void **state)
{
  g_autoptr (weft_plan) plan = plan_of (OVERLAP, PLAIN, BATCH ("24"), NULL);
  const weft_program *p = plan->role[0];

  (void) state;
  assert_true (n_buckets (p) >= 4);
  assert_int_equal (count (p, WEFT_OP_ALL_REDUCE, "bucket"), n_buckets (p));
  for (uint32_t k = 0; k < n_buckets (p); k++) {
    uint32_t op = named (p, WEFT_OP_ALL_REDUCE, "bucket", k);
    uint32_t last = kernel_of_bucket (p, k, FALSE, TRUE);
    assert_int_equal (p->op[op].lane, WEFT_LANE_DP);
    assert_int_equal (p->op[op].group, WEFT_GROUP_DP);
    assert_int_equal (p->op[last].micro, 2);
    assert_true (op > last);
    assert_int_equal (kernels_before (p, op), p->pos[last] + 1);
    assert_int_equal (p->pos[op], k);
    uint32_t next = p->lane_ops[WEFT_LANE_GPU][p->pos[last] + 1];
    assert_true (next > op);
    assert_false (comes_after (p, op, next));
  }
}

/* Without average_in_collective, a kernel divides the gradients of a bucket before its
 * all-reduce. */
static void
gradients_are_divided_before_they_are_summed (void **state)
{
  g_autoptr (weft_plan) plan =
      plan_of (OVERLAP, "--gradient-accumulation-fusion", "true", BATCH ("16"), NULL);
  const weft_program *p = plan->role[0];

  (void) state;
  assert_int_equal (count (p, WEFT_OP_SCALE, ""), n_buckets (p));
  for (uint32_t k = 0; k < n_buckets (p); k++) {
    uint32_t op = named (p, WEFT_OP_ALL_REDUCE, "bucket", k);
    uint32_t scale = p->lane_ops[WEFT_LANE_GPU][kernels_before (p, op) - 1];
    assert_int_equal (p->op[op].reduce, WEFT_REDUCE_SUM);
    assert_int_equal (p->op[scale].kind, WEFT_OP_SCALE);
    assert_int_equal (elements (p, scale), elements (p, op));
    assert_int_equal (weft_op_shape (p, scale)->dim[2], 8);
    /* One kernel may complete the gradients of two buckets. The kernels that divide these gradients
     * then follow this kernel. */
    uint32_t before = scale;
    while (p->op[before].kind == WEFT_OP_SCALE)
      before = p->lane_ops[WEFT_LANE_GPU][p->pos[before] - 1];
    assert_int_equal (before, kernel_of_bucket (p, k, FALSE, TRUE));
  }
}

static void
an_averaging_collective_needs_no_division (void **state)
{
  g_autoptr (weft_plan) plan = plan_of (OVERLAP, PLAIN, NULL);
  const weft_program *p = plan->role[0];

  (void) state;
  assert_int_equal (count (p, WEFT_OP_SCALE, ""), 0);
  assert_int_equal (p->op[named (p, WEFT_OP_ALL_REDUCE, "bucket", 0)].reduce, WEFT_REDUCE_AVG);
}

static void
fused_accumulation_adds_no_kernels (void **state)
{
  g_autoptr (weft_plan) fused = plan_of ("--gradient-accumulation-fusion", "true", NULL);
  g_autoptr (weft_plan) apart = plan_of ("--gradient-accumulation-fusion", "false", NULL);
  const weft_program *p = apart->role[0];

  (void) state;
  assert_int_equal (count (fused->role[0], WEFT_OP_GRAD_ADD, ""), 0);
  /* Without gradient_accumulation_fusion, each gradient is added to its buffer by one kernel. The
   * tied embedding needs two kernels: one for the head and one for the look-up. */
  assert_int_equal (count (p, WEFT_OP_GRAD_ADD, ""), p->n_param + 1);
  assert_int_equal (p->n_op, fused->role[0]->n_op + p->n_param + 1);
}

/* Asserts that the bucket collectives have the sizes and offsets that layout.h computes with
 * padding. `rule`: the layout rule of this stage. */
static void
check_sizes (const weft_program *p, enum weft_op_kind kind, struct weft_layout_rule rule)
{
  g_autofree struct weft_layout_param *list = g_new0 (struct weft_layout_param, p->n_param);
  struct weft_layout layout;

  for (uint32_t i = 0; i < p->n_param; i++)
    list[i] =
        (struct weft_layout_param){ p->param[i].rows * p->param[i].columns, p->param[i].tied };
  weft_layout_init (&layout, &rule, list, p->n_param);
  assert_int_equal (count (p, kind, "bucket"), layout.n_bucket);
  for (uint32_t i = 0; i < p->n_param; i++) {
    assert_int_equal (p->param[i].start, layout.place[i].start);
    assert_int_equal (p->param[i].bucket, layout.place[i].bucket);
  }
  for (uint32_t k = 0; k < layout.n_bucket; k++) {
    uint64_t n = layout.bucket[k].end - layout.bucket[k].start;
    assert_int_equal (elements (p, named (p, kind, "bucket", k)), n);
    if (rule.sharded)
      assert_int_equal (n % (rule.high_busbw ? 65536 : 128), 0);
  }
  weft_layout_release (&layout);
}

static void
buckets_have_the_sizes_of_the_layout (void **state)
{
  g_autoptr (weft_plan) plain = plan_of (OVERLAP, NULL);
  g_autoptr (weft_plan) sharded = plan_of (OVERLAP, SHARDED, NULL);
  g_autoptr (weft_plan) padded =
      plan_of (OVERLAP, SHARDED, "--pad-buckets-for-high-nccl-busbw", "true", NULL);

  (void) state;
  check_sizes (plain->role[0], WEFT_OP_ALL_REDUCE,
               (struct weft_layout_rule){ 100000, 8, FALSE, FALSE });
  check_sizes (sharded->role[0], WEFT_OP_REDUCE_SCATTER,
               (struct weft_layout_rule){ 100000, 8, TRUE, FALSE });
  check_sizes (padded->role[0], WEFT_OP_REDUCE_SCATTER,
               (struct weft_layout_rule){ 100000, 8, TRUE, TRUE });
}

static void
later_stages_fill_one_bucket (void **state)
{
  g_autoptr (weft_plan) plan = plan_of (OVERLAP, STAGES ("4"), BATCH ("8"), NULL);

  (void) state;
  assert_true (n_buckets (plan->role[0]) > 1);
  check_sizes (plan->role[0], WEFT_OP_ALL_REDUCE,
               (struct weft_layout_rule){ 100000, 2, FALSE, FALSE });
  for (uint32_t r = 1; r < 4; r++) {
    check_sizes (plan->role[r], WEFT_OP_ALL_REDUCE,
                 (struct weft_layout_rule){ WEFT_BUCKET_INFINITE, 2, FALSE, FALSE });
    assert_int_equal (n_buckets (plan->role[r]), 1);
  }
}

static void
without_overlap_one_collective_follows_the_last_backward (void **state)
{
  g_autoptr (weft_plan) plan =
      plan_of (PLAIN, STAGES ("2"), BATCH ("16"), "--bucket-size", "100000", NULL);

  (void) state;
  for (uint32_t r = 0; r < 2; r++) {
    const weft_program *p = plan->role[r];
    uint32_t op = named (p, WEFT_OP_ALL_REDUCE, "bucket", 0), last = 0;
    assert_int_equal (count (p, WEFT_OP_ALL_REDUCE, "bucket"), 1);
    for (uint32_t i = 0; i < p->n_op; i++)
      if (p->op[i].lane == WEFT_LANE_GPU && p->op[i].phase == WEFT_PHASE_BACKWARD)
        last = i;
    assert_true (comes_after (p, last, op));
    assert_int_equal (kernels_before (p, op), p->pos[last] + 1);
  }
}

static void
one_replica_reduces_nothing (void **state)
{
  g_autoptr (weft_plan) plan = plan_of (OVERLAP, SHARDED, STAGES ("8"), BATCH ("8"), NULL);

  (void) state;
  for (uint32_t r = 0; r < 8; r++)
    assert_int_equal (plan->role[r]->lane_n[WEFT_LANE_DP], 0);
}

/* --------------------------------------------------- distributed optimizer */

static void
a_shard_is_reduced_updated_and_gathered (void **state)
{
  g_autoptr (weft_plan) plan = plan_of (OVERLAP, SHARDED, NULL);
  const weft_program *p = plan->role[0];

  (void) state;
  assert_int_equal (count (p, WEFT_OP_ADAM, ""), n_buckets (p));
  for (uint32_t k = 0; k < n_buckets (p); k++) {
    uint32_t scatter = named (p, WEFT_OP_REDUCE_SCATTER, "bucket", k);
    uint32_t adam = nth (p, WEFT_OP_ADAM, "", k);
    uint32_t gather = named (p, WEFT_OP_ALL_GATHER, "gather", k);
    assert_true (comes_after (p, scatter, adam));
    assert_true (comes_after (p, adam, gather));
    assert_int_equal (elements (p, adam) * 8, elements (p, scatter));
    assert_int_equal (elements (p, gather), elements (p, scatter));
  }
  assert_int_equal (count (p, WEFT_OP_ALL_REDUCE, "bucket"), 0);
}

/* Without overlap_param_gather, all weights are gathered after the optimizer, in the order in which
 * the next forward pass uses them. The last bucket comes first, because it holds the first
 * layers. */
static void
gathers_come_last_bucket_first (void **state)
{
  g_autoptr (weft_plan) plan = plan_of (OVERLAP, SHARDED, NULL);
  const weft_program *p = plan->role[0];
  uint32_t n = n_buckets (p);

  (void) state;
  for (uint32_t k = 0; k + 1 < n; k++)
    assert_true (named (p, WEFT_OP_ALL_GATHER, "gather", k) >
                 named (p, WEFT_OP_ALL_GATHER, "gather", k + 1));
  assert_true (nth (p, WEFT_OP_ALL_GATHER, "", 0) > nth (p, WEFT_OP_ADAM, "", n - 1));
}

/* Returns the lowest bucket that contains a weight of the kernel. Buckets are gathered from the
 * last to the first, so this bucket arrives last. */
static uint32_t
lowest_bucket_used (const weft_program *p, uint32_t op)
{
  uint32_t lowest = G_MAXUINT32;

  for (uint32_t u = p->op[op].uses; u < p->op[op + 1].uses; u++)
    for (uint32_t i = 0; i < p->n_param; i++)
      if (p->uses[u].buf == p->param[i].weight)
        lowest = MIN (lowest, p->param[i].bucket);
  return lowest;
}

/* overlap_param_gather: the first gather is launched before the forward pass. Each next gather, of
 * bucket k - 1, is launched at the first use of bucket k: after the kernels issued so far and
 * before all later ones. A kernel waits only for the gathers of its own weights. */
static void
gathers_are_a_chain_of_first_uses (void **state)
{
  g_autoptr (weft_plan) plan =
      plan_of (OVERLAP, SHARDED, "--overlap-param-gather", "true", BATCH ("24"), NULL);
  const weft_program *p = plan->role[0];
  uint32_t n = n_buckets (p);
  g_autofree uint32_t *before = weft_program_order (p);

  (void) state;
  assert_true (n >= 4);
  assert_int_equal (count (p, WEFT_OP_ALL_GATHER, ""), n);
  for (uint32_t k = n; k-- > 0;) {
    uint32_t gather = named (p, WEFT_OP_ALL_GATHER, "gather", k);
    uint32_t use = kernel_of_bucket (p, k, TRUE, FALSE);
    uint32_t launcher = kernel_of_bucket (p, MIN (k + 1, n - 1), TRUE, FALSE);
    assert_int_equal (p->pos[gather], n - 1 - k);
    assert_true (gather < launcher);
    assert_int_equal (before[gather * WEFT_N_LANE + WEFT_LANE_GPU], p->pos[launcher]);
    assert_int_equal (p->op[use].micro, 0);
    assert_int_equal (before[use * WEFT_N_LANE + WEFT_LANE_DP], n - lowest_bucket_used (p, use));
  }
  uint32_t embed = nth (p, WEFT_OP_EMBED, "", 0);
  assert_true (nth (p, WEFT_OP_ALL_GATHER, "", 0) < embed);
}

/* gathers-ahead = 0: stage 1 launches no gather before it has received its first microbatch.
 * gathers-ahead = 1: stage 1 launches gathers before that. */
static void
a_later_stage_gathers_when_its_first_input_is_there (void **state)
{
  static const char *const ahead[] = { "0", "1" };

  (void) state;
  for (unsigned i = 0; i < G_N_ELEMENTS (ahead); i++) {
    g_autoptr (weft_plan) plan =
        plan_of (OVERLAP, SHARDED, "--overlap-param-gather", "true", "--gathers-ahead", ahead[i],
                 STAGES ("2"), BATCH ("16"), NULL);
    const weft_program *p = plan->role[1];
    uint32_t first = nth (p, WEFT_OP_ALL_GATHER, "", 0);
    assert_int_equal (comes_after (p, nth (p, WEFT_OP_RECV, "recv_forward", 0), first), i == 0);
  }
}

/* ---------------------------------------------------------- tied embedding */

static uint32_t
tied_param (const weft_program *p)
{
  for (uint32_t i = 0; i < p->n_param; i++)
    if (p->param[i].tied)
      return i;
  return WEFT_NO_OP;
}

static uint32_t
embd_reduce (const weft_program *p)
{
  for (uint32_t op = 0; op < p->n_op; op++)
    if (p->op[op].group == WEFT_GROUP_EMBD)
      return op;
  return WEFT_NO_OP;
}

static void
a_tied_embedding_has_a_bucket_of_its_own (void **state)
{
  g_autoptr (weft_plan) plan = plan_of (OVERLAP, SHARDED, STAGES ("4"), BATCH ("8"), NULL);

  (void) state;
  for (uint32_t r = 0; r < 4; r++) {
    const weft_program *p = plan->role[r];
    uint32_t tied = tied_param (p);
    assert_int_equal (tied != WEFT_NO_OP, r == 0 || r == 3);
    for (uint32_t i = 0; tied != WEFT_NO_OP && i < p->n_param; i++)
      assert_true (i == tied || p->param[i].bucket != p->param[tied].bucket);
  }
  const weft_program *p = plan->role[0], *q = plan->role[3];
  uint32_t a = p->param[tied_param (p)].bucket, b = q->param[tied_param (q)].bucket;
  assert_int_equal (elements (p, named (p, WEFT_OP_REDUCE_SCATTER, "bucket", a)),
                    elements (q, named (q, WEFT_OP_REDUCE_SCATTER, "bucket", b)));
}

/* A tied embedding on four stages: the first and the last stage have a copy. The gradients of both
 * copies are summed after the reduction over replicas, and before norm and update. If the optimizer
 * is sharded, the last stage leaves its copy out of the gradient norm. */
static void
the_two_copies_are_added_between_bucket_and_norm (void **state)
{
  g_autoptr (weft_plan) sharded = plan_of (OVERLAP, SHARDED, STAGES ("4"), BATCH ("8"), NULL);
  g_autoptr (weft_plan) plain = plan_of (STAGES ("4"), BATCH ("8"), NULL);
  const weft_plan *const plans[] = { sharded, plain };

  (void) state;
  for (int i = 0; i < 2; i++)
    for (uint32_t r = 0; r < 4; r++) {
      const weft_program *p = plans[i]->role[r];
      uint32_t op = embd_reduce (p), tied = tied_param (p);
      assert_int_equal (op != WEFT_NO_OP, r == 0 || r == 3);
      if (op == WEFT_NO_OP)
        continue;
      uint32_t k = p->param[tied].bucket;
      enum weft_op_kind kind = i == 0 ? WEFT_OP_REDUCE_SCATTER : WEFT_OP_ALL_REDUCE;
      assert_int_equal (elements (p, op), 256 * 64);
      assert_true (comes_after (p, named (p, kind, "bucket", k), op));
      assert_true (comes_after (p, op, nth (p, WEFT_OP_ADAM, "", k)));
      uint32_t norms = count (p, WEFT_OP_GRAD_NORM, "");
      assert_int_equal (norms, n_buckets (p) - (i == 0 && r == 3));
      if (r == 0)
        assert_true (comes_after (p, op, nth (p, WEFT_OP_GRAD_NORM, "", k)));
    }
}

static void
one_stage_adds_nothing (void **state)
{
  g_autoptr (weft_plan) plan = plan_of (OVERLAP, SHARDED, NULL);

  (void) state;
  assert_int_equal (embd_reduce (plan->role[0]), WEFT_NO_OP);
}

/* -------------------------------------------------------------------- norm */

static enum weft_group_kind
norm_group (const weft_program *p)
{
  uint32_t op = nth (p, WEFT_OP_ALL_REDUCE, "grad_norm", 0);

  if (op == WEFT_NO_OP)
    return WEFT_GROUP_NONE;
  assert_int_equal (elements (p, op), 1);
  assert_true (comes_after (p, op, nth (p, WEFT_OP_CLIP, "", 0)));
  assert_true (
      comes_after (p, nth (p, WEFT_OP_GRAD_NORM, "", count (p, WEFT_OP_GRAD_NORM, "") - 1), op));
  return p->op[op].group;
}

/* The ranks over which the gradient norm is summed. With use_distributed_optimizer every rank has
 * another slice of the gradients, so these are all ranks. Without it, replicas have equal
 * gradients, so these are the ranks of one replica. */
static void
the_norm_is_summed_over_those_who_differ (void **state)
{
  g_autoptr (weft_plan) sharded = plan_of (SHARDED, STAGES ("2"), BATCH ("8"), NULL);
  g_autoptr (weft_plan) plain = plan_of (STAGES ("2"), BATCH ("8"), NULL);
  g_autoptr (weft_plan) one_stage = plan_of (NULL);

  (void) state;
  for (uint32_t r = 0; r < 2; r++) {
    assert_int_equal (norm_group (sharded->role[r]), WEFT_GROUP_WORLD);
    assert_int_equal (norm_group (plain->role[r]), WEFT_GROUP_MP);
  }
  assert_int_equal (norm_group (one_stage->role[0]), WEFT_GROUP_NONE);
}

static void
without_clipping_there_is_no_norm (void **state)
{
  g_autoptr (weft_plan) plan =
      plan_of (SHARDED, STAGES ("2"), BATCH ("8"), "--clip-grad", "0", NULL);

  (void) state;
  for (uint32_t r = 0; r < 2; r++) {
    assert_int_equal (count (plan->role[r], WEFT_OP_GRAD_NORM, ""), 0);
    assert_int_equal (plan->role[r]->lane_n[WEFT_LANE_WORLD], 0);
  }
}

/* --------------------------------------------------------------- exchanges */

/* Lists passes, sends (>) and receives (<) in program order, such as "F0 >F0 <B0 B0"; + connects
 * transfers of one launch. The caller frees the text. */
static char *
story (const weft_program *p)
{
  GString *text = g_string_new (NULL);
  int phase = -1, micro = -1;

  for (uint32_t i = 0; i < p->n_op; i++) {
    const struct weft_op *op = &p->op[i];
    gboolean cell = op->phase == WEFT_PHASE_FORWARD || op->phase == WEFT_PHASE_BACKWARD;
    if (op->micro == WEFT_NO_MICRO || !cell)
      continue;
    const char *space = op->flags & WEFT_OP_GROUPED ? "+" : text->len ? " " : "";
    if (op->lane == WEFT_LANE_PP)
      g_string_append_printf (text, "%s%c%s%u", space, op->kind == WEFT_OP_SEND ? '>' : '<',
                              weft_phase_words[op->phase], op->micro);
    if (op->lane != WEFT_LANE_GPU || (op->phase == phase && op->micro == micro))
      continue;
    phase = op->phase;
    micro = op->micro;
    g_string_append_printf (text, "%s%s%u", space, weft_phase_words[phase], micro);
  }
  return g_string_free (text, FALSE);
}

/* 1F1B with four stages and eight microbatches: sends and receives must be posted in the order of
 * Megatron-Core. */
static void
exchanges_are_posted_in_megatrons_order (void **state)
{
  static const char *const wanted[] = {
    "F0 >F0 F1 >F1 F2 >F2 F3 >F3+<B0 B0 F4 >F4+<B1 B1 F5 >F5+<B2 B2 F6 >F6+<B3 B3 F7 >F7+<B4 B4 "
    "<B5 B5 <B6 B6 <B7 B7",
    "<F0 F0 >F0 <F1 F1 >F1 <F2 F2 >F2+<B0 B0 >B0+<F3 F3 >F3+<B1 B1 >B1+<F4 F4 >F4+<B2 B2 >B2+<F5 "
    "F5 >F5+<B3 B3 >B3+<F6 F6 >F6+<B4 B4 >B4+<F7 F7 >F7+<B5 B5 >B5 <B6 B6 >B6 <B7 B7 >B7",
    "<F0 F0 >F0 <F1 F1 >F1+<B0 B0 >B0+<F2 F2 >F2+<B1 B1 >B1+<F3 F3 >F3+<B2 B2 >B2+<F4 F4 >F4+<B3 "
    "B3 >B3+<F5 F5 >F5+<B4 B4 >B4+<F6 F6 >F6+<B5 B5 >B5+<F7 F7 >F7+<B6 B6 >B6 <B7 B7 >B7",
    "<F0 F0 B0 >B0+<F1 F1 B1 >B1+<F2 F2 B2 >B2+<F3 F3 B3 >B3+<F4 F4 B4 >B4+<F5 F5 B5 >B5+<F6 F6 "
    "B6 >B6+<F7 F7 B7 >B7",
  };
  g_autoptr (weft_plan) plan = plan_of (STAGES ("4"), BATCH ("16"), NULL);

  (void) state;
  for (uint32_t r = 0; r < 4; r++) {
    g_autofree char *found = story (plan->role[r]);
    assert_string_equal (found, wanted[r]);
  }
}

static void
gpipe_sends_all_forwards_before_the_first_gradient (void **state)
{
  static const char *const wanted[] = {
    "F0 >F0 F1 >F1 F2 >F2+<B0 B0 <B1 B1 <B2 B2",
    "<F0 F0 <F1 F1 <F2 F2 B0 >B0 B1 >B1 B2 >B2",
  };
  g_autoptr (weft_plan) plan =
      plan_of (STAGES ("2"), BATCH ("12"), "--pipeline-schedule", "gpipe", NULL);

  (void) state;
  for (uint32_t r = 0; r < 2; r++) {
    g_autofree char *found = story (plan->role[r]);
    assert_string_equal (found, wanted[r]);
  }
}

/* Returns the nearest kernel before (step -1) or after (step 1) a transfer, in program order. */
static uint32_t
kernel_beside (const weft_program *p, uint32_t op, int step)
{
  while (op < p->n_op && p->op[op].lane != WEFT_LANE_GPU)
    op += step;
  assert_true (op < p->n_op);
  return op;
}

static void
an_exchange_waits_for_all_kernels_before_and_those_after_wait_for_it (void **state)
{
  g_autoptr (weft_plan) plan = plan_of (STAGES ("4"), BATCH ("16"), NULL);

  (void) state;
  for (uint32_t r = 0; r < 4; r++) {
    const weft_program *p = plan->role[r];
    g_autofree uint32_t *before = weft_program_order (p);
    for (uint32_t i = 0; i < p->lane_n[WEFT_LANE_PP]; i++) {
      uint32_t op = p->lane_ops[WEFT_LANE_PP][i];
      if (p->op[op].kind == WEFT_OP_ALL_REDUCE)
        continue;
      uint32_t last = kernel_beside (p, op, -1), next = kernel_beside (p, op, 1);
      assert_int_equal (before[op * WEFT_N_LANE + WEFT_LANE_GPU], p->pos[last] + 1);
      assert_true (weft_ordered (p, before, op, next));
    }
  }
}

static void
a_stage_passes_on_one_microbatch_of_activations (void **state)
{
  g_autoptr (weft_plan) plan =
      plan_of (STAGES ("2"), BATCH ("16"), "--micro-batch-size", "2", NULL);
  g_autoptr (weft_plan) wide =
      plan_of (STAGES ("2"), BATCH ("16"), "--pipeline-dtype", "fp32", NULL);
  const weft_program *p = plan->role[0], *q = wide->role[0];

  (void) state;
  assert_int_equal (elements (p, nth (p, WEFT_OP_SEND, "", 0)), 2 * 128 * 64);
  assert_near (weft_op_bytes (p, nth (p, WEFT_OP_SEND, "", 0)), 2 * 128 * 64 * 2);
  assert_near (weft_op_bytes (q, nth (q, WEFT_OP_SEND, "", 0)), 128 * 64 * 4);
}

/* ---------------------------------------------------------- numbers of ops */

static uint32_t
ops_of (const char *stages, uint32_t role, uint32_t batch)
{
  g_autofree char *text = g_strdup_printf ("%u", batch);
  g_autoptr (weft_plan) plan = plan_of (OVERLAP, SHARDED, STAGES (stages), BATCH (text), NULL);

  return plan->role[role]->n_op;
}

/* Each microbatch adds the same number of ops. All other ops run once per step, whatever the number
 * of microbatches. */
static void
every_microbatch_adds_as_many_ops (void **state)
{
  (void) state;
  uint32_t once = ops_of ("1", 0, 8), more = ops_of ("1", 0, 16) - once;
  for (uint32_t m = 3; m <= 6; m++)
    assert_int_equal (ops_of ("1", 0, 8 * m), once + (m - 1) * more);
  for (uint32_t r = 0; r < 2; r++) {
    once = ops_of ("2", r, 4);
    more = ops_of ("2", r, 8) - once;
    for (uint32_t m = 3; m <= 6; m++)
      assert_int_equal (ops_of ("2", r, 4 * m), once + (m - 1) * more);
  }
}

/* Four stages together have the kernels of one stage with all layers. Exception: the first norm of
 * stages 1 to 3 cannot be fused with a residual sum, which is on the previous stage. */
static void
stages_split_the_layers_of_a_microbatch (void **state)
{
  g_autoptr (weft_plan) one = plan_of (STAGES ("1"), BATCH ("8"), NULL);
  g_autoptr (weft_plan) four = plan_of (STAGES ("4"), BATCH ("2"), NULL);
  uint32_t found = 0, wanted = 0;

  (void) state;
  for (uint32_t op = 0; op < one->role[0]->n_op; op++)
    wanted +=
        one->role[0]->op[op].layer != WEFT_NO_LAYER && one->role[0]->op[op].lane == WEFT_LANE_GPU;
  for (uint32_t r = 0; r < 4; r++)
    for (uint32_t op = 0; op < four->role[r]->n_op; op++)
      found += four->role[r]->op[op].layer != WEFT_NO_LAYER &&
               four->role[r]->op[op].lane == WEFT_LANE_GPU;
  assert_true (wanted > 0);
  assert_int_equal (found, wanted + 3);
}

static const struct CMUnitTest tests[] = {
  cmocka_unit_test (a_bucket_waits_for_its_last_gradient),
  cmocka_unit_test (gradients_are_divided_before_they_are_summed),
  cmocka_unit_test (an_averaging_collective_needs_no_division),
  cmocka_unit_test (fused_accumulation_adds_no_kernels),
  cmocka_unit_test (buckets_have_the_sizes_of_the_layout),
  cmocka_unit_test (later_stages_fill_one_bucket),
  cmocka_unit_test (without_overlap_one_collective_follows_the_last_backward),
  cmocka_unit_test (one_replica_reduces_nothing),
  cmocka_unit_test (a_shard_is_reduced_updated_and_gathered),
  cmocka_unit_test (gathers_come_last_bucket_first),
  cmocka_unit_test (gathers_are_a_chain_of_first_uses),
  cmocka_unit_test (a_later_stage_gathers_when_its_first_input_is_there),
  cmocka_unit_test (a_tied_embedding_has_a_bucket_of_its_own),
  cmocka_unit_test (the_two_copies_are_added_between_bucket_and_norm),
  cmocka_unit_test (one_stage_adds_nothing),
  cmocka_unit_test (the_norm_is_summed_over_those_who_differ),
  cmocka_unit_test (without_clipping_there_is_no_norm),
  cmocka_unit_test (exchanges_are_posted_in_megatrons_order),
  cmocka_unit_test (gpipe_sends_all_forwards_before_the_first_gradient),
  cmocka_unit_test (an_exchange_waits_for_all_kernels_before_and_those_after_wait_for_it),
  cmocka_unit_test (a_stage_passes_on_one_microbatch_of_activations),
  cmocka_unit_test (every_microbatch_adds_as_many_ops),
  cmocka_unit_test (stages_split_the_layers_of_a_microbatch),
};

WEFT_TESTS (tests)
