/* Published measurements: a table is read completely or refused, a row becomes the job that the
 * rules describe, and errors are calculated correctly. */
#include "core/base/error.h"
#include "planner/shorten.h"
#include "planner/validate.h"
#include "core/plan/allocator.h"
#include "exec_sim/exec_sim.h"
#include "tests/runner/command.h"
#include "tests/runner/folder.h"
#include "tests/made/made.h"
#include "tests/runner/runner.h"
#include <json-glib/json-glib.h>
#include <math.h>

#define SMALL WEFT_SOURCE_DIR "/tests/data/published-small.csv"
#define PUBLISHED WEFT_SOURCE_DIR "/validation/published.csv"

static weft_published *
load (const char *path)
{
  g_autoptr (GError) error = NULL;
  weft_published *table = weft_published_load (path, &error);

  if (!table)
    fail_msg ("%s", error->message);
  return table;
}

static weft_assumptions *
assume (const char *path)
{
  g_autoptr (GError) error = NULL;
  weft_assumptions *assumptions = weft_assumptions_load (path, &error);

  if (!assumptions)
    fail_msg ("%s", error->message);
  return assumptions;
}

static weft_validation *
validate (const weft_published *table, struct weft_validate_options options)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (weft_assumptions) assumptions = assume (NULL);

  options.executor = &weft_exec_clock;
  weft_validation *v = weft_validate (table, assumptions, &options, &error);
  if (!v)
    fail_msg ("%s", error->message);
  return v;
}

/* Returns the small table of published runs with the first occurrence of `from` replaced by `to`.
 * The caller frees the text. */
static char *
changed (const char *from, const char *to)
{
  g_autofree char *text = NULL;

  assert_true (g_file_get_contents (SMALL, &text, NULL, NULL));
  char *at = strstr (text, from);
  assert_non_null (at);
  *at = '\0';
  return g_strconcat (text, to, at + strlen (from), NULL);
}

static const struct weft_validate_row *
row_of (const weft_validation *v, const char *id)
{
  for (uint32_t i = 0; i < v->n_row; i++)
    if (g_str_equal (v->row[i].id, id))
      return &v->row[i];
  fail_msg ("no row %s", id);
  return NULL;
}

static void
near_to (double found, double wanted)
{
  if (!(fabs (found - wanted) <= 1e-12 * fabs (wanted)))
    fail_msg ("found %.17g, wanted %.17g", found, wanted);
}

/* ------------------------------------------------------------------------ errors */

static void
errors_are_counted_by_size_and_averaged_with_their_sign (void **state)
{
  const double error[] = { 0.1, -0.3, NAN, 0.2, -0.4 };
  struct weft_validate_errors e = weft_validate_errors_of (error, 5);

  (void) state;
  assert_int_equal (e.n, 4);
  near_to (e.mape, 0.25);
  near_to (e.median, 0.25);
  near_to (e.p90, 0.4);
  near_to (e.max, 0.4);
  near_to (e.bias, -0.1);
  assert_true (isnan (weft_validate_errors_of (error + 2, 1).mape));
}

static void
nine_of_ten_are_at_most_p90 (void **state)
{
  double error[20];

  (void) state;
  for (int i = 0; i < 20; i++)
    error[i] = (i + 1) / 100.0;
  near_to (weft_validate_errors_of (error, 20).p90, 0.18);
  near_to (weft_validate_errors_of (error, 19).median, 0.10);
}

/* -------------------------------------------------------------------- small table */

/* The prediction for the first row of the table equals the prediction for the same job written
 * as flags. */
static void
a_row_is_the_job_that_its_columns_say (void **state)
{
  static const char *const words[] = { "--num-layers",
                                       "4",
                                       "--hidden-size",
                                       "256",
                                       "--num-attention-heads",
                                       "4",
                                       "--num-query-groups",
                                       "4",
                                       "--ffn-hidden-size",
                                       "1024",
                                       "--vocab-size",
                                       "1024",
                                       "--seq-length",
                                       "128",
                                       "--activation",
                                       "gelu",
                                       "--normalization",
                                       "layernorm",
                                       "--position-embedding-type",
                                       "learned",
                                       "--add-bias-linear",
                                       "true",
                                       "--add-qkv-bias",
                                       "true",
                                       "--share-embeddings-and-output-weights",
                                       "true",
                                       "--topology",
                                       "dgx-a100",
                                       "--gpus",
                                       "8",
                                       "--stack",
                                       "megatron-core",
                                       "--micro-batch-size",
                                       "2",
                                       "--global-batch-size",
                                       "64",
                                       NULL };
  struct weft_job job;
  g_autoptr (weft_published) table = load (SMALL);
  g_autoptr (weft_validation) v = validate (table, (struct weft_validate_options){ 0 });
  const struct weft_validate_row *row = row_of (v, "one-001");

  (void) state;
  made_real_job (&job, words);
  g_autoptr (weft_plan) plan = made_real_plan (&job);
  g_autoptr (weft_timeline) timeline = made_run_with (&weft_exec_clock, plan, "");
  assert_true (row->predicted_s == timeline->seconds);
  near_to (row->time_error, timeline->seconds / 0.01 - 1);
  struct weft_allocated allocated = weft_allocator_run (&plan->job, plan->role[0]);
  double bytes = weft_allocator_reserved (&plan->job, plan->role[0], &allocated,
                                          (double) weft_plan_reserved_bytes (plan, 0));
  near_to (row->predicted_gib,
           (bytes + (double) weft_plan_reserved_bytes (plan, 0)) / (1 << 30));
  near_to (row->memory_error, row->predicted_gib / 2 - 1);
}

