/* offload_policy and offload_policy_pin_memory of FSDP2: what is in host memory, the copies and
 * their dependencies, and that a damaged program is detected.
 *
 * Units are the root module (embedding, final norm, head: three tensors) and six equal layers of
 * six tensors. */
#include "core/plan/check.h"
#include "core/passes/step.h"
#include "tests/made/mutant.h"
#include "tests/made/questions.h"
#include "tests/made/real_run.h"
#include "tests/runner/runner.h"
#include <string.h>

enum { LAYERS = 6, MICROS = 3, ROOT_TENSORS = 3, LAYER_TENSORS = 6 };
enum { TENSORS = ROOT_TENSORS + LAYERS * LAYER_TENSORS, UNITS = LAYERS + 1 };
#define MODEL                                                                                      \
  "num_layers=6 hidden_size=16 num_attention_heads=2 kv_channels=8 ffn_hidden_size=24 "            \
  "vocab_size=61 seq_length=16 activation=swiglu normalization=rmsnorm distributed_config=fsdp2 "
#define OFF "offload_policy=cpu "
#define UNPINNED OFF "offload_policy_pin_memory=false "
#define EACH "defer_fsdp_grad_sync=false "
#define FOUR MODEL "topology=dgx-h100 gpus=4 global_batch_size=12 " /* MICROS microbatches */

/* --------------------------------------------------------------- questions */

static gboolean
is_copy (const weft_program *p, uint32_t op, enum weft_op_kind kind, const char *name)
{
  return p->op[op].kind == kind && is_named (p, op, name);
}

static uint32_t
count (const weft_program *p, enum weft_op_kind kind, const char *name)
{
  uint32_t n = 0;

  for (uint32_t op = 0; op < p->n_op; op++)
    n += is_copy (p, op, kind, name);
  return n;
}

/* Returns the first op of a kind after op number `op`, or WEFT_NO_OP. */
static uint32_t
next (const weft_program *p, uint32_t op, enum weft_op_kind kind)
{
  for (op++; op < p->n_op; op++)
    if (p->op[op].kind == kind)
      return op;
  return WEFT_NO_OP;
}

static uint32_t
next_on (const weft_program *p, uint32_t op, enum weft_lane lane)
{
  for (op++; op < p->n_op; op++)
    if (p->op[op].lane == lane)
      return op;
  return WEFT_NO_OP;
}

static uint64_t
slice_bytes (const weft_program *p)
{
  uint64_t sum = 0;

  for (uint32_t i = 0; i < p->n_param; i++)
    sum += 4 * p->param[i].piece;
  return sum;
}

static uint64_t
root_bytes (const weft_program *p)
{
  uint64_t sum = 0;

  for (uint32_t i = 0; i < p->n_param; i++)
    if (p->param[i].layer == WEFT_NO_LAYER)
      sum += 4 * p->param[i].piece;
  return sum;
}

static uint64_t
copied (const weft_program *p, enum weft_op_kind kind, const char *name)
{
  uint64_t sum = 0;

  for (uint32_t op = 0; op < p->n_op; op++)
    if (is_copy (p, op, kind, name))
      sum += weft_op_shape (p, op)->dim[0] *
             weft_dtype_bytes ((enum weft_dtype) weft_op_shape (p, op)->dtype);
  return sum;
}

/* ------------------------------------------------------------------ memory */

/* Permanent bytes with offload_policy. On the host: 16 bytes per parameter (4 of weights, 4 of
 * gradients, 8 of moments), divided by the ranks that shard them. On the device: none. */
