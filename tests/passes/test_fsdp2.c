/* FSDP2: how tensors are split, what each rank keeps, when units are gathered and reduced and which
 * ops they wait for, one test per knob, and that a damaged program is detected.
 *
 * Units are the root module (embedding, final norm, head) and six equal layers. Programs are
 * inspected before the memory plan adds memory waits. */
#include "core/base/sanitize.h"
#include "core/passes/step.h"
#include "tests/made/mutant.h"
#include "tests/made/questions.h"
#include "tests/made/real_run.h"
#include "tests/runner/runner.h"
#include <string.h>

#define LAYERS 6
#define MICROS 3
#define MODEL                                                                                      \
  "num_layers=6 hidden_size=16 num_attention_heads=2 kv_channels=8 ffn_hidden_size=24 "            \
  "vocab_size=61 seq_length=16 activation=swiglu normalization=rmsnorm distributed_config=fsdp2 "
#define TINY MODEL "topology=dgx-h100 "
#define FOUR TINY "gpus=4 global_batch_size=12 " /* MICROS microbatches */

/* --------------------------------------------------------------- questions */

static uint32_t
count (const weft_program *p, const char *name)
{
  uint32_t n = 0;

  for (uint32_t op = 0; op < p->n_op; op++)
    n += is_named (p, op, name);
  return n;
}

/* Returns the op with this name for the unit `layer` (WEFT_NO_LAYER: the root) in a microbatch and
 * phase, or WEFT_NO_OP. */
static uint32_t
find (const weft_program *p, const char *name, uint32_t layer, uint32_t micro,
      enum weft_phase phase)
{
  for (uint32_t op = 0; op < p->n_op; op++)
    if (is_named (p, op, name) && p->op[op].layer == layer && p->op[op].micro == micro &&
        p->op[op].phase == phase)
      return op;
  return WEFT_NO_OP;
}

/* Returns the last kernel that has ended when `op` starts, or WEFT_NO_OP. */
static uint32_t
last_kernel_before (const weft_program *p, uint32_t op)
{
  uint32_t n = kernels_before (p, op);
  return n ? p->lane_ops[WEFT_LANE_GPU][n - 1] : WEFT_NO_OP;
}

static uint32_t
first_op (const weft_program *p, const char *name)
{
  for (uint32_t op = 0; op < p->n_op; op++)
    if (is_named (p, op, name))
      return op;
  fail_msg ("no %s", name);
  return 0;
}

static uint64_t
bytes_of_buffers (const weft_program *p, const char *name)
{
  uint64_t sum = 0;

  for (uint32_t b = 0; b < p->n_buf; b++)
    if (p->buf[b].base == WEFT_NO_BUF && p->buf[b].first != WEFT_NO_OP &&
        g_str_equal (p->name[p->buf[b].name], name))
      sum += p->buf[b].bytes;
  return sum;
}

static uint64_t
parameters (const weft_program *p)
{
  uint64_t sum = 0;

  for (uint32_t i = 0; i < p->n_param; i++)
    sum += p->param[i].rows * p->param[i].columns;
  return sum;
}

/* ------------------------------------------------------------------ layout */

/* Tensors are split by rows, as by torch.chunk(): 61 rows over 4 ranks are 16, 16, 16 and 13. */
static void
every_tensor_is_cut_into_equal_pieces_of_rows (void **state)
{
  g_autoptr (weft_plan) plan = weft_test_plan (FOUR);
  const weft_program *p = plan->role[0];
  uint64_t slice = 0;

  (void) state;
  for (uint32_t i = 0; i < p->n_param; i++) {
    const struct weft_param *param = &p->param[i];
    assert_int_equal (param->piece, (param->rows + 3) / 4 * param->columns);
    if (param->layer != WEFT_NO_LAYER)
      continue;
    assert_int_equal (param->bucket, 0);
    assert_int_equal (param->start, slice);
    slice += param->piece;
  }
  assert_int_equal (p->param[0].stride, slice);
  assert_int_equal (slice, (16 + 16) * 16 + 4);
  /* the head belongs to bucket 0, the root module */
  assert_int_equal (p->param[p->n_param - 1].bucket, 0);
  assert_int_equal (p->param[1].bucket, 1);
}