/* Row one-002 states tokens per second instead of the step time: 64 sequences of 128 tokens on 8
 * GPUs, with a million tokens per second on each GPU. */
static void
time_follows_from_tokens_where_it_is_not_printed (void **state)
{
  g_autoptr (weft_published) table = load (SMALL);
  g_autoptr (weft_validation) v = validate (table, (struct weft_validate_options){ 0 });

  (void) state;
  near_to (row_of (v, "one-002")->measured_s, 64 * 128 / 8 / 1e6);
  assert_true (isnan (row_of (v, "two-003")->time_error));
}

/* A printed GB is 2^30 or 10^9 bytes, or 1000 MiB if a source took thousands of MiB. */
static void
a_printed_gigabyte_is_one_of_three (void **state)
{
  static const double unit[] = { 1 << 30, 1e9, 1000.0 * (1 << 20) };
  g_autoptr (weft_published) table = load (PUBLISHED);
  g_autoptr (weft_assumptions) assumptions = assume (NULL);
  uint32_t n[G_N_ELEMENTS (unit)] = { 0 };

  (void) state;
  for (unsigned row = 0; row < table->csv->n_row; row++) {
    g_autoptr (weft_row_job) job = weft_row_job_new (assumptions, table, row, NULL);
    const char *cell = job->cell[WEFT_COLUMN_peak_mem_gib];
    if (!*cell)
      continue;
    assert_true (weft_row_job_bytes (job) == g_ascii_strtod (cell, NULL) * unit[job->gigabyte]);
    n[job->gigabyte]++;
  }
  for (size_t i = 0; i < G_N_ELEMENTS (unit); i++)
    assert_true (n[i] > 0);
}

static void
tier_c_is_predicted_and_never_counted (void **state)
{
  g_autoptr (weft_published) table = load (SMALL);
  g_autoptr (weft_validation) v = validate (table, (struct weft_validate_options){ 0 });

  (void) state;
  assert_true (row_of (v, "two-002")->time_error < -0.9);
  assert_int_equal (v->n_row, 8);
  assert_int_equal (v->n_predicted, 6);
  assert_int_equal (v->time.n, 3);
  assert_int_equal (v->memory.n, 2);
}

static void
rows_that_are_apart_count_in_their_source_but_in_no_total (void **state)
{
  static const char rules[] = "[id = two-*]\nmeasured.totals = apart\n";
  g_autofree char *path = g_build_filename (*state, "a.ini", NULL);
  g_autofree char *bundled = NULL, *all = NULL;
  g_autoptr (GError) error = NULL;

  assert_true (g_file_get_contents (WEFT_SOURCE_DIR "/validation/assumptions.ini", &bundled, NULL,
                                    NULL));
  all = g_strconcat (bundled, "\n", rules, NULL);
  assert_true (g_file_set_contents (path, all, -1, NULL));
  g_autoptr (weft_published) table = load (SMALL);
  g_autoptr (weft_assumptions) assumptions = assume (path);
  const struct weft_validate_options options = { .executor = &weft_exec_clock };
  g_autoptr (weft_validation) v = weft_validate (table, assumptions, &options, &error);
  g_autoptr (weft_validation) whole = validate (table, (struct weft_validate_options){ 0 });
  assert_int_equal (v->n_source, whole->n_source);
  for (uint32_t i = 0; i < v->n_source; i++) {
    assert_int_equal (v->source[i].apart, g_str_equal (v->source[i].name, "two"));
    assert_int_equal (v->source[i].time.n, whole->source[i].time.n);
    near_to (v->source[i].time.mape, whole->source[i].time.mape);
    if (v->source[i].apart)
      assert_int_equal (whole->time.n - v->time.n, v->source[i].time.n);
    else
      near_to (v->time_by_source, v->source[i].time.mape);
  }
}

static void
a_mean_by_source_counts_each_source_once (void **state)
{
  g_autoptr (weft_published) table = load (SMALL);
  g_autoptr (weft_validation) v = validate (table, (struct weft_validate_options){ 0 });
  double sum = 0;
  uint32_t n = 0, rows = 0;

  (void) state;
  for (uint32_t i = 0; i < v->n_source; i++) {
    sum += v->source[i].time.n ? v->source[i].time.mape : 0;
    n += v->source[i].time.n > 0;
    rows += v->source[i].time.n;
  }
  assert_int_equal (n, 2);
  assert_int_equal (rows, v->time.n);
  near_to (v->time_by_source, sum / n);
  assert_true (fabs (v->time_by_source - v->time.mape) > 1e-9);
}