static void
offload_policy_keeps_sixteen_bytes_over_the_ranks_on_the_host (void **state)
{
  static const char *const words[] = { FOUR OFF, FOUR OFF EACH, FOUR UNPINNED,
                                       FOUR OFF "dp_replicate_size=2" };

  (void) state;
  for (unsigned i = 0; i < G_N_ELEMENTS (words); i++) {
    g_autoptr (weft_plan) plan = weft_test_plan ("%s", words[i]);
    const struct weft_memory *m = &plan->memory[0];
    uint64_t bytes = slice_bytes (plan->role[0]);
    assert_int_equal (m->permanent[WEFT_POOL_HOST][WEFT_BUF_WEIGHTS], bytes);
    assert_int_equal (m->permanent[WEFT_POOL_HOST][WEFT_BUF_GRADIENTS], bytes);
    assert_int_equal (m->permanent[WEFT_POOL_HOST][WEFT_BUF_OPTIMIZER], 2 * bytes);
    assert_int_equal (m->permanent[WEFT_POOL_DEVICE][WEFT_BUF_WEIGHTS], 0);
    assert_int_equal (m->permanent[WEFT_POOL_DEVICE][WEFT_BUF_GRADIENTS], 0);
    assert_int_equal (m->permanent[WEFT_POOL_DEVICE][WEFT_BUF_OPTIMIZER], 0);
  }
}

static void
without_offload_policy_nothing_lies_on_the_host (void **state)
{
  g_autoptr (weft_plan) plan = weft_test_plan (FOUR);
  const struct weft_memory *m = &plan->memory[0];

  (void) state;
  assert_int_equal (m->planned[WEFT_POOL_HOST], 0);
  assert_int_equal (m->permanent[WEFT_POOL_DEVICE][WEFT_BUF_WEIGHTS], slice_bytes (plan->role[0]));
}

static uint64_t
bytes_of_buffers (const weft_program *p, const char *name, uint32_t *n)
{
  uint64_t sum = 0;

  *n = 0;
  for (uint32_t b = 0; b < p->n_buf; b++)
    if (p->buf[b].base == WEFT_NO_BUF && p->buf[b].first != WEFT_NO_OP &&
        p->buf[b].pool == WEFT_POOL_DEVICE && g_str_equal (p->name[p->buf[b].name], name)) {
      sum += p->buf[b].bytes;
      *n += 1;
    }
  return sum;
}

/* Buffers for shards between host and device. All layers use one buffer in turn, and a copy or
 * reduction waits until the buffer is free. The root module (weights outside the layers) has a
 * buffer of its own per microbatch. With a reduction in each microbatch (EACH), more buffers for
 * reduced shards are needed than with one reduction per step. */
static void
layers_take_the_room_for_pieces_in_turn (void **state)
{
  static const struct {
    const char *words;
    uint32_t fetched, reduced, leaving;
  } rows[] = {
    { FOUR OFF, 1 + MICROS, 2, 0 },
    { FOUR OFF EACH, 1 + MICROS, 1 + MICROS, 0 },
    { FOUR OFF EACH "dp_replicate_size=2", 1 + MICROS, 2 + MICROS, 0 },
    { FOUR OFF EACH "mp_policy_reduce_dtype=bf16", 1 + MICROS, 1 + MICROS, 1 + MICROS },
  };

  (void) state;
  for (unsigned i = 0; i < G_N_ELEMENTS (rows); i++) {
    g_autoptr (weft_program) p = built (rows[i].words, 0);
    uint64_t layer = (slice_bytes (p) - root_bytes (p)) / LAYERS;
    uint32_t n;
    assert_int_equal (bytes_of_buffers (p, "fetched_pieces", &n), layer + MICROS * root_bytes (p));
    assert_int_equal (n, rows[i].fetched);
    bytes_of_buffers (p, "reduced", &n);
    assert_int_equal (n, rows[i].reduced);
    bytes_of_buffers (p, "leaving", &n);
    assert_int_equal (n, rows[i].leaving);
  }
}

/* ----------------------------------------------------------------- weights */

/* Before a gather, the fp32 shard of each tensor is copied from the host. The root and the last
 * layer are gathered once per microbatch, the other units twice. */
