/* fp16 and loss scaling: rounding to fp16, the ops that scale and unscale, how all ranks skip a
 * step that overflows, and how the scale adapts. */
#include "exec_cpu/exec_cpu.h"
#include "kernels/float.h"
#include "kernels/math.h"
#include "tests/runner/command.h"
#include "tests/runner/folder.h"
#include "tests/made/nano.h"
#include "tests/made/own.h"
#include "tests/made/questions.h"
#include "tests/made/real_job.h"
#include "tests/made/real_run.h"
#include "train/loss_scale.h"
#include "tests/runner/runner.h"
#include <json-glib/json-glib.h>

#define NANO "model=gpt2-nano topology=dgx-h100 gpus=8 global_batch_size=16 precision=fp16 "
#define SMALL                                                                                      \
  "topology=cpu model=gpt2-nano num_layers=4 hidden_size=24 kv_channels=6 ffn_hidden_size=40 "     \
  "seq_length=16 global_batch_size=8 "

/* ----------------------------------------------------------------------- the type */

static void
every_half_is_a_float_and_rounds_to_itself (void **state)
{
  (void) state;
  for (uint32_t h = 0; h < 0x10000; h++) {
    float f = weft_fp16_float ((uint16_t) h);
    int exponent = (int) (h >> 10 & 31), mantissa = (int) (h & 1023);
    double size = exponent ? ldexp (1024 + mantissa, exponent - 25) : ldexp (mantissa, -24);
    if (exponent == 31)
      assert_true (mantissa ? isnan (f) : isinf (f) && !signbit (f) == !(h >> 15));
    else
      assert_true ((double) f == (h >> 15 ? -size : size));
    if (!isnan (f))
      assert_int_equal (weft_fp16_round (f), h);
  }
}

static void
floats_between_two_halves_round_to_the_nearer_and_ties_to_even (void **state)
{
  (void) state;
  for (uint32_t h = 0; h + 1 < 0x7c00; h++) {
    float below = weft_fp16_float ((uint16_t) h), above = weft_fp16_float ((uint16_t) (h + 1));
    /* `middle` is exact in fp32, which has 13 more mantissa bits than fp16. */
    float middle = (below + above) / 2;
    assert_int_equal (weft_fp16_round (nextafterf (middle, 0)), h);
    assert_int_equal (weft_fp16_round (middle), h & 1 ? h + 1 : h);
    assert_int_equal (weft_fp16_round (nextafterf (middle, INFINITY)), h + 1);
    assert_int_equal (weft_fp16_round (-middle), 0x8000 | (h & 1 ? h + 1 : h));
  }
  assert_int_equal (weft_fp16_round (nextafterf (65520, 0)), 0x7bff);
  assert_int_equal (weft_fp16_round (65520), 0x7c00);
  assert_int_equal (weft_fp16_round (INFINITY), 0x7c00);
  assert_int_equal (weft_fp16_round (-INFINITY), 0xfc00);
  assert_true ((weft_fp16_round (NAN) & 0x7fff) > 0x7c00);
}

/* Loops that round whole arrays must give the same result as the function that rounds one number.
 * The values cover every exponent and every rounding boundary: the lowest 14 bits of an fp32
 * number, near 0 and near the middle, decide the rounding to fp16; for bf16 the lowest 17 bits. */
static void
stretches_are_rounded_as_one_float_is (void **state)
{
  enum { N = WEFT_STRETCH - 5 };
  static const uint32_t low[] = { 0,      1,      0xfff,  0x1000, 0x1001,
                                  0x1fff, 0x2000, 0x7fff, 0x8000, 0x8001 };
  float value[N], halves[N], brains[N];
  uint16_t half[N], brain[N];

  (void) state;
  for (uint64_t next = 0; next < 0x10000 * G_N_ELEMENTS (low);) {
    for (uint32_t i = 0; i < N; i++, next++)
      value[i] = weft_bits_float ((uint32_t) (next / G_N_ELEMENTS (low)) << 16 |
                                  low[next % G_N_ELEMENTS (low)]);
    weft_store (half, WEFT_FP16, 0, N, value);
    weft_store (brain, WEFT_BF16, 0, N, value);
    weft_round (WEFT_FP16, N, memcpy (halves, value, sizeof value));
    weft_round (WEFT_BF16, N, memcpy (brains, value, sizeof value));
    for (uint32_t i = 0; i < N; i++) {
      float one[] = { weft_fp16_float (half[i]), weft_bf16_float (brain[i]) };
      assert_int_equal (half[i], weft_fp16_round (value[i]));
      assert_int_equal (brain[i], weft_bf16_round (value[i]));
      assert_memory_equal (&halves[i], &one[0], sizeof *one);
      assert_memory_equal (&brains[i], &one[1], sizeof *one);
    }
  }
}