static void
a_blank_cell_without_an_assumption_refuses_its_row (void **state)
{
  g_autoptr (weft_published) table = load (SMALL);
  g_autoptr (weft_validation) v = validate (table, (struct weft_validate_options){ 0 });

  (void) state;
  assert_string_equal (row_of (v, "two-004")->rule, "blank");
  assert_non_null (strstr (row_of (v, "two-004")->why, "num_gpus"));
  assert_string_equal (row_of (v, "three-001")->rule, "batch");
  assert_true (isnan (row_of (v, "three-001")->predicted_s));
}

static void
rows_are_chosen_by_tier_group_and_source (void **state)
{
  static const struct {
    struct weft_validate_options options;
    uint32_t n;
  } cases[] = { { { .tier = "B" }, 2 },       { { .tier = "A,C" }, 6 },
                { { .group = "t*" }, 6 },     { { .source = "one" }, 2 },
                { { .source = "*test" }, 8 }, { { .source = "two", .tier = "A" }, 3 } };
  g_autoptr (weft_published) table = load (SMALL);

  (void) state;
  for (unsigned i = 0; i < G_N_ELEMENTS (cases); i++) {
    g_autoptr (weft_validation) v = validate (table, cases[i].options);
    assert_int_equal (v->n_row, cases[i].n);
  }
}

static void
the_number_of_threads_changes_nothing (void **state)
{
  g_autoptr (weft_published) table = load (SMALL);
  g_autoptr (weft_validation) one = validate (table, (struct weft_validate_options){ .jobs = 1 });
  g_autoptr (weft_validation) many = validate (table, (struct weft_validate_options){ .jobs = 5 });

  (void) state;
  for (uint32_t i = 0; i < one->n_row; i++) {
    assert_memory_equal (&one->row[i].predicted_s, &many->row[i].predicted_s, sizeof (double));
    assert_memory_equal (&one->row[i].predicted_gib, &many->row[i].predicted_gib, sizeof (double));
  }
  assert_true (one->time.mape == many->time.mape && one->time.bias == many->time.bias);
}

/* ------------------------------------------------------------------- the real one */

/* Whether the message is one of the known reasons for which a published row may be refused. */
static gboolean
is_named (const char *message)
{
  return g_str_has_prefix (message, "rule ") || strstr (message, "not built yet") ||
         strstr (message, "nothing named");
}

static void
every_published_row_is_a_job_or_refused_by_name (void **state)
{
  g_autoptr (weft_published) table = load (PUBLISHED);
  g_autoptr (weft_assumptions) assumptions = assume (NULL);

  (void) state;
  assert_int_equal (table->csv->n_row, 1024);
  for (unsigned i = 0; i < table->csv->n_row; i++) {
    g_autoptr (GError) error = NULL;
    g_autoptr (weft_row_job) row = weft_row_job_new (assumptions, table, i, &error);
    assert_true (row->applied->len > 0);
    if (error && !is_named (error->message))
      fail_msg ("%s: %s", row->cell[WEFT_COLUMN_id], error->message);
  }
}

/* Invented training runs, one CSV row each, in the style of further published sources (Llama 3,
 * nanotron, FMS). The rules of validation/assumptions.ini must turn each run into a job with the
 * software stack `stack`, and the text of the job must contain the setting `line`. */
static void
rows_of_other_sources_have_their_software (void **state)
{
  static const char head[] =
      "id,source,tier,group,model_name,model_ref,layers,hidden,heads,kv_heads,ffn,vocab,seq,"
      "gated_mlp,gpu,num_gpus,gpus_per_node,dtype,tp,pp,vpp,dp,cp,ep,dp_sharding,seq_parallel,"
      "micro_batch,global_batch,recompute,offload,overlap_notes,iter_time_s,tflops_per_gpu,"
      "tokens_per_s_per_gpu,mfu_pct,peak_mem_gib,notes\n";
  static const struct {
    const char *row, *stack, *line;
  } cases[] = {
    { "llama3-1,x,A,g,L,,126,16384,128,8,53248,,8192,1,H100-80GB-SXM,8192,8,bf16,8,16,,64,1,,"
      "optim_grads,,,2048,,,,,,,40,,",
      "llama3", "virtual_pipeline_model_parallel_size = 8" },
    { "nanotron-1,x,A,g,L,,80,8192,64,64,28672,,4096,1,H100-80GB-SXM,512,8,bf16,8,8,,8,1,,none,,1,"
      "256,,,,,,,40,50,",
      "nanotron", "grad_reduce_in_fp32 = true" },
    { "fms-1,x,A,g,L,,32,4096,32,32,11008,,4096,1,A100-80GB-SXM,128,8,bf16,1,1,1,128,1,,full,0,2,"
      "256,none,,HSDP,,,,50,,",
      "fms", "dp_replicate_size = 16" },
  };
  g_autoptr (weft_assumptions) assumptions = assume (NULL);

  (void) state;
  for (unsigned i = 0; i < G_N_ELEMENTS (cases); i++) {
    g_autofree char *text = g_strconcat (head, cases[i].row, "\n", NULL);
    g_autoptr (GError) error = NULL;
    g_autoptr (weft_published) table = weft_published_parse (text, -1, "other.csv", &error);
    assert_non_null (table);
    g_autoptr (weft_row_job) row = weft_row_job_new (assumptions, table, 0, &error);
    if (error)
      fail_msg ("%s", error->message);
    g_autofree char *job = weft_job_print (&row->job);
    assert_string_equal (g_quark_to_string (row->job.stack.name), cases[i].stack);
    assert_non_null (strstr (job, cases[i].line));
    /* all three runs state their MFU, from which the step time follows */
    assert_true (weft_row_job_seconds (row) > 0.1);
  }
}