/* --------------------------------------------------------------------- memory */

/* FSDP2 keeps fp32 weights, gradients and moments in every precision: (4 + 4 + 8) / ranks bytes per
 * parameter. */
static void
a_rank_keeps_sixteen_bytes_over_the_ranks (void **state)
{
  static const uint32_t ranks[] = { 2, 4, 8 };

  (void) state;
  for (unsigned i = 0; i < G_N_ELEMENTS (ranks); i++) {
    g_autoptr (weft_plan) plan = weft_test_plan (TINY "gpus=%u vocab_size=64", ranks[i]);
    const uint64_t *found = plan->memory[0].permanent[WEFT_POOL_DEVICE];
    uint64_t n = parameters (plan->role[0]) / ranks[i];
    assert_int_equal (found[WEFT_BUF_WEIGHTS], 4 * n);
    assert_int_equal (found[WEFT_BUF_GRADIENTS], 4 * n);
    assert_int_equal (found[WEFT_BUF_OPTIMIZER], 8 * n);
  }
}

static void
dp_replicate_size_shares_out_over_fewer_ranks (void **state)
{
  g_autoptr (weft_plan) plan = weft_test_plan (TINY "gpus=8 vocab_size=64 dp_replicate_size=4");
  const uint64_t *found = plan->memory[0].permanent[WEFT_POOL_DEVICE];
  const weft_program *p = plan->role[0];

  (void) state;
  assert_int_equal (found[WEFT_BUF_WEIGHTS], 4 * parameters (p) / 2);
  assert_int_equal (count (p, "replicate"), LAYERS + 1);
  for (uint32_t op = 0; op < p->n_op; op++) {
    if (!is_named (p, op, "replicate"))
      continue;
    uint32_t reduce = find (p, "reduce", p->op[op].layer, p->op[op].micro, p->op[op].phase);
    assert_int_equal (p->op[op].lane, WEFT_LANE_DP_OUTER);
    assert_int_equal (weft_mesh_group_size (&plan->mesh, p->op[op].group), 4);
    assert_int_equal (weft_mesh_group_size (&plan->mesh, p->op[reduce].group), 2);
    assert_int_equal (2 * weft_op_shape (p, op)->dim[0], weft_op_shape (p, reduce)->dim[0]);
    assert_true (comes_after (p, reduce, op));
  }
}

/* FSDP2: the gathered pieces of layers alternate between two buffers. The root module has a buffer
 * of its own for each microbatch. */
static void
two_packs_and_one_layer_are_the_window (void **state)
{
  g_autoptr (weft_program) p = built (FOUR, 0);
  uint64_t layer = 0;

  (void) state;
  for (uint32_t i = 0; i < p->n_param; i++)
    layer += p->param[i].layer == 0 ? p->param[i].piece * 4 * 2 : 0;
  uint64_t root = p->param[0].stride * 4 * 2;
  assert_int_equal (bytes_of_buffers (p, "gathered_pieces"), 2 * layer + MICROS * root);
}

/* ------------------------------------------------------------------- gathers */

/* FSDP2 gathers every unit before forward. Before backward it gathers again only the units that
 * were freed after forward: all except the root and the last layer. */
static void
units_are_gathered_for_forward_and_again_for_backward (void **state)
{
  g_autoptr (weft_program) p = built (FOUR, 0);

  (void) state;
  assert_int_equal (count (p, "gather"), MICROS * (1 + LAYERS + LAYERS - 1));
  for (uint32_t m = 0; m < MICROS; m++) {
    assert_true (find (p, "gather", WEFT_NO_LAYER, m, WEFT_PHASE_BACKWARD) == WEFT_NO_OP);
    assert_true (find (p, "gather", LAYERS - 1, m, WEFT_PHASE_BACKWARD) == WEFT_NO_OP);
    for (uint32_t l = 0; l + 1 < LAYERS; l++)
      assert_true (find (p, "gather", l, m, WEFT_PHASE_BACKWARD) != WEFT_NO_OP);
  }
}

/* With pipeline parallelism, FSDP2 keeps weights gathered from the first microbatch of a step to
 * the last. */