/* -------------------------------------------------------------------- the program */

static void
the_loss_is_scaled_in_every_microbatch_on_the_last_stage (void **state)
{
  g_autoptr (weft_plan) plan = weft_test_plan (NANO "pipeline_model_parallel_size=2");
  g_autoptr (weft_plan) plain = weft_test_plan (NANO "precision=bf16");

  (void) state;
  assert_int_equal (count_kind (plan->role[0], WEFT_OP_SCALE_LOSS), 0);
  assert_int_equal (count_kind (plan->role[1], WEFT_OP_SCALE_LOSS), 4);
  assert_int_equal (count_kind (plain->role[0], WEFT_OP_SCALE_LOSS), 0);
  const weft_program *p = plan->role[1];
  for (uint32_t i = 0; i < 4; i++) {
    uint32_t scale = nth (p, WEFT_OP_SCALE_LOSS, "grad_scale_func", i);
    uint32_t loss = nth (p, WEFT_OP_XENT_GRAD, "loss", i);
    assert_true (comes_after (p, scale, loss));
    assert_int_equal (p->uses[p->op[loss].uses + 3].buf, p->uses[p->op[scale].uses].buf);
  }
}

/* The order in which a step handles overflow: cast gradients to fp32, unscale them, all-reduce
 * found_inf (maximum over ranks), copy it to the host, then norm and update. */
static void
gradients_are_divided_before_anybody_looks_at_them (void **state)
{
  static const struct {
    const char *words;
    enum weft_group_kind group;
  } jobs[] = {
    { NANO "pipeline_model_parallel_size=2 overlap_grad_reduce=true bucket_size=50000",
      WEFT_GROUP_MP },
    { NANO "use_distributed_optimizer=true", WEFT_GROUP_WORLD },
    { NANO "use_megatron_fsdp=true zero_dp_strategy=3", WEFT_GROUP_WORLD },
  };

  (void) state;
  for (unsigned j = 0; j < G_N_ELEMENTS (jobs); j++) {
    g_autoptr (weft_program) p = built (jobs[j].words, 0);
    uint32_t n = n_buckets (p), asked = nth (p, WEFT_OP_ALL_REDUCE, "found_inf", 0);
    uint32_t told = nth (p, WEFT_OP_COPY_OUT, "found_inf", 0);
    assert_int_equal (count_kind (p, WEFT_OP_UNSCALE), n);
    assert_int_equal (p->op[asked].group, jobs[j].group);
    assert_int_equal (p->op[asked].reduce, WEFT_REDUCE_MAX);
    assert_true (weft_op_bytes (p, asked) == 4);
    assert_true (comes_after (p, asked, told));
    for (uint32_t k = 0; k < n; k++) {
      uint32_t unscale = nth (p, WEFT_OP_UNSCALE, "unscale", k);
      assert_int_equal (weft_op_shape (p, unscale)->dtype, WEFT_FP32);
      assert_true (comes_after (p, nth (p, WEFT_OP_CAST, "grad_fp32", k), unscale));
      assert_true (comes_after (p, unscale, asked));
    }
    for (uint32_t i = 0; i < count (p, WEFT_OP_GRAD_NORM, "grad_norm"); i++)
      assert_true (comes_after (p, told, nth (p, WEFT_OP_GRAD_NORM, "grad_norm", i)));
    for (uint32_t i = 0; i < count (p, WEFT_OP_ADAM, "adam"); i++)
      assert_true (comes_after (p, told, nth (p, WEFT_OP_ADAM, "adam", i)));
  }
}

static void
without_clip_grad_a_step_that_overflows_is_skipped_all_the_same (void **state)
{
  g_autoptr (weft_program) p = built (NANO "clip_grad=0 pipeline_model_parallel_size=2", 0);
  uint32_t clip = nth (p, WEFT_OP_CLIP, "clip", 0);

  (void) state;
  assert_int_equal (count_kind (p, WEFT_OP_GRAD_NORM), 0);
  assert_int_equal (p->uses[p->op[clip].uses].buf, WEFT_NO_BUF);
  assert_true (comes_after (p, clip, nth (p, WEFT_OP_ADAM, "adam", 0)));
  assert_int_equal (count (p, WEFT_OP_ALL_REDUCE, "update_successful"), 1);
  assert_int_equal (count (p, WEFT_OP_ALL_REDUCE, "largest_norm"), 0);
}