static void
published_rows_keep_their_source (void **state)
{
  g_autoptr (weft_published) table = load (PUBLISHED);

  (void) state;
  for (unsigned i = 0; i < table->csv->n_row; i++)
    assert_true (strlen (weft_published_cell (table, i, WEFT_COLUMN_source)) > 10);
}

/* If a published row states all of tp, pp, cp and dp, their product must be the number of GPUs. */
static void
degrees_of_published_rows_make_their_gpus (void **state)
{
  static const unsigned factor[] = { WEFT_COLUMN_tp, WEFT_COLUMN_pp, WEFT_COLUMN_cp,
                                     WEFT_COLUMN_dp };
  g_autoptr (weft_published) table = load (PUBLISHED);

  (void) state;
  for (unsigned i = 0; i < table->csv->n_row; i++) {
    double gpus = weft_published_number (weft_published_cell (table, i, WEFT_COLUMN_num_gpus));
    double product = 1;
    for (unsigned f = 0; f < G_N_ELEMENTS (factor); f++)
      product *= weft_published_number (weft_published_cell (table, i, factor[f]));
    if (!isnan (gpus * product) && gpus != product)
      fail_msg ("row %u: %g GPUs, the degrees make %g", i, gpus, product);
  }
}

/* Replaces a third of the cells of a published row by cells of other rows. Each row that is mixed
 * in this way must become a job or be refused with a message. */
static void
rows_mixed_at_random_are_jobs_or_refused (void **state)
{
  g_autoptr (weft_published) table = load (PUBLISHED);
  g_autoptr (weft_assumptions) assumptions = assume (NULL);
  g_autoptr (GRand) random = g_rand_new_with_seed (5);
  const char *cell[WEFT_N_COLUMN];
  uint32_t built = 0;

  (void) state;
  for (unsigned n = 0; n < 2000; n++) {
    unsigned row = g_rand_int_range (random, 0, table->csv->n_row);
    for (unsigned c = 0; c < WEFT_N_COLUMN; c++) {
      gboolean mixed = c > WEFT_COLUMN_group && g_rand_int_range (random, 0, 3) == 0;
      unsigned from = mixed ? (unsigned) g_rand_int_range (random, 0, table->csv->n_row) : row;
      cell[c] = weft_published_cell (table, from, c);
    }
    weft_csv one = {
      .name = (char *) "mixed", .n_column = WEFT_N_COLUMN, .n_row = 1, .cell = cell
    };
    weft_published mixed = { .csv = &one };
    for (unsigned c = 0; c < WEFT_N_COLUMN; c++)
      mixed.at[c] = c;
    g_autoptr (GError) error = NULL;
    g_autoptr (weft_row_job) job = weft_row_job_new (assumptions, &mixed, 0, &error);
    built += error == NULL;
    assert_true (error == NULL || g_utf8_validate (error->message, -1, NULL));
  }
  assert_true (built > 0);
}

static void
groups_add_up_to_the_whole (void **state)
{
  g_autoptr (weft_published) table = load (PUBLISHED);
  g_autoptr (weft_validation) v =
      validate (table, (struct weft_validate_options){ .source = "mosaic" });
  uint32_t n = 0;
  double sum = 0, bias = 0, worst = 0;

  (void) state;
  assert_true (v->time.n > 100);
  for (uint32_t i = 0; i < v->n_group; i++) {
    const struct weft_validate_errors *e = &v->group[i].time;
    n += e->n;
    sum += e->n * e->mape;
    bias += e->n * e->bias;
    worst = fmax (worst, e->max);
  }
  assert_int_equal (n, v->time.n);
  assert_true (fabs (sum / n - v->time.mape) < 1e-12);
  assert_true (fabs (bias / n - v->time.bias) < 1e-12);
  assert_true (worst == v->time.max);
}

/* A step with many microbatches is extrapolated from two steps with few microbatches. Time and
 * memory must equal those of the whole step. */
