/* The state of a job as global tensors: under every strategy, a tensor has the same value, and
 * each element is owned by one rank. */
#include "core/program/segment.h"
#include "kernels/float.h"
#include "tests/made/paper_exec.h"
#include "tests/runner/runner.h"
#include <math.h>

#define TIED "model=gpt2-nano precision=bf16"
#define UNTIED "model=llama-nano precision=bf16 grad_reduce_in_fp32=false"
#define FP32 "model=gpt2-nano precision=fp32"

static const char *const models[] = { TIED, UNTIED, FP32 };

static uint32_t
find (const weft_state *state, const char *name)
{
  for (uint32_t i = 0; i < weft_state_count (state); i++)
    if (g_str_equal (weft_state_at (state, i)->name, name))
      return i;
  fail_msg ("there is no tensor %s", name);
  return 0;
}

static void
a_model_has_the_same_tensors_in_model_order_under_every_strategy (void **unused)
{
  (void) unused;
  for (unsigned m = 0; m < G_N_ELEMENTS (models); m++)
    for (unsigned l = 0; l < G_N_ELEMENTS (paper_layouts); l++) {
      struct paper_job one = paper_job_open (models[m], "gpus=1");
      struct paper_job j = paper_job_open (models[m], paper_layouts[l]);
      uint64_t elements = 0;
      assert_int_equal (weft_state_count (j.state), weft_state_count (one.state));
      for (uint32_t i = 0; i < weft_state_count (j.state); i++) {
        assert_string_equal (weft_state_at (j.state, i)->name, weft_state_at (one.state, i)->name);
        elements += paper_elements (j.state, i);
      }
      assert_string_equal (weft_state_at (j.state, 0)->name, "embedding.weight");
      assert_int_equal (elements, weft_model_parameters (&j.plan->job.model));
      paper_job_close (&j);
      paper_job_close (&one);
    }
}

static void
new_weights_do_not_depend_on_the_strategy (void **unused)
{
  (void) unused;
  for (unsigned m = 0; m < G_N_ELEMENTS (models); m++) {
    struct paper_job one = paper_job_open (models[m], "gpus=1");
    weft_state_init (one.state, 7);
    for (unsigned l = 0; l < G_N_ELEMENTS (paper_layouts); l++) {
      struct paper_job j = paper_job_open (models[m], paper_layouts[l]);
      weft_state_init (j.state, 7);
      for (int kind = 0; kind < WEFT_STATE_GRAD; kind++)
        paper_assert_equal (j.state, one.state, kind);
      paper_job_close (&j);
    }
    paper_job_close (&one);
  }
}

struct moments {
  double mean, deviation;
};

static struct moments
measure (weft_state *state, const char *name)
{
  uint32_t i = find (state, name);
  uint64_t n = paper_elements (state, i);
  g_autofree float *value = paper_tensor (state, i, WEFT_STATE_MASTER);
  double sum = 0, squares = 0;

  for (uint64_t e = 0; e < n; e++) {
    sum += value[e];
    squares += (double) value[e] * value[e];
  }
  return (struct moments){ sum / n, sqrt (squares / n - sum / n * sum / n) };
}

/* Checks the moments of n normal draws. Except once in ten thousand cases, their mean lies
 * within 4 / sqrt (n) standard deviations of 0, and their standard deviation within 4 / sqrt (2
 * n) of `deviation`, relatively. */
static void
assert_normal (weft_state *state, const char *name, double deviation)
{
  struct moments found = measure (state, name);
  double n = paper_elements (state, find (state, name));

  assert_true (fabs (found.mean) < 4 * deviation / sqrt (n));
  assert_true (fabs (found.deviation - deviation) < 4 * deviation / sqrt (2 * n));
}