static void
check_for_nan_in_grad_is_off_with_a_dynamic_scale (void **state)
{
  g_autoptr (weft_program) dynamic = built (NANO "check_for_nan_in_grad=true", 0);
  g_autoptr (weft_program) fixed = built (NANO "check_for_nan_in_grad=true loss_scale=1024", 0);

  (void) state;
  assert_int_equal (count_kind (dynamic, WEFT_OP_BUCKET_NORM), 0);
  assert_int_equal (count_kind (fixed, WEFT_OP_BUCKET_NORM), 1);
}

static void
fp16_gradients_may_be_divided_in_the_sum (void **state)
{
#define FUSED "use_megatron_fsdp=true zero_dp_strategy=2"
  g_autoptr (weft_program) half = built (NANO FUSED, 0);
  g_autoptr (weft_program) brain = built (NANO FUSED " precision=bf16", 0);

  (void) state;
  assert_int_equal (count (half, WEFT_OP_SCALE, "scale"), 0);
  assert_true (count (brain, WEFT_OP_SCALE, "scale") > 0);
}

/* -------------------------------------------------------------------- real numbers */

/* A loss scale that is a power of two changes only exponents, and unscaling restores them. So every
 * bit of the weights must be that of a run without loss scale. */
static void
a_power_of_two_leaves_every_bit_where_it_is (void **state)
{
  static const char *const scales[] = { "0.125", "1", "65536", "1099511627776" };
  struct real_result plain = weft_test_run (&(struct real_run){ SMALL "precision=fp32", 3 });

  (void) state;
  for (unsigned i = 0; i < G_N_ELEMENTS (scales); i++) {
    g_autofree char *words =
        g_strconcat (SMALL "precision=fp32 gpus=2 loss_scale=", scales[i], NULL);
    struct real_result scaled = weft_test_run (&(struct real_run){ words, 3 });
    assert_true (weft_test_same_bits (&plain, &scaled, 3));
  }
}

static void
fp16_learns_what_bf16_learns (void **state)
{
  struct real_result half = weft_test_run (&(struct real_run){ SMALL "precision=fp16", 6 });
  struct real_result brain = weft_test_run (&(struct real_run){ SMALL "precision=bf16", 6 });

  (void) state;
  for (int i = 0; i < 6; i++)
    assert_true (fabs (half.loss[i] - brain.loss[i]) < 0.01 * brain.loss[i]);
}

static const char *const strategies[] = {
  "gpus=1",
  "gpus=8",
  "gpus=4 pipeline_model_parallel_size=4",
  "gpus=4 use_distributed_optimizer=true overlap_grad_reduce=true overlap_param_gather=true "
  "bucket_size=3000",
  "gpus=8 pipeline_model_parallel_size=2 use_megatron_fsdp=true zero_dp_strategy=3 "
  "num_distributed_optimizer_instances=2 outer_dp_sharding_strategy=optim",
  "gpus=2 distributed_config=ddp",
};

/* Results of a run: the loss scale and gradient norm of each step, and a hash of weights and
 * moments at the end. */
struct history {
  double scale[12];
  gboolean skipped[12];
  double norm[12];
  uint64_t weights, moments;
};

static void
run_scaled (const char *strategy, const char *more, struct history *h)
{
  g_autofree char *words = g_strdup_printf (SMALL "precision=fp16 %s %s", strategy, more);
  const struct weft_exec_options how = { .own = made_own (&weft_exec_cpu, "poison") };
  g_autoptr (real_job) job = real_job_open (words, &how);
  struct weft_loss_scale scale = weft_loss_scale_start (&job->plan->job);

  weft_state_init (job->state, 5);
  for (int i = 0; i < 12; i++) {
    uint64_t before = real_hash (job->state, WEFT_STATE_MASTER);
    h->scale[i] = job->control.loss_scale = scale.scale;
    const struct weft_metrics *m = real_job_step (job);
    h->skipped[i] = m->skipped;
    h->norm[i] = m->skipped ? 0 : m->grad_norm;
    for (uint32_t row = 0; row < job->x->actors->n; row++)
      assert_true (job->x->metrics[row].skipped == m->skipped);
    assert_true ((real_hash (job->state, WEFT_STATE_MASTER) == before) == m->skipped);
    job->control.step -= m->skipped != FALSE;
    weft_loss_scale_update (&scale, &job->plan->job, m->skipped);
  }
  h->weights =
      real_hash (job->state, WEFT_STATE_WEIGHT) ^ real_hash (job->state, WEFT_STATE_MASTER);
  h->moments =
      real_hash (job->state, WEFT_STATE_EXP_AVG) ^ real_hash (job->state, WEFT_STATE_EXP_AVG_SQ);
}