static void
a_long_step_is_told_from_two_short_ones (void **state)
{
  static const char *const kinds[][4] = {
    { "--pipeline-schedule", "1f1b", "--global-batch-size", "256" },
    { "--virtual-pipeline-model-parallel-size", "2", "--global-batch-size", "248" },
    { "--pipeline-schedule", "zb-h1", "--global-batch-size", "254" },
    { "--pipeline-schedule", "gpipe", "--global-batch-size", "250" },
  };

  (void) state;
  for (unsigned i = 0; i < G_N_ELEMENTS (kinds); i++) {
    const char *words[] = { "--model",
                            "gpt2-nano",
                            "--topology",
                            "dgx-h100",
                            "--gpus",
                            "8",
                            "--pipeline-model-parallel-size",
                            "4",
                            kinds[i][0],
                            kinds[i][1],
                            kinds[i][2],
                            kinds[i][3],
                            NULL };
    struct weft_shortened shortened;
    struct weft_job job;
    double seconds[3], bytes[3];
    made_real_job (&job, words);
    weft_shorten (&job, &shortened);
    assert_int_equal (shortened.n, 2);
    const struct weft_job *jobs[] = { &shortened.job[0], &shortened.job[1], &job };
    for (int j = 0; j < 3; j++) {
      g_autoptr (weft_plan) plan = made_real_plan (jobs[j]);
      g_autoptr (weft_timeline) timeline = made_run_with (&weft_exec_clock, plan, "");
      seconds[j] = timeline->seconds;
      bytes[j] = weft_plan_worst_bytes (plan);
    }
    double off = weft_shortened_seconds (&shortened, seconds) / seconds[2] - 1;
    if (!(fabs (off) < 1e-9))
      fail_msg ("%s: off by %g", kinds[i][1], off);
    assert_true (fabs (weft_shortened_bytes (&shortened, bytes) / bytes[2] - 1) < 0.02);
  }
}

static void
a_short_step_is_looked_at_itself (void **state)
{
  static const char *const words[] = { "--model",
                                       "gpt2-nano",
                                       "--topology",
                                       "dgx-h100",
                                       "--gpus",
                                       "8",
                                       "--pipeline-model-parallel-size",
                                       "4",
                                       "--global-batch-size",
                                       "16",
                                       NULL };
  struct weft_shortened shortened;
  struct weft_job job;

  (void) state;
  made_real_job (&job, words);
  weft_shorten (&job, &shortened);
  assert_int_equal (shortened.n, 1);
  assert_memory_equal (&shortened.job[0].train, &job.train, sizeof job.train);
}

/* --------------------------------------------------------------------- bad tables */

static void
a_table_that_is_none_is_refused_with_its_place (void **state)
{
  static const struct {
    const char *from, *to, *message;
  } cases[] = {
    { "micro_batch,", "micro_batches,", "t.csv:1: found no column \"micro_batch\"" },
    { ",A,one,Nano,,4,", ",A,one,Nano,,four,", "t.csv:2: layers: found \"four\"" },
    { ",A,one,Nano,,4,", ",A,one,Nano,,4.5,", "t.csv:2: layers: found \"4.5\"" },
    { ",A,one,Nano,,4,", ",A,one,Nano,,0,", "t.csv:2: layers: found \"0\", wanted 1..4096" },
    { ",A,one,Nano,,4,", ",A,one,Nano,,4k,", "t.csv:2: layers: found \"4k\"" },
    { ",A,one,", ",D,one,", "t.csv:2: tier: found \"D\"" },
    { "one-002", "one-001", "t.csv:3: id: found \"one-001\" again" },
    { "one-001", "", "t.csv:2: id: found nothing" },
    { "0.01", "-0.01", "t.csv:2: iter_time_s: found \"-0.01\"" },
    { "0.01", "nan", "t.csv:2: iter_time_s: found \"nan\"" },
    { "0.01", "1e999", "t.csv:2: iter_time_s: found \"1e999\"" },
    { "half\"\"\"", "half\"\"", "t.csv:4: found a quote without a closing quote" },
  };

  (void) state;
  for (unsigned i = 0; i < G_N_ELEMENTS (cases); i++) {
    g_autofree char *text = changed (cases[i].from, cases[i].to);
    g_autoptr (GError) error = NULL;
    assert_null (weft_published_parse (text, -1, "t.csv", &error));
    if (!error || !strstr (error->message, cases[i].message))
      fail_msg ("found \"%s\", wanted \"%s\"", error ? error->message : "nothing",
                cases[i].message);
  }
}

static void
a_word_that_nobody_knows_is_no_default (void **state)
{
  static const struct {
    const char *from, *to, *found;
  } cases[] = { { "bf16", "int4", "int4" },
                { "A100-80GB-SXM", "Z100", "no cluster" },
                { ",none,0,2,64,none", ",some,0,2,64,none", "some" },
                { ",none,0,2,64,none", ",none,0,2,64,bits", "bits" } };

  (void) state;
  for (unsigned i = 0; i < G_N_ELEMENTS (cases); i++) {
    g_autofree char *text = changed (cases[i].from, cases[i].to);
    g_autoptr (weft_published) table = weft_published_parse (text, -1, "t.csv", NULL);
    g_autoptr (weft_validation) v = validate (table, (struct weft_validate_options){ .tier = "A" });
    assert_string_equal (v->row[0].rule, "input");
    assert_non_null (strstr (v->row[0].why, cases[i].found));
  }
}