static void
new_weights_have_the_moments_of_gpt2 (void **unused)
{
  struct paper_job j = paper_job_open (FP32, "gpus=1");

  (void) unused;
  weft_state_init (j.state, 1);
  assert_normal (j.state, "embedding.weight", 0.02);
  assert_normal (j.state, "position.weight", 0.02);
  assert_normal (j.state, "layers.3.qkv.weight", 0.02);
  assert_normal (j.state, "layers.7.fc1.weight", 0.02);
  assert_normal (j.state, "layers.0.proj.weight", 0.02 / sqrt (2 * 8));
  assert_normal (j.state, "layers.5.fc2.weight", 0.02 / sqrt (2 * 8));
  struct moments norm = measure (j.state, "final_norm.weight");
  struct moments bias = measure (j.state, "layers.2.fc1.bias");
  assert_true (norm.mean == 1 && norm.deviation == 0);
  assert_true (bias.mean == 0 && bias.deviation == 0);
  paper_job_close (&j);
}

/* Returns the number of elements that are equal in two tensors. */
static uint64_t
count_equal (weft_state *a, const char *name, weft_state *b, const char *other)
{
  uint32_t i = find (a, name), k = find (b, other);
  g_autofree float *x = paper_tensor (a, i, WEFT_STATE_MASTER);
  g_autofree float *y = paper_tensor (b, k, WEFT_STATE_MASTER);
  uint64_t equal = 0;

  for (uint64_t e = 0; e < paper_elements (a, i); e++)
    equal += x[e] == y[e];
  return equal;
}

static void
new_weights_depend_on_seed_and_tensor (void **unused)
{
  struct paper_job a = paper_job_open (FP32, "gpus=1"), b = paper_job_open (FP32, "gpus=1");

  (void) unused;
  weft_state_init (a.state, 1);
  weft_state_init (b.state, 2);
  assert_true (count_equal (a.state, "layers.0.fc1.weight", b.state, "layers.0.fc1.weight") < 8);
  assert_true (count_equal (a.state, "layers.0.fc1.weight", a.state, "layers.1.fc1.weight") < 8);
  paper_job_close (&a);
  paper_job_close (&b);
}

static void
new_weights_in_bf16_are_rounded_masters_and_moments_are_zero (void **unused)
{
  struct paper_job j = paper_job_open (TIED, paper_layouts[8]);

  (void) unused;
  weft_state_init (j.state, 3);
  for (uint32_t i = 0; i < weft_state_count (j.state); i++) {
    g_autofree float *weight = paper_tensor (j.state, i, WEFT_STATE_WEIGHT);
    g_autofree float *master = paper_tensor (j.state, i, WEFT_STATE_MASTER);
    g_autofree float *m = paper_tensor (j.state, i, WEFT_STATE_EXP_AVG);
    g_autofree float *v = paper_tensor (j.state, i, WEFT_STATE_EXP_AVG_SQ);
    for (uint64_t e = 0; e < paper_elements (j.state, i); e++) {
      assert_true (weight[e] == weft_bf16_float (weft_bf16_round (master[e])));
      assert_true (m[e] == 0 && v[e] == 0);
    }
  }
  paper_job_close (&j);
}

/* --------------------------------------------------------------- who holds what */

static void
what_is_written_is_read_under_every_strategy (void **unused)
{
  (void) unused;
  for (unsigned m = 0; m < G_N_ELEMENTS (models); m++) {
    struct paper_job one = paper_job_open (models[m], "gpus=1");
    paper_fill (one.state, 0);
    for (unsigned l = 0; l < G_N_ELEMENTS (paper_layouts); l++) {
      struct paper_job j = paper_job_open (models[m], paper_layouts[l]);
      paper_fill (j.state, 0);
      for (int kind = 0; kind < WEFT_N_STATE_KIND; kind++)
        paper_assert_equal (j.state, one.state, kind);
      paper_job_close (&j);
    }
    paper_job_close (&one);
  }
}

static void
pieces_of_a_tensor_are_read_and_written_alone (void **unused)
{
  struct paper_job j = paper_job_open (UNTIED, paper_layouts[8]);
  uint32_t i = find (j.state, "layers.4.fc1.weight");
  uint64_t n = paper_elements (j.state, i);

  (void) unused;
  paper_fill (j.state, 0);
  g_autofree float *wanted = paper_tensor (j.state, i, WEFT_STATE_EXP_AVG);
  for (uint64_t first = 0, count = 1; first < n; first += count, count = count * 3 + 1) {
    float new[3] = { 1, 2, 3 }, found[3];
    uint64_t few = MIN (3, n - first);
    weft_state_write (j.state, i, WEFT_STATE_EXP_AVG, first, few, new);
    memcpy (wanted + first, new, few * sizeof *new);
    weft_state_read (j.state, i, WEFT_STATE_EXP_AVG, first, few, found);
    assert_memory_equal (found, new, few * sizeof *new);
  }
  g_autofree float *all = paper_tensor (j.state, i, WEFT_STATE_EXP_AVG);
  assert_memory_equal (all, wanted, n * sizeof *all);
  paper_job_close (&j);
}