static void
with_a_pipeline_units_are_gathered_once_a_step (void **state)
{
  (void) state;
  for (uint32_t r = 0; r < 2; r++) {
    g_autoptr (weft_program) p =
        built (TINY "gpus=8 pipeline_model_parallel_size=2 global_batch_size=16 "
                    "enable_fsdp2_prefetch=true",
               r);
    assert_int_equal (count (p, "gather"), 1 + LAYERS / 2);
    for (uint32_t op = 0; op < p->n_op; op++)
      assert_true (!is_named (p, op, "gather") || p->op[op].micro == 0);
  }
}

/* Without defer_fsdp_grad_sync every backward pass of a pipeline reduces gradients and frees the
 * gathered weights, so forward or backward gathers them again (MoEFSDPSyncMixin of Automodel,
 * _reduce_grad_per_microbatch). */
static void
with_a_pipeline_reductions_of_each_microbatch_free_its_weights (void **state)
{
  (void) state;
  for (uint32_t r = 0; r < 2; r++) {
    g_autoptr (weft_program) p = built (
        TINY "gpus=8 pipeline_model_parallel_size=2 global_batch_size=16 "
             "defer_fsdp_grad_sync=false",
        r);
    uint32_t units = 1 + LAYERS / 2, micros = count (p, "reduce") / units;
    assert_int_equal (micros, 4);
    assert_true (count (p, "gather") >= micros * units - 1);
    assert_true (count (p, "gather") <= 2 * micros * units);
  }
}

/* Returns the copy-out (which unpacks gathered pieces into weights) of the unit `back` units before
 * `layer`. The root unit comes before layer 0. */
static uint32_t
copy_out_before (const weft_program *p, uint32_t layer, uint32_t back, uint32_t micro)
{
  return layer + 1 == back ? find (p, "copy_out", WEFT_NO_LAYER, micro, WEFT_PHASE_FORWARD)
                           : find (p, "copy_out", layer - back, micro, WEFT_PHASE_FORWARD);
}

static void
assert_forward_waits (const weft_program *p, uint32_t back)
{
  for (uint32_t m = 0; m < MICROS; m++)
    for (uint32_t l = back - 1; l < LAYERS; l++) {
      uint32_t in = find (p, "copy_in", l, m, WEFT_PHASE_FORWARD);
      assert_int_equal (last_kernel_before (p, in), copy_out_before (p, l, back, m));
    }
}

static void
a_forward_gather_waits_for_the_copy_out_two_units_before (void **state)
{
  g_autoptr (weft_program) p = built (FOUR, 0);

  (void) state;
  assert_forward_waits (p, 2);
}

static void
assert_backward_waits (const weft_program *p, uint32_t ahead)
{
  for (uint32_t m = 0; m < MICROS; m++)
    for (uint32_t l = 0; l + ahead + 1 < LAYERS; l++) {
      uint32_t in = find (p, "copy_in", l, m, WEFT_PHASE_BACKWARD);
      uint32_t out = find (p, "copy_out", l + ahead, m, WEFT_PHASE_BACKWARD);
      assert_int_equal (last_kernel_before (p, in), out);
    }
}

static void
a_backward_gather_begins_when_the_layer_after_it_is_copied_out (void **state)
{
  g_autoptr (weft_program) p = built (FOUR, 0);

  (void) state;
  assert_backward_waits (p, 1);
}

/* fsdp2_forward_prefetch_depth = d lets the gather of unit n begin when unit n - 1 - d has been
 * unpacked. The default is depth 1, and depth 0 has the effect of depth 1. */
static void
fsdp2_forward_prefetch_depth_moves_gathers_forward (void **state)
{
  g_autoptr (weft_program) none = built (FOUR, 0);
  g_autoptr (weft_program) one = built (FOUR "enable_fsdp2_prefetch=true", 0);
  g_autoptr (weft_program) zero =
      built (FOUR "enable_fsdp2_prefetch=true fsdp2_forward_prefetch_depth=0", 0);

  (void) state;
  assert_forward_waits (one, 2);
  assert_forward_waits (zero, 2);
  for (uint32_t depth = 2; depth < 4; depth++) {
    g_autofree char *words =
        g_strdup_printf (FOUR "enable_fsdp2_prefetch=true fsdp2_forward_prefetch_depth=%u", depth);
    g_autoptr (weft_program) p = built (words, 0);
    assert_forward_waits (p, depth + 1);
    assert_int_equal (count (p, "gather"), count (none, "gather"));
    assert_true (bytes_of_buffers (p, "gathered_pieces") >
                 bytes_of_buffers (none, "gathered_pieces"));
  }
}