static void
each_gather_follows_copies_of_its_pieces (void **state)
{
  g_autoptr (weft_program) p = built (FOUR OFF, 0);
  g_autofree uint32_t *before = weft_program_order (p);

  (void) state;
  assert_int_equal (count (p, WEFT_OP_FROM_HOST, "weights"),
                    MICROS * (2 * TENSORS - ROOT_TENSORS - LAYER_TENSORS));
  for (uint32_t op = 0; op < p->n_op; op++) {
    if (!is_named (p, op, "copy_in"))
      continue;
    uint32_t n = p->op[op].layer == WEFT_NO_LAYER ? ROOT_TENSORS : LAYER_TENSORS;
    uint64_t elements = 0;
    for (uint32_t back = 1; back <= n; back++) {
      const struct weft_shape *shape = weft_op_shape (p, op - back);
      assert_true (is_copy (p, op - back, WEFT_OP_FROM_HOST, "weights"));
      assert_int_equal (p->op[op - back].lane, WEFT_LANE_H2D);
      assert_int_equal (shape->dtype, WEFT_FP32);
      assert_true (weft_ordered (p, before, op - back, op));
      elements += shape->dim[0];
    }
    assert_int_equal (elements, weft_op_shape (p, op)->dim[0]);
  }
}

/* In PyTorch, copies from the host and copy-ins (which pack the pieces for a gather) are on one
 * stream. So both wait for the same kernels, and the copies of the next unit follow the copy-in of
 * this unit. */
static void
copies_of_weights_lie_on_the_stream_of_copy_ins (void **state)
{
  static const char *const words[] = {
    FOUR OFF, FOUR OFF "enable_fsdp2_prefetch=true fsdp2_forward_prefetch_depth=3"
  };

  (void) state;
  for (unsigned i = 0; i < G_N_ELEMENTS (words); i++) {
    g_autoptr (weft_program) p = built (words[i], 0);
    g_autofree uint32_t *before = weft_program_order (p);
    uint32_t last = WEFT_NO_OP;
    for (uint32_t op = 0; op < p->n_op; op++) {
      if (!is_named (p, op, "copy_in"))
        continue;
      uint32_t n = p->op[op].layer == WEFT_NO_LAYER ? ROOT_TENSORS : LAYER_TENSORS;
      assert_int_equal (kernels_before (p, op - n), kernels_before (p, op));
      assert_true (last == WEFT_NO_OP || weft_ordered (p, before, last, op - n));
      last = op;
    }
  }
}

/* --------------------------------------------------------------- gradients */

static void
gradients_leave_piece_by_piece_once_they_are_reduced (void **state)
{
  g_autoptr (weft_program) once = built (FOUR OFF, 0);
  g_autoptr (weft_program) each = built (FOUR OFF EACH, 0);

  (void) state;
  assert_int_equal (count (once, WEFT_OP_TO_HOST, "gradients"), TENSORS);
  assert_int_equal (copied (once, WEFT_OP_TO_HOST, "gradients"), slice_bytes (once));
  assert_int_equal (count (once, WEFT_OP_GRAD_ADD, "grad_add"),
                    /* with one reduction per step, whole (unsharded) gradients are added on the
                     * device */
                    (MICROS - 1) * TENSORS);
  assert_int_equal (count (each, WEFT_OP_TO_HOST, "gradients"), MICROS * TENSORS);
  assert_int_equal (copied (each, WEFT_OP_TO_HOST, "gradients"), MICROS * slice_bytes (each));
  assert_int_equal (count (each, WEFT_OP_GRAD_ADD, "grad_add"), (MICROS - 1) * UNITS);
  for (uint32_t op = 0; op < each->n_op; op++)
    if (each->op[op].kind == WEFT_OP_GRAD_ADD)
      assert_int_equal (each->op[op].lane, WEFT_LANE_HOST);
}

/* Copies of gradients to the host are on the stream of the reduction before them, so the next
 * reduction on this stream waits for them. With dp_replicate_size this is the stream of all-reduces
 * between replicas, so reduce-scatters do not wait. */
