/* Selective recompute and activation_checkpointing: which kernels run twice, and which activations
 * live from a forward pass to its backward. */
#include "tests/made.h"
#include "tests/random_job.h"

#define LAYERS 4
#define MODEL                                                                                      \
  "num_layers=4 hidden_size=64 num_attention_heads=4 ffn_hidden_size=256 vocab_size=512 "          \
  "seq_length=64 topology=dgx-h100 precision=bf16 gpus=2 global_batch_size=4 "
#define SELECTIVE MODEL "recompute_granularity=selective "
#define TOKENS 64
#define X (2 * TOKENS * 64) /* bytes of one activation of the model's width */
#define U (2 * TOKENS * 256)

/* Kernels of a layer and microbatch that are run again, in order: "norm2 fc1 gelu". */
static char *
again (const weft_program *p, uint32_t layer, uint32_t micro)
{
  GString *names = g_string_new (NULL);

  for (uint32_t op = 0; op < p->n_op; op++) {
    const struct weft_op *row = &p->op[op];
    gboolean flagged = (row->flags & WEFT_OP_RECOMPUTE) != 0;
    if (row->lane != WEFT_LANE_GPU || row->layer != layer || row->micro != micro)
      continue;
    assert_int_equal (flagged, row->phase == WEFT_PHASE_RECOMPUTE);
    if (flagged)
      g_string_append_printf (names, "%s%s", names->len ? " " : "", p->name[row->name]);
  }
  return g_string_free (names, FALSE);
}

/* Bytes of a layer and microbatch that are made by forward and read by backward. */
static uint64_t
kept (const weft_program *p, uint32_t layer, uint32_t micro)
{
  uint64_t sum = 0;

  for (uint32_t i = 0; i < p->n_buf; i++) {
    const struct weft_buf *b = &p->buf[i];
    if (b->base != WEFT_NO_BUF || b->permanent || b->layer != layer || b->micro != micro ||
        b->kind != WEFT_BUF_ACTIVATIONS || b->first == WEFT_NO_OP)
      continue;
    if (p->op[b->first].phase == WEFT_PHASE_FORWARD && p->op[b->last].phase != WEFT_PHASE_FORWARD)
      sum += b->bytes;
  }
  return sum;
}

static void
check (const char *words, const char *wanted_again, uint64_t wanted_kept)
{
  g_autoptr (weft_plan) plan = weft_test_plan ("%s", words);
  const weft_program *p = plan->role[0];

  for (uint32_t layer = 0; layer < LAYERS; layer++)
    for (uint32_t micro = 0; micro < 2; micro++) {
      g_autofree char *found = again (p, layer, micro);
      assert_string_equal (found, wanted_again);
      /* The last layer's output is the final norm's to keep: the layer's own label is on it. */
      assert_int_equal (kept (p, layer, micro), wanted_kept);
    }
}

/* n1, qkv (3), o, lse, x1, n2, u, a, and the output, which the next layer keeps as its x. */
#define LSE (4 * TOKENS * 4)
#define ALL (X + 3 * X + X + LSE + X + X + U + U + X)

static void
recompute_modules_say_what_is_run_again_and_no_longer_kept (void **state)
{
  (void) state;
  check (MODEL, "", ALL);
  check (SELECTIVE, "", ALL);
  check (SELECTIVE "recompute_modules=core_attn", "", ALL);
  check (SELECTIVE "recompute_modules=mlp", "norm2 fc1 gelu", ALL - X - 2 * U);
  check (SELECTIVE "recompute_modules=layernorm", "norm2 norm1", ALL - 2 * X);
  check (SELECTIVE "recompute_modules=mlp,layernorm", "norm2 fc1 gelu norm1", ALL - 2 * X - 2 * U);
}

static void
recompute_granularity_full_and_none_are_what_they_were (void **state)
{
  static const char whole[] =
      "norm1 qkv rope attention proj residual1 norm2 fc1 gelu fc2 residual2";

  (void) state;
  check (MODEL "recompute_granularity=full recompute_method=uniform recompute_num_layers=1", whole,
         X);
}

static void
activation_checkpointing_is_full_recompute_of_each_layer (void **state)
{
  g_autoptr (weft_plan) a = weft_test_plan (MODEL "activation_checkpointing=true");
  g_autoptr (weft_plan) b = weft_test_plan (
      MODEL "recompute_granularity=full recompute_method=uniform recompute_num_layers=1");
  g_autofree char *one = weft_program_print (a->role[0]), *other = weft_program_print (b->role[0]);

  (void) state;
  assert_string_equal (one, other);
}

/* The unit is whole already: one gather serves the MLP that is run again and the backward. */
static void
activation_checkpointing_of_units_is_that_of_the_mlp (void **state)
{
  static const char units[] = MODEL "use_megatron_fsdp=true zero_dp_strategy=3 ";
  g_autoptr (weft_plan) plain = weft_test_plan ("%s", units);
  g_autoptr (weft_plan) plan = weft_test_plan ("%sactivation_checkpointing=true", units);
  uint32_t gathers[2] = { 0 };

  (void) state;
  for (int i = 0; i < 2; i++) {
    const weft_program *p = (i ? plan : plain)->role[0];
    for (uint32_t op = 0; op < p->n_op; op++)
      gathers[i] += p->op[op].kind == WEFT_OP_ALL_GATHER;
  }
  assert_int_equal (gathers[0], gathers[1]);
  g_autofree char *found = again (plan->role[0], 1, 0);
  assert_string_equal (found, "norm2 fc1 gelu");
}

/* Less kept, more run. */
static void
recompute_trades_memory_for_time (void **state)
{
  static const char wide[] =
      MODEL "hidden_size=2048 num_attention_heads=16 ffn_hidden_size=8192 seq_length=2048 ";
  g_autoptr (weft_plan) none = weft_test_plan ("%s", wide);
  g_autoptr (weft_plan) mlp =
      weft_test_plan ("%srecompute_granularity=selective recompute_modules=mlp", wide);
  g_autoptr (weft_plan) full = weft_test_plan ("%sactivation_checkpointing=true", wide);
  const weft_plan *plans[] = { none, mlp, full };
  double seconds[3];

  (void) state;
  for (int i = 0; i < 3; i++) {
    g_autoptr (weft_timeline) t = made_run (plans[i]);
    seconds[i] = t->seconds;
  }
  assert_true (seconds[0] < seconds[1] && seconds[1] < seconds[2]);
  assert_true (none->memory[0].live[WEFT_POOL_DEVICE] > mlp->memory[0].live[WEFT_POOL_DEVICE]);
  assert_true (mlp->memory[0].live[WEFT_POOL_DEVICE] > full->memory[0].live[WEFT_POOL_DEVICE]);
}

int
main (void)
{
  const struct CMUnitTest tests[] = {
    cmocka_unit_test (recompute_modules_say_what_is_run_again_and_no_longer_kept),
    cmocka_unit_test (recompute_granularity_full_and_none_are_what_they_were),
    cmocka_unit_test (activation_checkpointing_is_full_recompute_of_each_layer),
    cmocka_unit_test (activation_checkpointing_of_units_is_that_of_the_mlp),
    cmocka_unit_test (recompute_trades_memory_for_time),
  };
  return cmocka_run_group_tests (tests, NULL, NULL);
}