static void
a_scale_that_overflows_is_halved_until_it_fits_whatever_the_strategy (void **state)
{
  static const char *const more[] = { "initial_loss_scale=16777216",
                                      "clip_grad=0 hysteresis=1 initial_loss_scale=16777216" };

  (void) state;
  for (unsigned w = 0; w < G_N_ELEMENTS (more); w++) {
    struct history one, other;
    unsigned skips = 0;
    run_scaled (strategies[0], more[w], &one);
    for (int i = 0; i < 12; i++)
      skips += one.skipped[i];
    assert_in_range (skips, 1, 11);
    assert_true (one.skipped[0] && !one.skipped[11]);
    assert_true (one.scale[11] < 16777216);
    for (unsigned s = 1; s < G_N_ELEMENTS (strategies); s++) {
      run_scaled (strategies[s], more[w], &other);
      assert_memory_equal (one.scale, other.scale, sizeof one.scale);
      assert_memory_equal (one.skipped, other.skipped, sizeof one.skipped);
      if (w == 0)
        assert_memory_equal (one.norm, other.norm, sizeof one.norm);
      assert_true (one.weights == other.weights && one.moments == other.moments);
    }
  }
}

/* ----------------------------------------------------------------------- the scale */

static void
assert_scale (const struct weft_loss_scale *s, double scale, uint64_t good, uint64_t hysteresis)
{
  assert_true (s->scale == scale);
  assert_int_equal (s->good, good);
  assert_int_equal (s->hysteresis, hysteresis);
}

static void
the_scale_falls_after_its_hysteresis_and_doubles_after_its_window (void **state)
{
  struct weft_job job;
  struct weft_loss_scale s;

  (void) state;
  assert_true (weft_test_job (NANO "loss_scale_window=3 initial_loss_scale=64 min_loss_scale=16",
                              &job, NULL));
  s = weft_loss_scale_start (&job);
  assert_scale (&s, 64, 0, 2);
  /* hysteresis = 2: the first overflow keeps the scale and leaves a hysteresis of 1; the second
   * overflow halves the scale */
  weft_loss_scale_update (&s, &job, TRUE);
  assert_scale (&s, 64, 0, 1);
  weft_loss_scale_update (&s, &job, FALSE);
  weft_loss_scale_update (&s, &job, TRUE);
  assert_scale (&s, 32, 0, 0);
  /* the hysteresis is used up, so the next overflow halves the scale at once */
  weft_loss_scale_update (&s, &job, TRUE);
  assert_scale (&s, 16, 0, 0);
  /* the scale is at min_loss_scale and must not fall further */
  weft_loss_scale_update (&s, &job, TRUE);
  assert_scale (&s, 16, 0, 0);
  assert_false (weft_loss_scale_can_fall (&s, &job));
  for (int i = 0; i < 2; i++)
    weft_loss_scale_update (&s, &job, FALSE);
  assert_scale (&s, 16, 2, 0);
  weft_loss_scale_update (&s, &job, FALSE);
  assert_scale (&s, 32, 0, 2);
}

static void
a_scale_that_is_given_stays (void **state)
{
  struct weft_job job, plain;
  struct weft_loss_scale s, none;

  (void) state;
  assert_true (weft_test_job (NANO "loss_scale=4096", &job, NULL));
  s = weft_loss_scale_start (&job);
  for (int i = 0; i < 5; i++)
    weft_loss_scale_update (&s, &job, i < 3);
  assert_true (s.scale == 4096);
  assert_true (weft_test_job (NANO "precision=bf16", &plain, NULL));
  none = weft_loss_scale_start (&plain);
  assert_true (none.scale == 0 && !weft_job_scales_loss (&plain));
  assert_true (weft_test_job (NANO "precision=bf16 grad_scale_func=loss_scale", &plain, NULL));
  assert_true (weft_job_scales_dynamically (&plain));
  assert_true (weft_loss_scale_start (&plain).scale == 4294967296.0);
}

/* ---------------------------------------------------------------------- weft train */

/* Runs `weft train --json` and returns the lines of its output; fails unless the exit status is
 * 0. */