static void
assumptions_that_say_nothing_are_refused_with_their_line (void **state)
{
  static const struct {
    const char *text, *message;
  } cases[] = {
    { "[id]\nwhy = x\n", "found \"id\", wanted COLUMN = VALUE" },
    { "[idd = x]\nwhy = x\n", "unknown column \"idd\"; did you mean id?" },
    { "[id = ]\nwhy = x\n", "found no value after a column" },
    { "[tp > many]\nwhy = x\n", "found \"many\" after >, wanted a number" },
    { "[(layers + 2 % pp = 0]\nwhy = x\n", "found \"(layers + 2 % pp\", wanted a column, or" },
    { "[layers % stages = 0]\nwhy = x\n", "found \"layers % stages\", wanted a column, or" },
    { "[layers % pp = none]\nwhy = x\n", "found \"none\" after layers % pp, wanted a number" },
    { "[id = *]\ncolumn.tq = 1\n", "unknown column \"tq\"; did you mean tp?" },
    { "[id = *]\nmicro_batch = 1\n", "unknown key \"micro_batch\"" },
    { "[id = *]\nstrategy.tensor = 1\n", "unknown key \"tensor\"" },
    { "[id = *]\nstrateg.backend = 1\n", "unknown section" },
    { "[id = *]\nmeasured.memory = all\n",
      "measured.memory: found \"all\", wanted device|allocator" },
    { "[id = *]\nmeasured.heat = 1\n", "unknown key \"measured.heat\"" },
  };
  const char *folder = *state;
  g_autofree char *path = g_build_filename (folder, "a.ini", NULL);

  for (unsigned i = 0; i < G_N_ELEMENTS (cases); i++) {
    g_autoptr (GError) error = NULL;
    assert_true (g_file_set_contents (path, cases[i].text, -1, NULL));
    assert_null (weft_assumptions_load (path, &error));
    if (!strstr (error->message, cases[i].message) || !strstr (error->message, "a.ini:2: "))
      fail_msg ("found \"%s\", wanted \"%s\"", error->message, cases[i].message);
  }
}

/* Rules are applied in order: a rule sees the values that earlier rules have set, and the last
 * setting of a key wins. */
static void
rules_are_applied_from_top_to_bottom (void **state)
{
  static const char rules[] = "[dtype = blank and tier = A|B]\n"
                              "column.dtype = odd\n"
                              "[dtype = odd]\n"
                              "column.mfu_pct = {micro_batch} * 3 / 4\n"
                              "strategy.bucket_size = 5\n"
                              "[micro_batch > 2]\n"
                              "strategy.bucket_size = 6\n"
                              "[micro_batch > 1 and id != *-001]\n"
                              "strategy.bucket_size = {micro_batch}000\n";
  g_autofree char *path = g_build_filename (*state, "a.ini", NULL);
  g_autoptr (weft_published) table = load (SMALL);

  assert_true (g_file_set_contents (path, rules, -1, NULL));
  g_autoptr (weft_assumptions) assumptions = assume (path);
  for (unsigned i = 0; i < table->csv->n_row; i++) {
    g_autoptr (GError) error = NULL;
    g_autoptr (weft_row_job) row = weft_row_job_new (assumptions, table, i, &error);
    gboolean odd = g_str_equal (row->cell[WEFT_COLUMN_id], "two-003");
    gboolean first = g_str_has_suffix (row->cell[WEFT_COLUMN_id], "-001");
    assert_int_equal (row->applied->len, odd ? 4 : !first);
    assert_string_equal (row->cell[WEFT_COLUMN_micro_batch], "2");
    assert_string_equal (row->cell[WEFT_COLUMN_mfu_pct], odd ? "1.5" : "");
    if (!first) {
      const struct weft_applied *last = g_ptr_array_index (row->applied, row->applied->len - 1);
      assert_string_equal (last->value, "2000");
      assert_int_equal (last->line, 9);
    }
  }
}

/* A rule replaces no value that the source prints: the row is refused, and the message names rule,
 * line, cell and the condition that is missing. */
static void
a_rule_for_a_printed_cell_is_refused (void **state)
{
  g_autofree char *path = g_build_filename (*state, "a.ini", NULL);
  g_autoptr (weft_published) table = load (SMALL);
  g_autoptr (GError) error = NULL;

  assert_true (g_file_set_contents (path, "[id = *-001]\ncolumn.micro_batch = 7\n", -1, NULL));
  g_autoptr (weft_assumptions) assumptions = assume (path);
  g_autoptr (weft_row_job) row = weft_row_job_new (assumptions, table, 0, &error);
  assert_non_null (error);
  assert_non_null (strstr (error->message, "rule [id = *-001], line 2: column.micro_batch = 7: "
                                           "found \"2\" in this cell"));
  assert_non_null (strstr (error->message, "\"and micro_batch = blank\""));
}

/* Conditions of rules may contain arithmetic with columns. A condition that uses a blank cell is
 * false. */