static void
the_next_reduction_follows_gradients_that_leave (void **state)
{
  static const struct {
    const char *words;
    enum weft_op_kind last;
    gboolean scatter_waits;
  } rows[] = { { FOUR OFF, WEFT_OP_REDUCE_SCATTER, TRUE },
               { FOUR OFF "dp_replicate_size=2", WEFT_OP_ALL_REDUCE, FALSE } };

  (void) state;
  for (unsigned i = 0; i < G_N_ELEMENTS (rows); i++) {
    g_autoptr (weft_program) p = built (rows[i].words, 0);
    g_autofree uint32_t *before = weft_program_order (p);
    uint32_t seen = 0;
    for (uint32_t op = next (p, 0, WEFT_OP_REDUCE_SCATTER), then; op != WEFT_NO_OP; op = then) {
      uint32_t sent = next (p, op, WEFT_OP_TO_HOST), sum = next (p, op - 1, rows[i].last);
      assert_true (weft_ordered (p, before, sum, sent));
      then = next (p, op, WEFT_OP_REDUCE_SCATTER);
      if (then == WEFT_NO_OP)
        break;
      seen++;
      assert_true (weft_ordered (p, before, sent, next (p, then - 1, rows[i].last)));
      assert_int_equal (weft_ordered (p, before, sent, then), rows[i].scatter_waits);
    }
    assert_int_equal (seen, LAYERS);
  }
}

/* Checks for each unit whether the first kernel after the unit's last copy waits for this copy. The
 * kernel must wait from microbatch `from` on, and must not wait in earlier microbatches. */
static void
assert_kernels_wait (const char *words, enum weft_op_kind kind, const char *name, uint32_t from)
{
  g_autoptr (weft_program) p = built (words, 0);
  g_autofree uint32_t *before = weft_program_order (p);
  uint32_t seen = 0;

  for (uint32_t op = 0; op + 1 < p->n_op; op++) {
    uint32_t kernel = next_on (p, op, WEFT_LANE_GPU);
    if (!is_copy (p, op, kind, name) || is_copy (p, op + 1, kind, name) || kernel == WEFT_NO_OP ||
        p->op[op].layer == WEFT_NO_LAYER)
      continue;
    seen++;
    assert_int_equal (weft_ordered (p, before, op, kernel), p->op[op].micro >= from);
  }
  assert_true (seen >= LAYERS);
}

/* If gradients are reduced in each microbatch (EACH), the host adds the reduced shards from the
 * second microbatch on; then the next kernel waits for the copy of the gradients to the host. With
 * one reduction per step, no kernel waits for such a copy. */
static void
gradients_that_the_host_adds_are_waited_for (void **state)
{
  (void) state;
  assert_kernels_wait (FOUR OFF EACH, WEFT_OP_TO_HOST, "gradients", 1);
  assert_kernels_wait (FOUR OFF, WEFT_OP_TO_HOST, "gradients", MICROS);
}

static void
offload_policy_pin_memory_off_makes_every_copy_waited_for (void **state)
{
  (void) state;
  assert_kernels_wait (FOUR UNPINNED EACH, WEFT_OP_TO_HOST, "gradients", 0);
  assert_kernels_wait (FOUR UNPINNED, WEFT_OP_TO_HOST, "gradients", 0);
  assert_kernels_wait (FOUR UNPINNED "enable_fsdp2_prefetch=true fsdp2_forward_prefetch_depth=3",
                       WEFT_OP_FROM_HOST, "weights", 0);
}

/* offload_policy_pin_memory changes dependencies, but neither ops nor buffers. */
static void
offload_policy_pin_memory_moves_no_bytes (void **state)
{
  g_autoptr (weft_program) pinned = built (FOUR OFF EACH, 0);
  g_autoptr (weft_program) not = built (FOUR UNPINNED EACH, 0);

  (void) state;
  assert_int_equal (pinned->n_op, not ->n_op);
  assert_int_equal (pinned->n_buf, not ->n_buf);
  for (uint32_t op = 0; op < pinned->n_op; op++)
    assert_int_equal (pinned->op[op].kind, not ->op[op].kind);
}

