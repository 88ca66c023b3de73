/* The training loop, on an executor that trains a single number and records every step
 * (scripted_run.h). */
#include "tests/made/scripted_run.h"

/* -------------------------------------------------------------------- schedule */

static void
the_rate_rises_in_a_line_and_falls_in_a_cosine (void **state)
{
  const struct weft_trainer_options o = { .lr = 1, .min_lr = 0.1, .warmup = 4, .decay_steps = 14 };
  const double wanted[][2] = { { 1, 0.25 }, { 3, 0.75 }, { 4, 1 },     { 9, 0.55 },
                               { 14, 0.1 }, { 15, 0.1 }, { 1000, 0.1 } };

  (void) state;
  for (unsigned i = 0; i < G_N_ELEMENTS (wanted); i++)
    assert_true (fabs (weft_trainer_lr (&o, (uint64_t) wanted[i][0]) - wanted[i][1]) < 1e-12);
  for (uint64_t step = 5; step < 14; step++)
    assert_true (weft_trainer_lr (&o, step + 1) < weft_trainer_lr (&o, step));
}

static void
without_warm_up_the_first_step_is_already_on_the_cosine (void **state)
{
  const struct weft_trainer_options o = { .lr = 1, .min_lr = 0, .decay_steps = 4 };

  (void) state;
  assert_true (fabs (weft_trainer_lr (&o, 1) - 0.5 * (1 + cos (G_PI / 4))) < 1e-12);
  assert_true (fabs (weft_trainer_lr (&o, 2) - 0.5) < 1e-12);
}

static void
larger_models_begin_slower (void **state)
{
  (void) state;
  assert_true (fabs (weft_trainer_default_lr (125000000) - 6e-4) < 1e-12);
  assert_true (fabs (weft_trainer_default_lr (175000000000) - 0.6e-4) < 1e-12);
  assert_true (weft_trainer_default_lr (1) >= 1e-3);
  assert_true (fabs (weft_trainer_default_lr (1000000000000000) - 0.6e-4) < 1e-12);
  for (uint64_t n = 1000; n < (uint64_t) 1 << 40; n *= 2)
    assert_true (weft_trainer_default_lr (2 * n) <= weft_trainer_default_lr (n));
  assert_int_equal (weft_trainer_default_decay_steps (1000, 100), 200);
  assert_int_equal (weft_trainer_default_decay_steps (1, 100), 1);
}

/* --------------------------------------------------------------------- loading */

static void
loading_is_told_every_ten_seconds (void **state)
{
  const gint64 second = G_USEC_PER_SEC;
  struct weft_trainer_loading loading = weft_trainer_loading_start (7 * second);

  (void) state;
  assert_null (weft_trainer_loading_text (&loading, 4, 7 * second));
  assert_null (weft_trainer_loading_text (&loading, 4, 17 * second - 1));
  g_autofree char *first = weft_trainer_loading_text (&loading, 4, 18 * second);
  assert_string_equal (first, "making or loading the weights of 4 ranks for 11 s");
  assert_null (weft_trainer_loading_text (&loading, 4, 27 * second));
  g_autofree char *second_line = weft_trainer_loading_text (&loading, 4, 28 * second);
  assert_string_equal (second_line, "making or loading the weights of 4 ranks for 21 s");
}

/* ----------------------------------------------------------------------- steps */

static void
every_step_reads_the_next_sequences (void **state)
{
  struct run *r = run_new ("gpus=1 global_batch_size=3");

  (void) state;
  play_well (r);
  assert_int_equal (script.n, 6);
  assert_int_equal (r->lines->len, 6);
  for (unsigned i = 0; i < 6; i++) {
    const struct seen *seen = &script.seen[i];
    unsigned first = i * 3 * SEQUENCE;
    assert_int_equal (seen->first, first / 2 % 251);
    assert_int_equal (seen->last, (first + 3 * SEQUENCE) / 2 % 251);
    assert_int_equal (seen->step, i + 1);
    assert_false (seen->forward_only);
    assert_true (seen->lr == weft_trainer_lr (&r->options, i + 1));
    assert_int_equal (line_at (r, i)->step, i + 1);
    assert_true (line_at (r, i)->lr == seen->lr);
  }
  assert_true (r->result.final_loss == line_at (r, 5)->loss);
  assert_int_equal (r->result.steps, 6);
  run_free (r);
}