static void
a_model_in_fp32_has_its_weights_as_masters (void **unused)
{
  struct paper_job j = paper_job_open (FP32, paper_layouts[8]);

  (void) unused;
  paper_fill (j.state, 0);
  for (uint32_t i = 0; i < weft_state_count (j.state); i++) {
    g_autofree float *weight = paper_tensor (j.state, i, WEFT_STATE_WEIGHT);
    g_autofree float *master = paper_tensor (j.state, i, WEFT_STATE_MASTER);
    assert_memory_equal (weight, master, paper_elements (j.state, i) * sizeof *weight);
  }
  paper_job_close (&j);
}

/* Returns the parameter of a program with this tensor name and layer, or NULL. */
static const struct weft_param *
param_of (const weft_program *p, const char *name, uint32_t layer)
{
  for (uint32_t i = 0; i < p->n_param; i++)
    if (p->param[i].layer == layer && g_str_equal (p->name[p->param[i].name], name))
      return &p->param[i];
  return NULL;
}

/* Overwrites every copy of a weight with zeros, except on the rank that owns the weight. Between an
 * optimizer update and the all-gather, ranks hold old copies, which a state must not read. */
static void
spoil_weights_of_others (const struct paper_job *j, uint32_t i)
{
  const struct weft_state_tensor *t = weft_state_at (j->state, i);
  uint32_t size = weft_dtype_bytes (weft_state_dtype (j->state)), n_runs;
  const struct weft_state_run *run = weft_state_runs (j->state, i, &n_runs);

  for (uint32_t k = 0; k < n_runs; k++)
    for (uint32_t row = 0; row < j->x->actors->n; row++) {
      const weft_program *p = j->plan->role[j->x->actors->role[row]];
      const struct weft_param *param = param_of (p, t->param, t->layer);
      g_autofree uint8_t *waste = g_malloc0 (run[k].n * size);
      if (param && row != run[k].row)
        j->x->ops->write (j->x, row, param->weight, run[k].first * size, run[k].n * size, waste);
    }
}

static void
weights_are_read_from_the_rank_that_updates_them (void **unused)
{
  (void) unused;
  for (unsigned l = 0; l < G_N_ELEMENTS (paper_layouts); l++) {
    struct paper_job one = paper_job_open (TIED, "gpus=1");
    struct paper_job j = paper_job_open (TIED, paper_layouts[l]);
    paper_fill (one.state, 0);
    paper_fill (j.state, 0);
    for (uint32_t i = 0; i < weft_state_count (j.state); i++)
      spoil_weights_of_others (&j, i);
    paper_assert_equal (j.state, one.state, WEFT_STATE_WEIGHT);
    paper_job_close (&j);
    paper_job_close (&one);
  }
}

static void
writing_a_weight_reaches_every_rank_of_its_stages (void **unused)
{
  struct paper_job j = paper_job_open (TIED, paper_layouts[8]);
  uint32_t i = find (j.state, "embedding.weight");
  uint64_t n = paper_elements (j.state, i);

  (void) unused;
  paper_fill (j.state, 0);
  g_autofree float *wanted = paper_tensor (j.state, i, WEFT_STATE_WEIGHT);
  g_autofree uint16_t *found = g_new (uint16_t, n);
  for (uint32_t row = 0; row < 8; row++) {
    const weft_program *p = j.plan->role[row / 4];
    const char *name = row < 4 ? "embedding.weight" : "head.weight";
    uint32_t weight = param_of (p, name, WEFT_NO_LAYER)->weight;
    j.x->ops->read (j.x, row, weight, 0, 2 * n, found);
    for (uint64_t e = 0; e < n; e++)
      assert_true (weft_bf16_float (found[e]) == wanted[e]);
  }
  paper_job_close (&j);
}