static void
fsdp2_backward_prefetch_depth_moves_gathers_forward (void **state)
{
  (void) state;
  for (uint32_t depth = 0; depth < 4; depth++) {
    g_autofree char *words =
        g_strdup_printf (FOUR "enable_fsdp2_prefetch=true fsdp2_backward_prefetch_depth=%u", depth);
    g_autoptr (weft_program) p = built (words, 0);
    assert_backward_waits (p, MAX (depth, 1));
  }
}

/* Without enable_fsdp2_prefetch, the knobs for the depth of prefetch have no effect. */
static void
enable_fsdp2_prefetch_is_what_depths_need (void **state)
{
  g_autoptr (weft_program) p =
      built (FOUR "fsdp2_forward_prefetch_depth=3 fsdp2_backward_prefetch_depth=3", 0);

  (void) state;
  assert_forward_waits (p, 2);
  assert_backward_waits (p, 1);
}

/* ---------------------------------------------------------------- reductions */

static void
defer_fsdp_grad_sync_reduces_once_a_step_and_keeps_whole_gradients (void **state)
{
  g_autoptr (weft_program) deferred = built (FOUR, 0);
  g_autoptr (weft_program) each = built (FOUR "defer_fsdp_grad_sync=false", 0);
  g_autoptr (weft_program) single = built (TINY "gpus=4", 0);

  (void) state;
  assert_int_equal (count (deferred, "reduce"), LAYERS + 1);
  assert_int_equal (count (each, "reduce"), MICROS * (LAYERS + 1));
  assert_int_equal (count (deferred, "gather"), count (each, "gather"));
  assert_int_equal (bytes_of_buffers (deferred, "kept_gradients"), 4 * parameters (deferred));
  assert_int_equal (bytes_of_buffers (each, "kept_gradients"), 0);
  assert_int_equal (bytes_of_buffers (single, "kept_gradients"), 0);
  for (uint32_t op = 0; op < deferred->n_op; op++)
    assert_true (!is_named (deferred, op, "reduce") || deferred->op[op].micro == MICROS - 1);
}

/* FSDP2 has one reduction in flight at a time: gradients of layer l - 1 are packed only after the
 * reduce-scatter of layer l. The root unit follows layer 0. */
static void
one_reduction_is_in_flight (void **state)
{
  g_autoptr (weft_program) p = built (FOUR "defer_fsdp_grad_sync=false", 0);

  (void) state;
  for (uint32_t m = 0; m < MICROS; m++)
    for (uint32_t l = 0; l < LAYERS; l++) {
      uint32_t reduce = find (p, "reduce", l, m, WEFT_PHASE_REDUCE);
      uint32_t own = find (p, "pack_gradients", l, m, WEFT_PHASE_REDUCE);
      uint32_t next = find (p, "pack_gradients", l ? l - 1 : WEFT_NO_LAYER, m, WEFT_PHASE_REDUCE);
      assert_true (comes_after (p, own, reduce));
      assert_true (comes_after (p, reduce, next));
      /* the kernel before the packing of gradients may overlap with the reduction */
      assert_false (comes_after (p, reduce, next - 1));
    }
}

static void
mp_policy_reduce_dtype_is_what_travels (void **state)
{
  static const char *const words[] = { "", "mp_policy_reduce_dtype=bf16" };
  static const enum weft_dtype wanted[] = { WEFT_FP32, WEFT_BF16 };

  (void) state;
  for (int i = 0; i < 2; i++) {
    g_autofree char *all = g_strconcat (FOUR, words[i], NULL);
    g_autoptr (weft_program) p = built (all, 0);
    const struct weft_shape *reduce = weft_op_shape (p, first_op (p, "reduce"));
    assert_int_equal (reduce->dtype, wanted[i]);
    assert_int_equal (weft_op_shape (p, first_op (p, "gather"))->dtype, WEFT_BF16);
    assert_int_equal (bytes_of_buffers (p, "kept_gradients"),
                      weft_dtype_bytes (wanted[i]) * parameters (p));
    assert_int_equal (p->op[first_op (p, "reduce")].reduce, WEFT_REDUCE_AVG);
    assert_int_equal (count (p, "grad_cast") > 0, TRUE);
  }
}