static void
the_end_of_backward_waits_for_all_gradients (void **state)
{
  g_autoptr (weft_program) p = built (FOUR OFF EACH, 0);
  g_autofree uint32_t *before = weft_program_order (p);

  (void) state;
  for (uint32_t op = 0; op < p->n_op; op++)
    if (p->op[op].phase == WEFT_PHASE_FORWARD && p->op[op].micro == 1 &&
        p->op[op].lane == WEFT_LANE_GPU && p->op[op].kind == WEFT_OP_NORM) {
      uint32_t done = before[(size_t) op * WEFT_N_LANE + WEFT_LANE_D2H];
      assert_true (done >= TENSORS);
    }
}

/* ------------------------------------------------------------------ update */

/* With offload_policy, norm and Adam run on the host, after all gradients have been copied. The
 * norm is copied to the device and reduced over the ranks; the clip factor is copied back. */
static void
the_update_runs_on_the_host (void **state)
{
  g_autoptr (weft_program) p = built (FOUR OFF "clip_grad=1", 0);
  g_autofree uint32_t *before = weft_program_order (p);
  uint32_t adams = 0, norms = 0;

  (void) state;
  for (uint32_t op = 0; op < p->n_op; op++) {
    if (p->op[op].kind != WEFT_OP_ADAM && p->op[op].kind != WEFT_OP_GRAD_NORM)
      continue;
    *(p->op[op].kind == WEFT_OP_ADAM ? &adams : &norms) += 1;
    assert_int_equal (p->op[op].lane, WEFT_LANE_HOST);
    assert_true (before[(size_t) op * WEFT_N_LANE + WEFT_LANE_D2H] >= TENSORS);
  }
  assert_int_equal (adams, UNITS);
  assert_int_equal (norms, UNITS);
  assert_int_equal (count (p, WEFT_OP_FROM_HOST, "grad_norm"), 1);
  assert_int_equal (count (p, WEFT_OP_TO_HOST, "clip_factor"), 1);
}

/* A tied embedding with offload_policy: both the first and the last stage hold the tensor. Its
 * gradient is copied to the device, all-reduced over both stages and copied back to the host. */
static void
a_tied_embedding_meets_on_the_device (void **state)
{
  g_autoptr (weft_program) p =
      built (FOUR OFF "pipeline_model_parallel_size=2 share_embeddings_and_output_weights=true", 0);

  (void) state;
  uint32_t copy = 0;
  while (!is_copy (p, copy, WEFT_OP_FROM_HOST, "tied embedding"))
    assert_true (++copy < p->n_op);
  assert_int_equal (p->op[copy + 1].kind, WEFT_OP_ALL_REDUCE);
  assert_int_equal (p->op[copy + 1].group, WEFT_GROUP_EMBD);
  assert_true (is_copy (p, copy + 2, WEFT_OP_TO_HOST, "tied embedding"));
}

/* ------------------------------------------------------------------ mutation */

#define REAL MODEL OFF EACH "topology=cpu gpus=2 global_batch_size=4 precision=fp32 "

/* Mutants of a program without one of its dependencies; the checks must refuse each mutant. In row
 * order of the table, the mutant lets: a cast read pieces before they are on the device; a copy to
 * the host read gradients before they are reduced; the host add gradients before the copy has
 * ended; the norm be copied to the device before it is computed; Adam read gradients before the
 * copy has ended. */
static void
an_edge_less_between_copies_and_who_uses_them_is_refused (void **state)
{
  static const struct {
    enum weft_op_kind from, to;
    uint32_t least;
  } edges[] = {
    { WEFT_OP_FROM_HOST, WEFT_OP_CAST, UNITS }, { WEFT_OP_REDUCE_SCATTER, WEFT_OP_TO_HOST, UNITS },
    { WEFT_OP_TO_HOST, WEFT_OP_GRAD_ADD, 1 },   { WEFT_OP_GRAD_NORM, WEFT_OP_FROM_HOST, 1 },
    { WEFT_OP_TO_HOST, WEFT_OP_ADAM, 1 },
  };

  (void) state;
  g_autoptr (weft_plan) plan = weft_test_plan (REAL);
  for (unsigned i = 0; i < G_N_ELEMENTS (edges); i++) {
    struct edge_count found = count_edges (plan, edges[i].from, edges[i].to);
    if (found.refused != found.n || found.n < edges[i].least)
      fail_msg ("%s before %s: %u of %u edges are missed, wanted all of at least %u",
                weft_op_words[edges[i].from], weft_op_words[edges[i].to], found.refused, found.n,
                edges[i].least);
  }
}