static void
loss_and_norm_are_those_of_the_last_stage (void **state)
{
  struct run *r = run_new ("gpus=4 pipeline_model_parallel_size=2");

  (void) state;
  play_well (r);
  for (unsigned i = 0; i < 6; i++) {
    assert_true (isfinite (line_at (r, i)->loss));
    assert_true (isfinite (line_at (r, i)->grad_norm));
  }
  assert_int_equal (r->result.n_roles, 2);
  for (uint32_t role = 0; role < 2; role++) {
    assert_int_equal (r->result.planned[role], r->plan->memory[role].planned[WEFT_POOL_DEVICE]);
    assert_int_equal (r->result.allocated[role], r->result.planned[role]);
  }
  assert_int_equal (line_at (r, 0)->peak_bytes,
                    MAX (r->result.allocated[0], r->result.allocated[1]));
  run_free (r);
}

static void
the_timeline_is_that_of_the_last_step (void **state)
{
  struct run *r = run_new ("gpus=1");

  (void) state;
  r->options.eval_interval = 6;
  r->options.eval_batches = 2;
  r->options.eval_share = 0.2;
  play_well (r);
  assert_int_equal (script.n, 8);
  assert_true (r->result.timeline->seconds == 6);
  run_free (r);
}

static void
speed_and_mfu_follow_from_the_seconds_of_the_step (void **state)
{
  struct run *r = run_new ("gpus=2 global_batch_size=4");
  const struct weft_job *job = &r->plan->job;

  (void) state;
  play_well (r);
  const struct weft_trainer_line *line = line_at (r, 3);
  double tokens = 4 * SEQUENCE / line->seconds;
  double flops = tokens * weft_model_flops_per_token (&job->model, TRUE);
  assert_true (fabs (line->tokens_per_s / tokens - 1) < 1e-12);
  assert_true (fabs (line->mfu / (flops / (2 * job->cluster.f.gpu_fp32_spec)) - 1) < 1e-12);
  run_free (r);
}

/* ------------------------------------------------------------------ evaluation */

static void
evaluation_comes_at_its_interval_and_at_the_end (void **state)
{
  struct run *r = run_new ("gpus=1 global_batch_size=2");
  const char wanted[] = "TTeeTTeeTee";

  (void) state;
  r->options.steps = 5;
  r->options.eval_interval = 2;
  r->options.eval_batches = 2;
  r->options.eval_share = 0.2; /* the evaluation reads the last 8 of the 40 sequences */
  play_well (r);
  assert_int_equal (script.n, strlen (wanted));
  for (unsigned i = 0; i < script.n; i++)
    assert_int_equal (script.seen[i].forward_only, wanted[i] == 'e');
  assert_int_equal (script.seen[2].first, 32 * SEQUENCE / 2 % 251);
  assert_int_equal (script.seen[3].first, 34 * SEQUENCE / 2 % 251);
  assert_int_equal (script.seen[6].first, script.seen[2].first);
  assert_int_equal (r->lines->len, 8);
  assert_true (line_at (r, 2)->evaluated && line_at (r, 2)->step == 2);
  assert_true (line_at (r, 7)->evaluated && line_at (r, 7)->step == 5);
  run_free (r);
}

static void
an_evaluation_changes_no_later_step (void **state)
{
  struct run *plain = run_new ("gpus=1"), *other;

  (void) state;
  plain->options.eval_share = 0.2;
  play_well (plain);
  other = run_new ("gpus=1");
  other->options.eval_share = 0.2;
  other->options.eval_interval = 6;
  other->options.eval_batches = 3;
  play_well (other);
  for (unsigned i = 0; i < 6; i++)
    assert_true (line_at (plain, i)->loss == line_at (other, i)->loss);
  run_free (plain);
  run_free (other);
}

static void
no_sequence_is_evaluated_twice (void **state)
{
  struct run *r = run_new ("gpus=1 global_batch_size=3");

  (void) state;
  r->options.eval_interval = 100;
  r->options.eval_batches = 50;
  /* the evaluation has 8 sequences: two batches of 3; the last two sequences are not used */
  r->options.eval_share = 0.2;
  play_well (r);
  assert_int_equal (script.n, 6 + 2);
  run_free (r);
}