/* mp_policy_output_dtype = fp32 (the default) with bf16 compute: activations and their gradients
 * are converted before and after each layer. With equal types nothing is converted. */
static void
mp_policy_output_dtype_converts_between_layers (void **state)
{
  g_autoptr (weft_program) fp32 = built (FOUR, 0);
  g_autoptr (weft_program) bf16 = built (FOUR "mp_policy_output_dtype=bf16", 0);
  g_autoptr (weft_program) full = built (FOUR "precision=fp32", 0);

  (void) state;
  assert_int_equal (count (fp32, "layer_cast"), MICROS * 4 * LAYERS);
  assert_int_equal (count (bf16, "layer_cast"), 0);
  assert_int_equal (count (full, "layer_cast"), 0);
}

/* ----------------------------------------------------------------- recompute */

/* Checks that no gather overwrites gathered pieces that have not been unpacked (copied out) yet. */
static void
assert_packs_are_whole (const char *words)
{
  g_autoptr (weft_program) p = built (words, 0);
  g_autofree gboolean *full = g_new0 (gboolean, p->n_buf);

  for (uint32_t op = 0; op < p->n_op; op++) {
    const struct weft_use *use = &p->uses[p->op[op].uses];
    if (is_named (p, op, "gather")) {
      if (full[use[1].buf])
        fail_msg ("%s: op %u gathers over a pack that is still to be copied out", words, op);
      full[use[1].buf] = TRUE;
    }
    if (is_named (p, op, "copy_out"))
      full[use[0].buf] = FALSE;
  }
}

static void
layers_that_run_again_leave_the_pack_of_the_one_before_them_alone (void **state)
{
  static const char *const prefetch[] = {
    "", "enable_fsdp2_prefetch=true fsdp2_backward_prefetch_depth=3",
    "enable_fsdp2_prefetch=true fsdp2_forward_prefetch_depth=4 fsdp2_backward_prefetch_depth=0"
  };

  (void) state;
  for (size_t i = 0; i < G_N_ELEMENTS (prefetch); i++)
    for (uint32_t block = 1; block < LAYERS; block++) {
      g_autofree char *words =
          g_strdup_printf (FOUR "recompute_granularity=full recompute_method=uniform "
                                "recompute_num_layers=%u %s",
                           block, prefetch[i]);
      assert_packs_are_whole (words);
    }
}

static void
recompute_and_backward_share_one_gather (void **state)
{
  g_autoptr (weft_program) p =
      built (FOUR "recompute_granularity=full recompute_method=uniform recompute_num_layers=1", 0);

  (void) state;
  assert_int_equal (count (p, "gather"), MICROS * (1 + LAYERS + LAYERS - 1));
  assert_backward_waits (p, 1);
}

/* ------------------------------------------------------------------ mutation */

#define REAL MODEL "topology=cpu gpus=2 global_batch_size=4 precision=fp32 "

/* Mutants of a program without one of its dependencies; the checks must refuse each mutant. In row
 * order of the table, the mutant lets: a cast overwrite gathered pieces before they are unpacked;
 * an unpack kernel read pieces before they are gathered; a reduce-scatter read gradients before
 * they are packed. */
static void
an_edge_less_between_gathers_reductions_and_kernels_is_refused (void **state)
{
  static const struct {
    enum weft_op_kind from, to;
  } edges[] = {
    { WEFT_OP_UNPACK, WEFT_OP_CAST },
    { WEFT_OP_ALL_GATHER, WEFT_OP_UNPACK },
    { WEFT_OP_PACK, WEFT_OP_REDUCE_SCATTER },
  };

  (void) state;
  for (unsigned i = 0; i < G_N_ELEMENTS (edges); i++) {
    g_autoptr (weft_plan) plan = weft_test_plan (REAL);
    struct edge_count found = count_edges (plan, edges[i].from, edges[i].to);
    assert_true (found.n >= LAYERS);
    assert_int_equal (found.refused, found.n);
  }
}