static void
a_condition_may_compare_an_expression (void **state)
{
  static const char rules[] = "[(layers + 2) % (pp * vpp) != 0]\n"
                              "column.mfu_pct = ceil (({layers} + 1) / 2) * 10\n"
                              "[layers * tflops_per_gpu != 1]\n"
                              "strategy.bucket_size = 5\n"
                              "[num_gpus / dp > 1]\n"
                              "strategy.bucket_size = 6\n";
  g_autofree char *path = g_build_filename (*state, "a.ini", NULL);
  g_autoptr (weft_published) table = load (SMALL);

  assert_true (g_file_set_contents (path, rules, -1, NULL));
  g_autoptr (weft_assumptions) assumptions = assume (path);
  for (unsigned i = 0; i < 3; i++) {
    g_autoptr (GError) error = NULL;
    g_autoptr (weft_row_job) row = weft_row_job_new (assumptions, table, i, &error);
    assert_string_equal (row->cell[WEFT_COLUMN_layers], "4");
    assert_string_equal (row->cell[WEFT_COLUMN_tflops_per_gpu], "");
    assert_int_equal (row->applied->len, i == 2);
  }
  g_autofree char *odd = changed ("Nano,,4,", "Nano,,4,");
  char *at = strstr (odd, ",1,2,1,4,1,,optim");
  assert_non_null (at);
  at[3] = '4';
  g_autoptr (weft_published) other = weft_published_parse (odd, -1, "odd", NULL);
  g_autoptr (GError) error = NULL;
  g_autoptr (weft_row_job) row = weft_row_job_new (assumptions, other, 2, &error);
  assert_int_equal (row->applied->len, 2);
  assert_string_equal (row->cell[WEFT_COLUMN_mfu_pct], "30");
}

/* --------------------------------------------------------------------- the command */

static JsonObject *
member (JsonObject *object, const char *name)
{
  if (!json_object_has_member (object, name))
    fail_msg ("no member \"%s\"", name);
  return json_object_get_object_member (object, name);
}

static void
json_has_every_member_of_its_schema (void **state)
{
  static const char *const sums[] = { "n", "mape", "median", "p90", "max", "bias", NULL };
  static const char *const cells[] = { "id",
                                       "predicted_time_s",
                                       "measured_time_s",
                                       "time_error",
                                       "predicted_memory_gib",
                                       "measured_memory_gib",
                                       "memory_error",
                                       NULL };
  struct answer answer = weft_test_answer ("validate " SMALL " --json");
  g_autoptr (JsonParser) parser = json_parser_new ();

  (void) state;
  assert_int_equal (answer.status, 0);
  assert_true (json_parser_load_from_data (parser, answer.out, -1, NULL));
  JsonObject *top = json_node_get_object (json_parser_get_root (parser));
  assert_string_equal (json_object_get_string_member (top, "schema"), "weft.validate/1");
  assert_int_equal (json_object_get_int_member (top, "rows"), 8);
  assert_int_equal (json_object_get_int_member (top, "predicted"), 6);
  assert_int_equal (json_array_get_length (json_object_get_array_member (top, "refused")), 2);
  for (unsigned i = 0; sums[i]; i++) {
    assert_true (json_object_has_member (member (top, "time"), sums[i]));
    assert_true (json_object_has_member (member (top, "memory"), sums[i]));
  }
  JsonArray *rows = json_object_get_array_member (top, "per_row");
  assert_int_equal (json_array_get_length (rows), 6);
  for (unsigned i = 0; cells[i]; i++)
    assert_true (json_object_has_member (json_array_get_object_element (rows, 0), cells[i]));
  assert_int_equal (json_array_get_length (json_object_get_array_member (top, "groups")), 2);
  JsonArray *sources = json_object_get_array_member (top, "sources");
  JsonObject *source = json_array_get_object_element (sources, 0);
  assert_int_equal (json_array_get_length (sources), 2);
  assert_string_equal (json_object_get_string_member (source, "source"), "one");
  assert_false (json_object_get_boolean_member (source, "apart"));
  assert_true (json_object_has_member (source, "mape") && json_object_has_member (source, "bias"));
  assert_true (json_object_get_double_member (member (top, "mean_by_source"), "time") > 0);
  weft_test_answer_free (&answer);
}

static void
a_mean_error_above_the_limit_is_status_3 (void **state)
{
  struct answer within = weft_test_answer ("validate " SMALL " --max-mape 1e6");
  struct answer above = weft_test_answer ("validate " SMALL " --max-mape 0.0001");
  struct answer none = weft_test_answer ("validate " SMALL " --tier C --max-mape 1");

  (void) state;
  assert_int_equal (within.status, 0);
  assert_int_equal (above.status, 3);
  assert_non_null (strstr (above.out, "step time"));
  assert_non_null (strstr (above.err, "wanted at most 0.0 %"));
  assert_int_equal (none.status, 3);
  weft_test_answer_free (&within);
  weft_test_answer_free (&above);
  weft_test_answer_free (&none);
}