static void
evaluation_wants_a_share_of_the_data (void **state)
{
  struct run *r = run_new ("gpus=1");

  (void) state;
  r->options.eval_interval = 1;
  r->options.eval_batches = 1;
  play_badly (r, "eval_interval: found 1 with eval_share 0");
  run_free (r);
}

/* ----------------------------------------------------------------- checkpoints */

static void
checkpoints_come_at_their_interval_and_at_the_end (void **state)
{
  struct run *r = run_saving (5);

  (void) state;
  r->options.save_interval = 2;
  play_well (r);
  assert_saved (r, "2 4 5");
  run_free (r);
}

static void
without_an_interval_only_the_end_is_saved (void **state)
{
  struct run *r = run_saving (6);

  (void) state;
  play_well (r);
  assert_saved (r, "6");
  run_free (r);
}

/* Runs 3 steps, resumes for 3 more steps, and compares the result with a run of 6 steps: all
 * numbers must be equal. */
static void
a_run_that_was_cut_gives_the_numbers_of_a_whole_one (void **state)
{
  static const char *const jobs[] = { "gpus=1 global_batch_size=2",
                                      "gpus=2 pipeline_model_parallel_size=2 global_batch_size=2",
                                      "gpus=2 global_batch_size=4" };
  struct weft_trainer_line whole[6];

  (void) state;
  for (unsigned j = 0; j < G_N_ELEMENTS (jobs); j++) {
    struct run *r = run_new (jobs[j]);
    r->options.shuffle = TRUE;
    play_well (r);
    memcpy (whole, r->lines->data, sizeof whole);
    r->options.save = r->save;
    r->options.steps = 3;
    play_well (r);
    r->options.load = r->save;
    r->options.steps = 6;
    play_well (r);
    assert_int_equal (r->lines->len, 3);
    for (unsigned i = 0; i < 3; i++) {
      assert_int_equal (line_at (r, i)->step, 4 + i);
      assert_true (line_at (r, i)->loss == whole[3 + i].loss);
      assert_true (line_at (r, i)->grad_norm == whole[3 + i].grad_norm);
      assert_true (line_at (r, i)->lr == whole[3 + i].lr);
    }
    run_free (r);
  }
}

static void
what_is_done_is_not_trained_again (void **state)
{
  struct run *r = run_saving (6);
  g_autofree char *weights = g_build_filename (r->dir, "weights", NULL);

  (void) state;
  play_well (r);
  r->options.load = r->save;
  r->options.export_safetensors = weights;
  play_well (r);
  assert_int_equal (script.n, 0);
  assert_int_equal (r->result.steps, 6);
  assert_true (isnan (r->result.final_loss));
  assert_null (r->result.timeline);
  assert_non_null (strstr (r->said->str, "nothing left to train"));
  assert_true (g_file_test (weights, G_FILE_TEST_EXISTS));
  run_free (r);
}

static void
the_seed_is_that_of_the_checkpoint (void **state)
{
  struct run *r = run_saving (2);

  (void) state;
  play_well (r);
  r->options.load = r->save;
  r->options.steps = 4;
  r->options.seed = 8;
  r->options.seed_given = TRUE;
  play_badly (r, "seed: found 8, wanted 7");
  r->options.seed_given = FALSE;
  play_well (r);
  r->options.seed = 7;
  r->options.seed_given = TRUE;
  r->options.steps = 5;
  play_well (r);
  run_free (r);
}

static void
other_data_is_allowed_and_told (void **state)
{
  struct run *r = run_saving (2);

  (void) state;
  play_well (r);
  r->options.load = r->save;
  r->options.steps = 3;
  play_well (r);
  assert_null (strstr (r->said->str, "warning"));
  write_tokens (r->data, 5);
  r->options.steps = 4;
  play_well (r);
  assert_non_null (strstr (r->said->str, "is not the data"));
  r->options.steps = 5;
  play_well (r);
  assert_null (strstr (r->said->str, "warning"));
  run_free (r);
}