static gboolean
bits_change (weft_plan *plan, const weft_program *mutant, const struct real_result *good)
{
  weft_program *whole = plan->role[0];
  struct real_run run = { .steps = 2 };
  struct real_result found;
  g_autoptr (GError) error = NULL;

  plan->role[0] = (weft_program *) (uintptr_t) mutant;
  gboolean changed =
      !weft_test_run_plan (plan, &run, &found, &error) || !weft_test_same_bits (good, &found, 2);
  plan->role[0] = whole;
  return changed;
}

/* A mutant gathers the pieces of layer 2 in place of those of layer 1. Its results must differ from
 * those of the correct program. */
static void
pieces_that_are_left_out_show_in_the_bits (void **state)
{
  g_autoptr (weft_plan) plan = weft_test_plan (REAL);
  const weft_program *p = plan->role[0];
  struct real_run run = { .steps = 2 };
  struct real_result good;
  g_autoptr (GError) error = NULL;
  g_autoptr (weft_program) mutant = weft_mutant_copy (p);

  (void) state;
  assert_true (weft_test_run_plan (plan, &run, &good, &error));
  uint32_t one = find (p, "copy_in", 1, 0, WEFT_PHASE_FORWARD),
           two = find (p, "copy_in", 2, 0, WEFT_PHASE_FORWARD);
  mutant->uses[p->op[one].uses].buf = p->uses[p->op[two].uses].buf;
  assert_true (bits_change (plan, mutant, &good));
  assert_false (bits_change (plan, p, &good));
}

/* A pipeline stage with three chunks of one layer each, and the root with the embedding. FSDP2
 * gathers each unit once per step, and reduces it once, in the last backward pass of its chunk. */
static void
chunks_of_a_stage_are_wrapped_by_themselves (void **state)
{
  g_autoptr (weft_program) p =
      built (TINY "gpus=4 pipeline_model_parallel_size=2 virtual_pipeline_model_parallel_size=3 "
                  "batch_p2p_comm=false overlap_p2p_comm=true global_batch_size=8",
             0);
  uint32_t gathers = 0, sums[3] = { 0 };

  (void) state;
  for (uint32_t op = 0; op < p->n_op; op++) {
    gathers += p->op[op].kind == WEFT_OP_ALL_GATHER && p->op[op].group == WEFT_GROUP_DP;
    if (p->op[op].kind != WEFT_OP_REDUCE_SCATTER)
      continue;
    sums[p->op[op].chunk]++;
    assert_int_equal (p->op[op].micro, 3);
    assert_true (p->op[op].layer == WEFT_NO_LAYER || p->op[op].layer == 2u * p->op[op].chunk);
  }
  assert_int_equal (gathers, 4);
  assert_int_equal (sums[0], 2);
  assert_int_equal (sums[1], 1);
  assert_int_equal (sums[2], 1);
}

/* zb-h1 computes weight gradients apart from input gradients. FSDP2 reduces each unit once per
 * step, after the weight gradients of all microbatches. */
static void
weight_gradients_apart_are_reduced_after_the_last (void **state)
{
  g_autoptr (weft_program) p = built (TINY "gpus=8 pipeline_model_parallel_size=2 "
                                           "pipeline_schedule=zb-h1 global_batch_size=16",
                                      0);
  uint32_t sums = 0, products = 0;

  (void) state;
  for (uint32_t op = 0; op < p->n_op; op++) {
    if (p->op[op].kind != WEFT_OP_REDUCE_SCATTER)
      continue;
    sums++;
    for (uint32_t other = 0; other < p->n_op; other++) {
      if (p->op[other].kind != WEFT_OP_MATMUL_WGRAD || p->op[other].layer != p->op[op].layer)
        continue;
      assert_true (comes_after (p, other, op));
      products++;
    }
  }
  assert_int_equal (sums, 1 + LAYERS / 2);
  /* 4 matrices in each of the LAYERS / 2 layers of a stage, 4 microbatches */
  assert_int_equal (products, 4 * 4 * LAYERS / 2);
}