static void
an_explained_row_ends_in_a_job_file (void **state)
{
  struct answer answer = weft_test_answer ("validate " SMALL " --explain two-001");

  (void) state;
  assert_int_equal (answer.status, 0);
  assert_non_null (strstr (answer.out, "strategy.use_distributed_optimizer = true"));
  assert_non_null (strstr (answer.out, "[dp_sharding = optim]"));
  assert_non_null (strstr (answer.out, "because models without a gated MLP have the architecture"));
  const char *file = strstr (answer.out, "# as a job file");
  assert_non_null (file);
  g_autoptr (GError) error = NULL;
  g_autoptr (weft_conf) conf = weft_conf_parse (file, -1, "job", &error);
  g_autoptr (weft_settings) settings = weft_settings_new ();
  struct weft_job job;
  weft_settings_add_conf (settings, conf);
  assert_true (weft_job_build (settings, &job, &error));
  assert_int_equal (job.strategy.pipeline_model_parallel_size, 2);
  weft_test_answer_free (&answer);
}

static void
a_line_for_each_row_is_a_table_itself (void **state)
{
  g_autofree char *path = g_build_filename (*state, "out.csv", NULL);
  g_autofree char *words = g_strdup_printf ("validate " SMALL " --csv %s", path);
  struct answer answer = weft_test_answer (words);
  g_autoptr (weft_csv) csv = weft_csv_load (path, NULL);

  assert_int_equal (answer.status, 0);
  assert_non_null (csv);
  assert_int_equal (csv->n_row, 8);
  assert_string_equal (weft_csv_cell (csv, 7, weft_csv_find (csv, "refused_by")), "batch");
  assert_string_equal (weft_csv_cell (csv, 1, weft_csv_find (csv, "measured_memory_gib")), "");
  weft_test_answer_free (&answer);
}

static void
without_a_table_it_is_the_bundled_one (void **state)
{
  struct answer answer = weft_test_answer ("validate --source megreadme");

  (void) state;
  assert_int_equal (answer.status, 0);
  assert_true (g_str_has_prefix (answer.out, "1 rows: "));
  weft_test_answer_free (&answer);
}

static void
bad_words_are_usage (void **state)
{
  (void) state;
  weft_test_refused ("validate nowhere.csv", 2, "nowhere.csv");
  weft_test_refused ("validate " SMALL " --tier D", 2, "--tier: found \"D\"");
  weft_test_refused ("validate " SMALL " --max-mape much", 2, "--max-mape: found \"much\"");
  weft_test_refused ("validate " SMALL " --group none", 2, "found no row");
  weft_test_refused ("validate " SMALL " --explain none", 2, "found no row \"none\"");
  weft_test_refused ("validate " SMALL " --jobs 0", 2, "--jobs");
  weft_test_refused ("validate " SMALL " --executor cpu", 2, "--executor");
}

#define IN_A_FOLDER(test)                                                                          \
  cmocka_unit_test_setup_teardown (test, weft_test_folder_make, weft_test_folder_remove)
static const struct CMUnitTest tests[] = {
  cmocka_unit_test (errors_are_counted_by_size_and_averaged_with_their_sign),
  cmocka_unit_test (nine_of_ten_are_at_most_p90),
  cmocka_unit_test (a_row_is_the_job_that_its_columns_say),
  cmocka_unit_test (time_follows_from_tokens_where_it_is_not_printed),
  cmocka_unit_test (a_printed_gigabyte_is_one_of_three),
  cmocka_unit_test (tier_c_is_predicted_and_never_counted),
  IN_A_FOLDER (rows_that_are_apart_count_in_their_source_but_in_no_total),
  cmocka_unit_test (a_mean_by_source_counts_each_source_once),
  cmocka_unit_test (a_blank_cell_without_an_assumption_refuses_its_row),
  cmocka_unit_test (rows_are_chosen_by_tier_group_and_source),
  cmocka_unit_test (the_number_of_threads_changes_nothing),
  cmocka_unit_test (every_published_row_is_a_job_or_refused_by_name),
  cmocka_unit_test (rows_of_other_sources_have_their_software),
  cmocka_unit_test (published_rows_keep_their_source),
  cmocka_unit_test (degrees_of_published_rows_make_their_gpus),
  cmocka_unit_test (rows_mixed_at_random_are_jobs_or_refused),
  cmocka_unit_test (groups_add_up_to_the_whole),
  cmocka_unit_test (a_long_step_is_told_from_two_short_ones),
  cmocka_unit_test (a_short_step_is_looked_at_itself),
  cmocka_unit_test (a_table_that_is_none_is_refused_with_its_place),
  cmocka_unit_test (a_word_that_nobody_knows_is_no_default),
  IN_A_FOLDER (assumptions_that_say_nothing_are_refused_with_their_line),
  IN_A_FOLDER (rules_are_applied_from_top_to_bottom),
  IN_A_FOLDER (a_rule_for_a_printed_cell_is_refused),
  IN_A_FOLDER (a_condition_may_compare_an_expression),
  cmocka_unit_test (json_has_every_member_of_its_schema),
  cmocka_unit_test (a_mean_error_above_the_limit_is_status_3),
  cmocka_unit_test (an_explained_row_ends_in_a_job_file),
  IN_A_FOLDER (a_line_for_each_row_is_a_table_itself),
  cmocka_unit_test (without_a_table_it_is_the_bundled_one),
  cmocka_unit_test (bad_words_are_usage),
};

WEFT_TESTS (tests, .seconds = 7)