static void
a_new_run_among_checkpoints_of_another_is_told (void **state)
{
  struct run *r = run_saving (2);

  (void) state;
  play_well (r);
  assert_null (strstr (r->said->str, "another run"));
  r->options.steps = 3;
  play_well (r);
  assert_non_null (strstr (r->said->str, "another run"));
  run_free (r);
}

/* Writes a token file of two bytes per token, with one id outside the vocabulary that is first read
 * in step `step`. */
static void
spoil_tokens (struct run *r, unsigned step)
{
  uint16_t ids[40 * SEQUENCE + 1] = { 0 };
  g_autofree char *path = g_strconcat (r->dir, "/tokens.bin", NULL);

  ids[((step - 1) * (uint64_t) r->plan->job.train.global_batch_size + 1) * SEQUENCE - 1] = 60000;
  assert_true (g_file_set_contents (path, (const char *) ids, sizeof ids, NULL));
  g_free (r->data);
  r->data = g_steal_pointer (&path);
  r->options.data = r->data;
}

static void
tokens_that_cannot_be_read_lose_no_step (void **state)
{
  struct run *r = run_new ("gpus=1");

  (void) state;
  spoil_tokens (r, 4);
  r->options.save = r->save;
  play_badly (r, "is 60000, wanted below");
  assert_saved (r, "3");
  run_free (r);
}

static void
weights_have_one_source (void **state)
{
  struct run *r = run_new ("gpus=1");

  (void) state;
  r->options.load = r->save;
  r->options.init_safetensors = "x";
  play_badly (r, "wanted one source of weights");
  run_free (r);
}

static void
gradients_are_written_after_the_first_step (void **state)
{
  struct run *r = run_new ("gpus=1");
  g_autofree char *gradients = g_build_filename (r->dir, "gradients", NULL);

  (void) state;
  r->options.dump_gradients = script.look_for = gradients;
  play_well (r);
  assert_false (script.seen[0].found);
  assert_true (script.seen[1].found);
  run_free (r);
}

/* --------------------------------------------------------------------- signals */

static void
a_signal_ends_the_run_after_its_step (void **state)
{
  static const int signals[] = { SIGTERM, SIGINT };
  double whole[6];

  (void) state;
  for (unsigned s = 0; s < G_N_ELEMENTS (signals); s++) {
    struct run *r = run_new ("gpus=1");
    play_well (r);
    for (unsigned i = 0; i < 6; i++)
      whole[i] = line_at (r, i)->loss;
    script.signal = signals[s];
    script.signal_at = 3;
    r->options.save = r->save;
    play_well (r);
    assert_true (r->result.interrupted);
    assert_int_equal (r->result.steps, 3);
    assert_saved (r, "3");
    assert_non_null (strstr (r->said->str, "interrupted after step 3"));
    script.signal_at = 0;
    r->options.load = r->save;
    play_well (r);
    assert_false (r->result.interrupted);
    assert_true (line_at (r, 2)->loss == whole[5]);
    run_free (r);
  }
}

static void
interrupted_weights_are_not_exported (void **state)
{
  struct run *r = run_new ("gpus=1");
  g_autofree char *weights = g_build_filename (r->dir, "weights", NULL);

  (void) state;
  script.signal = SIGTERM;
  script.signal_at = 1;
  r->options.export_safetensors = weights;
  play_well (r);
  assert_true (r->result.interrupted);
  assert_false (g_file_test (weights, G_FILE_TEST_EXISTS));
  assert_non_null (strstr (r->said->str, "nothing was saved"));
  run_free (r);
}

static void
a_signal_that_is_ignored_stays_so (void **state)
{
  struct run *r = run_new ("gpus=1");
  struct sigaction ignore = { .sa_handler = SIG_IGN }, before;
  sigset_t now;

  (void) state;
  sigaction (SIGINT, &ignore, &before);
  script.signal = SIGINT;
  script.signal_at = 2;
  play_well (r);
  assert_int_equal (script.n, 6);
  assert_false (r->result.interrupted);
  sigaction (SIGINT, &before, NULL);
  pthread_sigmask (SIG_BLOCK, NULL, &now);
  assert_false (sigismember (&now, SIGINT) || sigismember (&now, SIGTERM));
  run_free (r);
}