static gboolean
comes_from_backward (const weft_program *p, const struct weft_use *use)
{
  if (use->buf == WEFT_NO_BUF)
    return FALSE;
  const struct weft_buf *buf = &p->buf[weft_buf_owner (p, use->buf)];
  return buf->kind == WEFT_BUF_GATHERED && p->op[buf->first].phase != WEFT_PHASE_FORWARD;
}

/* FSDP2 with a schedule that separates weight gradients (W). A backward pass then gathers weights
 * that a later forward pass could reuse. Forward passes must gather their own weights all the same,
 * because an evaluation runs forward passes only. */
static void
a_forward_pass_gathers_its_own_weights_where_weight_gradients_stand_apart (void **state)
{
#define APART                                                                                      \
  "topology=cpu model=llama-nano num_layers=4 seq_length=16 precision=fp32 global_batch_size=8 "
  static const char *const strategies[] = {
    "pipeline_schedule=zb-v",
    "pipeline_schedule=v-min recompute_granularity=full recompute_method=uniform "
    "recompute_num_layers=1",
    "pipeline_schedule=zb-h1 enable_fsdp2_prefetch=true",
  };
  struct real_result one =
      weft_test_run (&(struct real_run){ .words = APART "gpus=1", .steps = 2 });

  (void) state;
  for (unsigned s = 0; s < G_N_ELEMENTS (strategies); s++) {
    g_autofree char *words =
        g_strconcat (APART "gpus=2 distributed_config=fsdp2 ", strategies[s], NULL);
    g_autoptr (weft_program) p = built (words, 0);
    weft_test_check_bits (words, 2, &one, s);
    for (uint32_t op = 0; op < p->n_op; op++)
      for (uint32_t u = p->op[op].uses; u < p->op[op + 1].uses; u++)
        assert_true (p->op[op].phase != WEFT_PHASE_FORWARD ||
                     !comes_from_backward (p, &p->uses[u]));
  }
}

static const struct CMUnitTest tests[] = {
  cmocka_unit_test (every_tensor_is_cut_into_equal_pieces_of_rows),
  cmocka_unit_test (a_rank_keeps_sixteen_bytes_over_the_ranks),
  cmocka_unit_test (dp_replicate_size_shares_out_over_fewer_ranks),
  cmocka_unit_test (two_packs_and_one_layer_are_the_window),
  cmocka_unit_test (units_are_gathered_for_forward_and_again_for_backward),
  cmocka_unit_test (with_a_pipeline_units_are_gathered_once_a_step),
  cmocka_unit_test (with_a_pipeline_reductions_of_each_microbatch_free_its_weights),
  cmocka_unit_test (a_forward_gather_waits_for_the_copy_out_two_units_before),
  cmocka_unit_test (a_backward_gather_begins_when_the_layer_after_it_is_copied_out),
  cmocka_unit_test (fsdp2_forward_prefetch_depth_moves_gathers_forward),
  cmocka_unit_test (fsdp2_backward_prefetch_depth_moves_gathers_forward),
  cmocka_unit_test (enable_fsdp2_prefetch_is_what_depths_need),
  cmocka_unit_test (defer_fsdp_grad_sync_reduces_once_a_step_and_keeps_whole_gradients),
  cmocka_unit_test (one_reduction_is_in_flight),
  cmocka_unit_test (mp_policy_reduce_dtype_is_what_travels),
  cmocka_unit_test (mp_policy_output_dtype_converts_between_layers),
  cmocka_unit_test (layers_that_run_again_leave_the_pack_of_the_one_before_them_alone),
  cmocka_unit_test (recompute_and_backward_share_one_gather),
  cmocka_unit_test (an_edge_less_between_gathers_reductions_and_kernels_is_refused),
  cmocka_unit_test (pieces_that_are_left_out_show_in_the_bits),
  cmocka_unit_test (chunks_of_a_stage_are_wrapped_by_themselves),
  cmocka_unit_test (weight_gradients_apart_are_reduced_after_the_last),
  cmocka_unit_test (a_forward_pass_gathers_its_own_weights_where_weight_gradients_stand_apart),
};

WEFT_TESTS (tests)
