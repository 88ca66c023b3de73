/* Schedules with separate weight gradients (W): activations in flight, step times if only layers
 * take time, and where the two copies of a stage (DualPipe) add their gradients. */
#include "tests/made/made.h"
#include "tests/runner/folder.h"
#include "tests/made/questions.h"
#include "tests/made/real_run.h"
#include "tests/runner/runner.h"

#define MODEL                                                                                      \
  "hidden_size=16 num_attention_heads=2 ffn_hidden_size=32 vocab_size=64 seq_length=8 "            \
  "topology=dgx-h100 gpus=4 pipeline_model_parallel_size=4 global_batch_size=8 "
#define ONE MODEL "num_layers=4 "
#define TWO MODEL "num_layers=8 "

/* Durations for these tests: forward, input gradients and weight gradients of a layer take 1 s
 * each. All other ops take no time. */
static double
layer_seconds (void *user, uint32_t actor, uint32_t op)
{
  const weft_program *p = ((weft_program *const *) user)[actor];
  gboolean qkv = strcmp (p->name[p->op[op].name], "qkv") == 0;

  switch (p->op[op].kind) {
  case WEFT_OP_ATTENTION:
  case WEFT_OP_ATTENTION_BWD:
    return 1;
  case WEFT_OP_MATMUL_WGRAD:
    return qkv;
  default:
    return 0;
  }
}

/* If transfers take no time, the program of a schedule must take as long as the grid of the
 * schedule. */
static void
a_program_takes_as_long_as_its_grid_where_transfers_are_free (void **state)
{
  static const char *const cases[] = {
    ONE "pipeline_schedule=1f1b",     ONE "pipeline_schedule=zb-h1",
    ONE "pipeline_schedule=zb-h2",    TWO "pipeline_schedule=zb-v",
    TWO "pipeline_schedule=v-half",   TWO "pipeline_schedule=v-min",
    ONE "pipeline_schedule=dualpipe", TWO "pipeline_schedule=dualpipev",
  };
  const struct weft_cell_times unit = { .forward = 1, .input = 1, .weight = 1 };

  (void) state;
  for (unsigned i = 0; i < G_N_ELEMENTS (cases); i++) {
    g_autoptr (weft_plan) plan = weft_test_plan ("%s", cases[i]);
    g_autoptr (weft_grid) grid = weft_job_grid (&plan->job, NULL);
    double wanted = weft_grid_replay (grid, unit, NULL),
           found = makespan_of (layer_seconds, cases[i]);
    if (fabs (found - wanted) > 1e-9)
      fail_msg ("%s: %g, its grid %g", cases[i], found, wanted);
  }
}

/* Each of p = 4 ranks works for 24 s. The published bubble is 3 (p - 1) s for 1f1b and p - 1 s for
 * zb-h1. */
static void
zero_bubbles_are_as_short_as_published (void **state)
{
  (void) state;
  assert_near (makespan_of (layer_seconds, ONE "pipeline_schedule=1f1b"), 33);
  assert_near (makespan_of (layer_seconds, ONE "pipeline_schedule=zb-h1"), 27);
  assert_near (makespan_of (layer_seconds, ONE "pipeline_schedule=zb-h2"),
               /* zb-h2 takes 27 s and not 24 s, because rank r cannot start before r seconds have
                * passed */
               27);
}

/* Returns the largest number of microbatches of a rank whose forward pass has run, but whose weight
 * gradient has not. */
static uint32_t
most_of_grid (const weft_grid *grid, uint32_t rank)
{
  uint32_t now = 0, most = 0;

  for (uint32_t i = 0; i < grid->n_cell[rank]; i++) {
    enum weft_phase phase = grid->cell[rank][i].phase;
    now += phase == WEFT_PHASE_FORWARD;
    most = MAX (most, now);
    now -= phase == WEFT_PHASE_WEIGHT_GRAD || phase == WEFT_PHASE_BACKWARD;
  }
  return most;
}

static void
what_weight_gradients_read_waits_for_them (void **state)
{
  static const char *const cases[] = { ONE "pipeline_schedule=zb-h1", ONE "pipeline_schedule=zb-h2",
                                       TWO "pipeline_schedule=zb-v",
                                       ONE "pipeline_schedule=dualpipe" };

  (void) state;
  for (unsigned i = 0; i < G_N_ELEMENTS (cases); i++)
    for (uint32_t r = 0; r < 4; r++) {
      g_autoptr (weft_plan) plan = weft_test_plan ("%s", cases[i]);
      g_autoptr (weft_grid) grid = weft_job_grid (&plan->job, NULL);
      g_autoptr (weft_program) p = weft_step_build (&plan->job, &plan->mesh, r);
      assert_int_equal (most_norms_kept (p), most_of_grid (grid, r));
    }
  /* zb-h1: rank r has p - r microbatches in flight, and r more microbatches that wait only for
   * their weight gradients: p in all. */
  for (uint32_t r = 0; r < 4; r++) {
    g_autoptr (weft_program) p = built (ONE "pipeline_schedule=zb-h1", r);
    assert_int_equal (most_norms_kept (p), 4);
  }
}