/* ----------------------------------------------------------------------- skips */

static void
adam_counts_updates_and_the_schedule_steps (void **state)
{
  struct run *r = run_new ("gpus=1");

  (void) state;
  script.skip_from = 2;
  script.skip_to = 3;
  play_well (r);
  const uint64_t updates[] = { 1, 2, 2, 2, 3, 4 };
  for (unsigned i = 0; i < 6; i++) {
    assert_int_equal (script.seen[i].step, updates[i]);
    assert_true (script.seen[i].lr == weft_trainer_lr (&r->options, i + 1));
    assert_int_equal (line_at (r, i)->skipped, i == 1 || i == 2);
  }
  assert_int_equal (r->result.skipped, 2);
  run_free (r);
}

static void
ten_steps_in_a_row_without_an_update_end_the_run (void **state)
{
  struct run *r = run_saving (30);

  (void) state;
  script.skip_from = 3;
  script.skip_to = 11;
  play_well (r);
  assert_int_equal (r->result.skipped, 9);
  script.skip_to = 12;
  play_badly (r, "step 12:");
  assert_int_equal (script.n, 12);
  run_free (r);
}

static void
a_loss_that_is_no_number_ends_the_run_though_weights_are_updated (void **state)
{
  struct run *r = run_saving (30);

  (void) state;
  script.nan_from = 5;
  play_badly (r, "step 14:");
  assert_saved (r, "");
  run_free (r);
}

static void
weights_of_such_a_step_push_no_checkpoint_out (void **state)
{
  struct run *r = run_saving (30);

  (void) state;
  r->options.save_interval = 1;
  r->options.keep = 1;
  script.nan_from = 5;
  play_badly (r, "step 14:");
  assert_saved (r, "4");
  run_free (r);
}

static const struct CMUnitTest tests[] = {
  cmocka_unit_test (the_rate_rises_in_a_line_and_falls_in_a_cosine),
  cmocka_unit_test (without_warm_up_the_first_step_is_already_on_the_cosine),
  cmocka_unit_test (larger_models_begin_slower),
  cmocka_unit_test (loading_is_told_every_ten_seconds),
  cmocka_unit_test (every_step_reads_the_next_sequences),
  cmocka_unit_test (loss_and_norm_are_those_of_the_last_stage),
  cmocka_unit_test (the_timeline_is_that_of_the_last_step),
  cmocka_unit_test (speed_and_mfu_follow_from_the_seconds_of_the_step),
  cmocka_unit_test (evaluation_comes_at_its_interval_and_at_the_end),
  cmocka_unit_test (an_evaluation_changes_no_later_step),
  cmocka_unit_test (no_sequence_is_evaluated_twice),
  cmocka_unit_test (evaluation_wants_a_share_of_the_data),
  cmocka_unit_test (checkpoints_come_at_their_interval_and_at_the_end),
  cmocka_unit_test (without_an_interval_only_the_end_is_saved),
  cmocka_unit_test (a_run_that_was_cut_gives_the_numbers_of_a_whole_one),
  cmocka_unit_test (what_is_done_is_not_trained_again),
  cmocka_unit_test (the_seed_is_that_of_the_checkpoint),
  cmocka_unit_test (other_data_is_allowed_and_told),
  cmocka_unit_test (a_new_run_among_checkpoints_of_another_is_told),
  cmocka_unit_test (tokens_that_cannot_be_read_lose_no_step),
  cmocka_unit_test (weights_have_one_source),
  cmocka_unit_test (gradients_are_written_after_the_first_step),
  cmocka_unit_test (a_signal_ends_the_run_after_its_step),
  cmocka_unit_test (interrupted_weights_are_not_exported),
  cmocka_unit_test (a_signal_that_is_ignored_stays_so),
  cmocka_unit_test (adam_counts_updates_and_the_schedule_steps),
  cmocka_unit_test (ten_steps_in_a_row_without_an_update_end_the_run),
  cmocka_unit_test (a_loss_that_is_no_number_ends_the_run_though_weights_are_updated),
  cmocka_unit_test (weights_of_such_a_step_push_no_checkpoint_out),
};

WEFT_TESTS (tests)
