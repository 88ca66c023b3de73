/* An exported job must import to the same job: random legal jobs, all targets. */
#include "interop/interop.h"
#include "tests/made/random_job.h"
#include "tests/runner/runner.h"
#include <string.h>

enum { N_JOB = 30, N_TARGET = 8 };

/* Settings of a model that torchtitan knows by name. In half of the jobs they replace the model
 * that was drawn at random, because torchtitan accepts only models that it knows. */
static const char known_model[] =
    " model=qwen3-0.6b num_layers=28 hidden_size=1024 ffn_hidden_size=3072 num_attention_heads=16"
    " num_query_groups=8 kv_channels=128 vocab_size=151936 seq_length=4096 activation=swiglu"
    " normalization=rmsnorm position_embedding_type=rope share_embeddings_and_output_weights=true"
    " add_bias_linear=false add_qkv_bias=false qk_layernorm=true norm_epsilon=1e-6"
    " rotary_base=1e6 residual=sequential norm_placement=pre embedding_layernorm=false"
    " embedding_multiplier=1 attn_logit_softcapping=0 final_logit_softcapping=0"
    " query_pre_attn_scalar=0 num_moe_experts=0 sliding_window=0";

/* A legal random job of GPUs. */
static char *
draw (GRand *rand, struct weft_job *job)
{
  for (;;) {
    g_autofree char *drawn = weft_random_job (rand);
    g_autofree char *words = g_strconcat (drawn, g_rand_boolean (rand) ? "" : known_model, NULL);
    if (weft_test_job (words, job, NULL) && !strstr (words, "topology=cpu"))
      return g_steal_pointer (&words);
  }
}

/* Whether the training program sets a setting, and not the exported configuration. */
static gboolean
is_elsewhere (const weft_interop_result *out, const char *setting)
{
  for (unsigned i = 0; i < out->lines->len; i++) {
    const struct weft_interop_line *line = out->lines->pdata[i];
    if (line->state == WEFT_EXPORT_ELSEWHERE && strcmp (line->ours, setting) == 0)
      return TRUE;
  }
  return FALSE;
}

/* Builds a job from imported settings. The cluster, the stack and the settings that the
 * configuration does not contain come from the first job. */
static void
build (weft_settings *settings, const weft_interop_result *out, const struct weft_job *like,
       struct weft_job *job, const char *words)
{
  g_autoptr (GError) error = NULL;
  g_autofree char *text = weft_job_print (like);
  g_autoptr (weft_conf) conf = weft_conf_parse (text, -1, "job", NULL);

  for (unsigned i = 0; i < conf->n_entry; i++) {
    const struct weft_conf_entry *entry = &conf->entry[i];
    if (strcmp (entry->section, "cluster") == 0 || strcmp (entry->section, "stack") == 0 ||
        is_elsewhere (out, entry->key) ||
        (out->target->model && strcmp (entry->section, "model") == 0))
      weft_settings_add (settings, entry->section, entry->key, entry->value, "job");
  }
  if (!weft_job_build (settings, job, &error))
    fail_msg ("%s: %s", words, error->message);
}

/* Settings that the configuration contains are those of the first job. */
static void
assert_same (const weft_interop_result *out, const struct weft_job *job, const char *words)
{
  g_auto (GStrv) texts = weft_texts_of (job);

  for (unsigned i = 0; i < out->lines->len; i++) {
    const struct weft_interop_line *line = out->lines->pdata[i];
    const char *there = texts[weft_texts_find (line->ours)];
    if (line->state != WEFT_EXPORT_OWN && line->state != WEFT_EXPORT_ELSEWHERE &&
        strcmp (line->value, there) != 0)
      fail_msg ("%s: %s: %s was exported as %s and imported as %s: %s", out->target->name,
                line->ours, weft_export_state_words[line->state], line->value, there, words);
  }
}