/* ------------------------------------------------------------------ two copies */

static void
dualpipe_adds_the_gradients_of_a_stage_over_the_two_ranks_that_hold_it (void **state)
{
  g_autoptr (weft_plan) plan = weft_test_plan (ONE "pipeline_schedule=dualpipe");

  (void) state;
  for (uint32_t r = 0; r < 4; r++) {
    const weft_program *p = plan->role[r];
    struct weft_group pair = weft_mesh_group (&plan->mesh, r, WEFT_GROUP_MIRROR);
    uint64_t sum = 0, gradients = 0;
    assert_int_equal (weft_group_size (&pair), 2);
    assert_int_equal (weft_group_rank (&pair, 0) + weft_group_rank (&pair, 1), 3);
    for (uint32_t op = 0; op < p->n_op; op++)
      if (has_name (p, op, "mirror ") && has_name (p, op, "mirror 0"))
        sum += elements (p, op);
    for (uint32_t i = 0; i < p->n_param; i++) {
      assert_int_equal (p->param[i].duplicate, p->param[i].chunk == 1);
      gradients += p->param[i].rows * p->param[i].columns;
    }
    assert_int_equal (sum, gradients);
  }
}

/* --------------------------------------------------------------- a schedule of one's own */

#define REAL                                                                                       \
  "topology=cpu model=gpt2-nano seq_length=16 hidden_size=32 num_attention_heads=4 "               \
  "num_query_groups=4 kv_channels=8 ffn_hidden_size=96 precision=fp32 global_batch_size=8 "

/* pipeline_schedule_file names a file with the grid of another schedule, and no other knob
 * describes the schedule. The results of training must be bitwise equal to those of one rank. */
static void
pipeline_schedule_file_gives_the_bits_of_one_rank (void **state)
{
  static const char *const names[] = { "1f1b", "zb-h2", "zb-v", "dualpipe",
                                       "1f1b virtual_pipeline_model_parallel_size=2" };
  struct real_result one = weft_test_run (&(struct real_run){ .words = REAL "gpus=1", .steps = 2 });
  g_autofree char *path = g_build_filename (*state, "mine.csv", NULL);

  for (unsigned i = 0; i < G_N_ELEMENTS (names); i++) {
    g_autoptr (weft_plan) plan = weft_test_plan (
        REAL "gpus=4 pipeline_model_parallel_size=4 pipeline_schedule=%s", names[i]);
    g_autoptr (weft_grid) grid = weft_job_grid (&plan->job, NULL);
    g_autofree char *csv = weft_grid_csv (grid);
    g_autofree char *words = g_strconcat (
        REAL "gpus=4 pipeline_model_parallel_size=4 pipeline_schedule_file=", path, NULL);
    assert_true (g_file_set_contents (path, csv, -1, NULL));
    weft_test_check_bits (words, 2, &one, i);
  }
}

/* A program can send only to the next or the previous rank, so a file whose neighbouring stages are
 * on other ranks is refused. */
static void
pipeline_schedule_file_must_have_neighbours_next_to_each_other (void **state)
{
  static const char far[] = "0F0,0B0\n2F0,2B0\n1F0,1B0\n";
  g_autofree char *path = g_build_filename (*state, "far.csv", NULL);
  g_autofree char *words =
      g_strconcat (REAL "num_layers=3 gpus=3 pipeline_model_parallel_size=3 global_batch_size=1 "
                        "pipeline_schedule_file=",
                   path, NULL);
  g_autoptr (GError) error = NULL;
  struct weft_job job;

  assert_true (g_file_set_contents (path, far, -1, NULL));
  assert_false (weft_test_job (words, &job, &error));
  assert_non_null (strstr (error->message, "stage"));
  assert_non_null (strstr (error->message, "rule schedule_file"));
}

static const struct CMUnitTest tests[] = {
  cmocka_unit_test (a_program_takes_as_long_as_its_grid_where_transfers_are_free),
  cmocka_unit_test (zero_bubbles_are_as_short_as_published),
  cmocka_unit_test (what_weight_gradients_read_waits_for_them),
  cmocka_unit_test (dualpipe_adds_the_gradients_of_a_stage_over_the_two_ranks_that_hold_it),
  cmocka_unit_test_setup_teardown (pipeline_schedule_file_gives_the_bits_of_one_rank,
                                   weft_test_folder_make, weft_test_folder_remove),
  cmocka_unit_test_setup_teardown (pipeline_schedule_file_must_have_neighbours_next_to_each_other,
                                   weft_test_folder_make, weft_test_folder_remove),
};

WEFT_TESTS (tests)