/* The head of a tied embedding is a second copy of the weight, on the last stage, with its own
 * optimizer state. The test reads this state from the slices of the ranks of the stage. */
static void
the_head_s_copy_of_a_tied_embedding_has_its_own_optimizer_state (void **unused)
{
  struct paper_job j = paper_job_open (TIED, paper_layouts[8]);
  const weft_program *p = j.plan->role[1];
  const struct weft_param *head = param_of (p, "head.weight", WEFT_NO_LAYER);
  uint32_t i = find (j.state, "embedding.weight");
  uint64_t n = paper_elements (j.state, i), seen = 0;

  (void) unused;
  paper_fill (j.state, 0);
  g_autofree float *wanted = paper_tensor (j.state, i, WEFT_STATE_EXP_AVG_SQ);
  for (uint32_t place = 0; place < 4; place++) {
    uint32_t n_slice;
    g_autofree struct weft_slice *slice = weft_slices (p, &j.plan->mesh, place, &n_slice);
    for (uint32_t k = 0; k < n_slice; k++)
      for (uint64_t e = 0; e < slice[k].n; e++) {
        float found;
        uint64_t at = slice[k].first + e;
        if (at < head->start || at >= head->start + n)
          continue;
        j.x->ops->read (j.x, 4 + place, slice[k].v, 4 * e, 4, &found);
        assert_true (found == wanted[at - head->start]);
        seen++;
      }
  }
  assert_int_equal (seen, n);
  paper_job_close (&j);
}

static void
runs_cover_a_tensor_without_gaps (void **unused)
{
  (void) unused;
  for (unsigned l = 0; l < G_N_ELEMENTS (paper_layouts); l++) {
    struct paper_job j = paper_job_open (TIED, paper_layouts[l]);
    for (uint32_t i = 0; i < weft_state_count (j.state); i++) {
      uint32_t n_runs;
      const struct weft_state_run *run = weft_state_runs (j.state, i, &n_runs);
      uint64_t reached = 0;
      for (uint32_t k = 0; k < n_runs; reached += run[k++].n) {
        assert_int_equal (run[k].first, reached);
        assert_true (run[k].n > 0 && run[k].row < j.x->actors->n);
      }
      assert_int_equal (reached, paper_elements (j.state, i));
    }
    paper_job_close (&j);
  }
}

static void
replicas_that_hold_the_same_share_the_writing (void **unused)
{
  struct paper_job j = paper_job_open (TIED, "gpus=8");
  uint32_t tensors_of[8] = { 0 }, n = weft_state_count (j.state);

  (void) unused;
  for (uint32_t i = 0; i < n; i++) {
    uint32_t n_runs;
    const struct weft_state_run *run = weft_state_runs (j.state, i, &n_runs);
    assert_int_equal (n_runs, 1);
    tensors_of[run->row]++;
  }
  for (uint32_t row = 0; row < 8; row++)
    assert_in_range (tensors_of[row], n / 8, n / 8 + 1);
  paper_job_close (&j);
}

static const struct CMUnitTest tests[] = {
  cmocka_unit_test (a_model_has_the_same_tensors_in_model_order_under_every_strategy),
  cmocka_unit_test (new_weights_do_not_depend_on_the_strategy),
  cmocka_unit_test (new_weights_have_the_moments_of_gpt2),
  cmocka_unit_test (new_weights_depend_on_seed_and_tensor),
  cmocka_unit_test (new_weights_in_bf16_are_rounded_masters_and_moments_are_zero),
  cmocka_unit_test (what_is_written_is_read_under_every_strategy),
  cmocka_unit_test (pieces_of_a_tensor_are_read_and_written_alone),
  cmocka_unit_test (a_model_in_fp32_has_its_weights_as_masters),
  cmocka_unit_test (weights_are_read_from_the_rank_that_updates_them),
  cmocka_unit_test (writing_a_weight_reaches_every_rank_of_its_stages),
  cmocka_unit_test (the_head_s_copy_of_a_tied_embedding_has_its_own_optimizer_state),
  cmocka_unit_test (runs_cover_a_tensor_without_gaps),
  cmocka_unit_test (replicas_that_hold_the_same_share_the_writing),
};

WEFT_TESTS (tests, .seconds = 8)