/* ---------------------------------------------------------------------- bits */

static struct real_result
run (const char *words)
{
  return weft_test_run (&(struct real_run){ .words = words, .steps = 2, .poison = TRUE });
}

static void
offload_policy_gives_the_bits_of_one_rank (void **state)
{
#define NANO MODEL "topology=cpu global_batch_size=4 "
  static const char *const types[] = { "precision=fp32 ", "precision=bf16 ",
                                       "precision=bf16 mp_policy_reduce_dtype=bf16 " };
  static const char *const words[] = {
    NANO OFF "gpus=2 ",
    NANO OFF EACH "gpus=2 ",
    NANO UNPINNED EACH "gpus=2 share_embeddings_and_output_weights=true ",
    NANO OFF "gpus=2 share_embeddings_and_output_weights=true ",
    NANO OFF EACH "gpus=4 dp_replicate_size=2 ",
    NANO UNPINNED "gpus=4 pipeline_model_parallel_size=2 "
                  "share_embeddings_and_output_weights=true ",
    NANO OFF EACH "gpus=2 recompute_granularity=full recompute_method=uniform "
                  "recompute_num_layers=1 enable_fsdp2_prefetch=true ",
  };

  (void) state;
  for (unsigned i = 0; i < G_N_ELEMENTS (words); i++)
    for (unsigned t = 0; t < G_N_ELEMENTS (types); t++) {
      g_autofree char *many = g_strconcat (words[i], types[t], NULL);
      g_autofree char *one =
          g_strconcat (many,
                       "gpus=1 dp_replicate_size=1 pipeline_model_parallel_size=1 "
                       "recompute_granularity=none recompute_method=none "
                       "recompute_num_layers=none offload_policy=none "
                       "offload_policy_pin_memory=true",
                       NULL);
      struct real_result a = run (many), b = run (one);
      if (!weft_test_same_bits (&a, &b, 2))
        fail_msg ("%s: loss %.17g norm %.17g, of one rank %.17g and %.17g", many, a.loss[1],
                  a.norm[1], b.loss[1], b.norm[1]);
    }
}

static const struct CMUnitTest tests[] = {
  cmocka_unit_test (offload_policy_keeps_sixteen_bytes_over_the_ranks_on_the_host),
  cmocka_unit_test (without_offload_policy_nothing_lies_on_the_host),
  cmocka_unit_test (layers_take_the_room_for_pieces_in_turn),
  cmocka_unit_test (each_gather_follows_copies_of_its_pieces),
  cmocka_unit_test (copies_of_weights_lie_on_the_stream_of_copy_ins),
  cmocka_unit_test (gradients_leave_piece_by_piece_once_they_are_reduced),
  cmocka_unit_test (the_next_reduction_follows_gradients_that_leave),
  cmocka_unit_test (gradients_that_the_host_adds_are_waited_for),
  cmocka_unit_test (offload_policy_pin_memory_off_makes_every_copy_waited_for),
  cmocka_unit_test (offload_policy_pin_memory_moves_no_bytes),
  cmocka_unit_test (the_end_of_backward_waits_for_all_gradients),
  cmocka_unit_test (the_update_runs_on_the_host),
  cmocka_unit_test (a_tied_embedding_meets_on_the_device),
  cmocka_unit_test (an_edge_less_between_copies_and_who_uses_them_is_refused),
  cmocka_unit_test (offload_policy_gives_the_bits_of_one_rank),
};

WEFT_TESTS (tests)