static GPtrArray *
train (const char *words, ...)
{
  GPtrArray *lines = g_ptr_array_new_with_free_func ((GDestroyNotify) json_object_unref);
  va_list args;

  va_start (args, words);
  g_autofree char *all = g_strdup_vprintf (words, args);
  va_end (args);
  g_autofree char *line =
      g_strconcat ("train --model gpt2-nano --num-layers 2 --hidden-size 32 "
                   "--ffn-hidden-size 64 --seq-length 32 --global-batch-size 4 --precision fp16 "
                   "--data " WEFT_SOURCE_DIR "/README.md --json ",
                   all, NULL);
  struct answer a = weft_test_answer (line);
  if (a.status != 0)
    fail_msg ("weft %s: status %d\n%s", line, a.status, a.err);
  g_auto (GStrv) texts = g_strsplit (a.out, "\n", -1);
  for (unsigned i = 0; texts[i] && *texts[i]; i++) {
    g_autoptr (JsonNode) node = json_from_string (texts[i], NULL);
    g_ptr_array_add (lines, json_node_dup_object (node));
  }
  weft_test_answer_free (&a);
  return lines;
}

static double
real (const GPtrArray *lines, unsigned i, const char *member)
{
  assert_in_range (i, 0, lines->len - 1);
  return json_object_get_double_member (lines->pdata[i], member);
}

/* The loss scale begins at 2^32, far too high, so that many steps are skipped, more than may be
 * skipped in a row without loss scaling. Other ranks then resume the run with the scale that was
 * found. */
static void
a_run_finds_its_scale_and_goes_on_with_it_under_another_strategy (void **folder)
{
  g_autofree char *dir = g_build_filename (*folder, "half", NULL);
  g_autoptr (GPtrArray) whole = train ("--steps 30 --hysteresis 1 --loss-scale-window 4");
  g_autoptr (GPtrArray) first =
      train ("--steps 21 --hysteresis 1 --loss-scale-window 4 --gpus 2 --save %s", dir);
  g_autoptr (GPtrArray) rest = train ("--steps 30 --hysteresis 1 --loss-scale-window 4 --gpus 4 "
                                      "--use-distributed-optimizer --load %s",
                                      dir);
  unsigned updates = 0;

  assert_true (real (whole, 0, "loss_scale") == 4294967296.0);
  assert_true (json_object_get_boolean_member (whole->pdata[0], "skipped"));
  assert_true (real (whole, 1, "loss_scale") == 2147483648.0);
  for (unsigned i = 0; i < 30; i++) {
    const GPtrArray *part = i < 21 ? first : rest;
    unsigned at = i < 21 ? i : i - 21;
    assert_true (real (part, at, "loss") == real (whole, i, "loss"));
    assert_true (real (part, at, "loss_scale") == real (whole, i, "loss_scale"));
    updates += !json_object_get_boolean_member (whole->pdata[i], "skipped");
  }
  assert_in_range (updates, 5, 25);
  assert_true (real (whole, 29, "loss") < real (whole, 0, "loss"));
}

static const struct CMUnitTest tests[] = {
  cmocka_unit_test (every_half_is_a_float_and_rounds_to_itself),
  cmocka_unit_test (floats_between_two_halves_round_to_the_nearer_and_ties_to_even),
  cmocka_unit_test (stretches_are_rounded_as_one_float_is),
  cmocka_unit_test (the_loss_is_scaled_in_every_microbatch_on_the_last_stage),
  cmocka_unit_test (gradients_are_divided_before_anybody_looks_at_them),
  cmocka_unit_test (without_clip_grad_a_step_that_overflows_is_skipped_all_the_same),
  cmocka_unit_test (check_for_nan_in_grad_is_off_with_a_dynamic_scale),
  cmocka_unit_test (fp16_gradients_may_be_divided_in_the_sum),
  cmocka_unit_test (a_power_of_two_leaves_every_bit_where_it_is),
  cmocka_unit_test (fp16_learns_what_bf16_learns),
  cmocka_unit_test (a_scale_that_overflows_is_halved_until_it_fits_whatever_the_strategy),
  cmocka_unit_test (the_scale_falls_after_its_hysteresis_and_doubles_after_its_window),
  cmocka_unit_test (a_scale_that_is_given_stays),
  cmocka_unit_test_setup_teardown (
      a_run_finds_its_scale_and_goes_on_with_it_under_another_strategy, weft_test_folder_make,
      weft_test_folder_remove),
};

WEFT_TESTS (tests)