static weft_interop_result *
export_job (const struct weft_target *target, const struct weft_job *job, const char *words)
{
  g_autoptr (GError) error = NULL;
  weft_interop_result *out = weft_export (target, job, &error);

  if (!out)
    fail_msg ("%s: %s: %s", target->name, error->message, words);
  return out;
}

/* Replaces settings that the software cannot express by the values that the software has instead.
 * FALSE: the resulting job is illegal. */
static gboolean
adapt (const weft_interop_result *out, struct weft_job *job)
{
  g_autofree char *text = weft_job_print (job);
  g_autoptr (weft_conf) conf = weft_conf_parse (text, -1, "job", NULL);
  g_autoptr (weft_settings) settings = weft_settings_new ();
  const char *section;

  weft_settings_add_conf (settings, conf);
  for (unsigned i = 0; i < out->lines->len; i++) {
    const struct weft_interop_line *line = out->lines->pdata[i];
    if (line->state == WEFT_EXPORT_NOT && !line->there)
      return FALSE;
    if (!line->there ||
        weft_texts_field ((unsigned) weft_texts_find (line->ours), &section)->type ==
            WEFT_TYPE_TEXT)
      continue;
    weft_settings_add (settings, section, line->ours, line->there, "there");
  }
  return weft_job_build (settings, job, NULL);
}

/* Exports a job and imports the text. Returns whether the software can express the job. */
static gboolean
goes_round (const struct weft_target *target, const struct weft_job *job, const char *words)
{
  g_autoptr (weft_interop_result) out = export_job (target, job, words);
  g_autoptr (GError) error = NULL;
  g_autofree char *text = weft_job_print (job);
  g_autoptr (weft_conf) conf = weft_conf_parse (text, -1, "job", NULL);
  g_autoptr (weft_settings) flags = weft_settings_new ();
  struct weft_import_options options = { job->cluster.n_gpus, flags, FALSE };
  weft_settings_add_conf (flags, conf);
  g_autoptr (weft_interop_result) in = weft_import (target, out->text, "text", &options, &error);
  struct weft_job back;

  if (!in && out->n_not)
    return FALSE; /* the settings that the software has may be no legal job */
  if (!in)
    fail_msg ("%s: %s\n%s\n%s", target->name, error->message, out->text, words);
  if (out->n_not)
    return FALSE;
  assert_int_equal (in->needed->len, 0);
  build (in->settings, out, job, &back, words);
  assert_same (out, &back, words);
  return TRUE;
}

/* Whether an exported job can be imported as the same job, after at most two replacements of the
 * settings that the software cannot express. The second is needed because settings depend on each
 * other. */
static gboolean
comes_back (const struct weft_target *target, const struct weft_job *job, const char *words)
{
  struct weft_job other = *job;

  for (unsigned i = 0; i < 3; i++) {
    g_autoptr (weft_interop_result) out = export_job (target, &other, words);
    if (goes_round (target, &other, words))
      return TRUE;
    if (!adapt (out, &other))
      return FALSE;
  }
  return FALSE;
}

/* Random jobs, exported and imported, with settings that a software cannot express replaced. */
static void
random_jobs_come_back (void **state)
{
  GRand *rand = g_rand_new_with_seed (20261124);
  unsigned whole[N_TARGET] = { 0 };

  (void) state;
  for (unsigned i = 0; i < N_JOB; i++) {
    struct weft_job job;
    g_autofree char *words = draw (rand, &job);
    for (unsigned t = 0; weft_targets[t]; t++) {
      if (weft_targets[t]->write)
        whole[t] += comes_back (weft_targets[t], &job, words);
    }
  }
  g_rand_free (rand);
  for (unsigned t = 0; weft_targets[t]; t++)
    if (weft_targets[t]->write && whole[t] < N_JOB / 10)
      fail_msg ("%s: only %u of %d jobs", weft_targets[t]->name, whole[t], N_JOB);
}

static const struct CMUnitTest tests[] = {
  cmocka_unit_test (random_jobs_come_back),
};

WEFT_TESTS (tests)
