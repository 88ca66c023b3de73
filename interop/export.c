#include "interop/result.h"
#include "core/base/error.h"
#include "core/base/suggest.h"
#include "core/program/layout.h"
#include <string.h>

struct writer {
  const struct weft_target *target;
  const weft_reading *ours; /* reading of the job: its settings as texts */
  weft_keys_read *keys;     /* keys of the software that the export writes */
  const char **theirs;      /* by setting: name of the key that expresses the setting */
};

/* Rows of own.def. */
struct own {
  const char *name, *doc, *when;
  int setting;
  struct weft_pairs pairs;
};

static const struct own *
own_rows (unsigned *n)
{
  static struct own rows[] = {
#define OWN(setting, doc) { #setting, doc, "", 0, { NULL, 0 } },
#define IDLE(setting, when) { #setting, "no effect with " when, when, 0, { NULL, 0 } },
#include "interop/own.def"
  };
  static gsize ready;

  if (g_once_init_enter (&ready)) {
    for (unsigned i = 0; i < G_N_ELEMENTS (rows); i++) {
      rows[i].setting = weft_texts_find (rows[i].name);
      rows[i].pairs = weft_pairs_parse (rows[i].when);
    }
    g_once_init_leave (&ready, 1);
  }
  *n = G_N_ELEMENTS (rows);
  return rows;
}

/* Returns why a setting of Weft does not affect the run of this job; NULL: the setting affects the
 * run. */
static const char *
own_reason (const weft_reading *ours, unsigned setting)
{
  const struct weft_field *field = weft_texts_field (setting, NULL);
  unsigned n;
  const struct own *rows = own_rows (&n);

  for (unsigned i = 0; i < n; i++)
    if (rows[i].setting == (int) setting && weft_reading_agrees (ours, &rows[i].pairs))
      return rows[i].doc;
  if (field->affects && g_str_has_prefix (field->affects, "none: "))
    return field->affects + strlen ("none: ");
  return NULL;
}

/* ---------------------------------------------------------------------------- one setting */

/* Returns a value in the spelling of the key: integers without exponent, words as in the choices of
 * the key. The caller frees it. */
static char *
spelled (const struct weft_key *key, const char *text)
{
  g_auto (GStrv) choices = g_strsplit (key->choices, " ", -1);
  gint64 whole;

  for (unsigned i = 0; *key->choices && choices[i]; i++)
    if (weft_same_name (choices[i], text))
      return g_strdup (choices[i]);
  char *end;
  double number = g_ascii_strtod (text, &end);
  if (key->kind == WEFT_KEY_INT && *text && *end == '\0' &&
      !g_ascii_string_to_signed (text, 10, G_MININT64, G_MAXINT64, &whole, NULL) &&
      ABS (number) < 1e15 && number == (double) (gint64) number)
    return g_strdup_printf ("%" G_GINT64_FORMAT, (gint64) number);
  return g_strdup (text);
}

/* Whether the job has all settings of a row, and `setting` is one of them. *value receives the
 * value of the setting that is "*" in the row. */
static gboolean
agrees (const struct writer *w, const struct weft_pairs *pairs, unsigned setting,
        const char **value)
{
  gboolean names = FALSE;

  for (unsigned i = 0; i < pairs->n; i++) {
    const char *ours = weft_reading_at (w->ours, pairs->at[i].setting);
    names |= pairs->at[i].setting == setting;
    if (*pairs->at[i].value == '*')
      *value = ours;
    else if (strcmp (pairs->at[i].value, ours) != 0)
      return FALSE;
  }
  return names;
}

/* Returns the value of the key of a row that expresses the job, or NULL if the row does not hold
 * for the job. The caller frees it. */
static char *
value_for (const struct writer *w, const struct weft_meaning *meaning, unsigned setting)
{
  const struct weft_key_row *row = meaning->row;
  const char *ours = "";

  if (meaning->key < 0 || !agrees (w, &meaning->sets, setting, &ours) ||
      !weft_reading_agrees (w->ours, &meaning->when))
    return NULL;
  const struct weft_key *key = &w->target->schema->key[meaning->key];
  g_autofree char *value = row->form                        ? row->form->out (w->ours)
                           : strcmp (row->theirs, "*") == 0 ? spelled (key, ours)
                                                            : g_strdup (row->theirs);
  if (!value || !weft_key_check (key, "", value, NULL))
    return NULL;
  return g_steal_pointer (&value);
}

/* Adds the keys that every export to the target has. */
static void
add_always (const struct weft_target *target, weft_keys_read *keys, const struct weft_job *job)
{
  keys->gpus = job->cluster.n_gpus;
  for (unsigned i = 0; i < target->n_always; i++)
    weft_keys_add (keys, target->schema, target->prefix, target->always[i].key,
                   target->always[i].value, "export", NULL);
}

static void
add_key (struct writer *w, const char *name, const char *value)
{
  weft_keys_add (w->keys, w->target->schema, w->target->prefix, name, value, "export", NULL);
}

/* Returns the value that the form of a key computes for the job; NULL: none. The caller frees
 * it. */
static char *
calculated (const struct writer *w, const char *key)
{
  const struct weft_meanings *meanings = weft_target_meanings (w->target);

  for (unsigned i = 0; i < meanings->n; i++) {
    const struct weft_key_row *row = meanings->at[i].row;
    if (row->key && row->form && strcmp (row->key, key) == 0)
      return row->form->out (w->ours);
  }
  return NULL;
}

/* Adds the keys of a text "key=value key=value" that the export does not have yet. The value "*"
 * stands for the value that the form of the key computes. */
static void
add_also (struct writer *w, const char *text)
{
  g_auto (GStrv) words = g_strsplit (text ? text : "", " ", -1);

  for (unsigned i = 0; words[i]; i++) {
    g_auto (GStrv) pair = g_strsplit (words[i], "=", 2);
    if (!pair[0] || !pair[1] || weft_keys_value (w->keys, w->target->schema, pair[0]))
      continue;
    g_autofree char *value =
        strcmp (pair[1], "*") == 0 ? calculated (w, pair[0]) : g_strdup (pair[1]);
    if (value)
      add_key (w, pair[0], value);
  }
}

/* Adds the second key that a row needs (`with`), if this is a key without value. */
static void
add_partner (struct writer *w, const struct weft_key_row *row)
{
  const struct weft_schema *schema = w->target->schema;
  int at = row->with ? weft_schema_find (schema, row->with) : -1;

  if (at >= 0 && schema->key[at].kind == WEFT_KEY_ON &&
      !weft_keys_value (w->keys, schema, row->with))
    add_key (w, row->with, NULL);
}

/* Adds the key that expresses a setting, unless the software has this setting also without the
 * key. */
static void
add_setting (struct writer *w, unsigned setting)
{
  const struct weft_meanings *meanings = weft_target_meanings (w->target);
  g_autofree char *absent = weft_reading_absent (w->ours, setting);

  gboolean idle = absent && own_reason (w->ours, setting);
  if (w->theirs[setting] || idle || weft_reading_elsewhere (w->ours, setting) ||
      g_strcmp0 (absent, weft_reading_at (w->ours, setting)) == 0)
    return;
  for (unsigned i = 0; i < meanings->n; i++) {
    const struct weft_meaning *meaning = &meanings->at[i];
    g_autofree char *value = value_for (w, meaning, setting);
    if (!value)
      continue;
    add_partner (w, meaning->row);
    add_key (w, meaning->row->key, value);
    add_also (w, meaning->row->also);
    for (unsigned p = 0; p < meaning->sets.n; p++)
      w->theirs[meaning->sets.at[p].setting] = meaning->row->key;
    return;
  }
}

/* ------------------------------------------------------------------------------- the report */

static void
add_line (struct writer *w, weft_interop_result *result, const weft_reading *back, unsigned setting)
{
  const struct weft_field *field = weft_texts_field (setting, NULL);
  const char *value = weft_reading_at (w->ours, setting), *own = own_reason (w->ours, setting);
  const char *there = weft_reading_at (back, setting);
  const char *elsewhere = weft_reading_elsewhere (w->ours, setting);

  if (field->type == WEFT_TYPE_METHOD)
    return;
  gboolean same = g_strcmp0 (value, there) == 0;
  int state = own                  ? WEFT_EXPORT_OWN
              : elsewhere          ? WEFT_EXPORT_ELSEWHERE
              : !same              ? WEFT_EXPORT_NOT
              : w->theirs[setting] ? WEFT_EXPORT_MAPPED
                                   : WEFT_EXPORT_DEFAULT;
  struct weft_interop_line *line =
      weft_interop_line_add (result, field->name, value, w->theirs[setting], state);
  if (own || elsewhere)
    line->why = g_strdup (own ? own : elsewhere);
  if (!same) {
    line->there = g_strdup (there);
    line->instead = there ? g_strdup_printf ("%s=%s", field->name, there) : NULL;
  }
  if (state == WEFT_EXPORT_NOT)
    line->why = g_strdup_printf ("%s there", there ? there : "needs a key");
  result->n_not += state == WEFT_EXPORT_NOT;
}

/* Returns the setting to change in a combination of settings that the software refuses: the
 * opposite of the last setting. NULL: no single value is the opposite. The caller frees the
 * text. */
static char *
opposite (const struct weft_pairs *pairs)
{
  const struct weft_pair *last = &pairs->at[pairs->n - 1];
  const char *name = weft_texts_field (last->setting, NULL)->name;

  if (!last->equal)
    return g_strdup_printf ("%s=%s", name, last->value);
  if (strcmp (last->value, "true") == 0 || strcmp (last->value, "false") == 0)
    return g_strdup_printf ("%s=%s", name, *last->value == 't' ? "false" : "true");
  return NULL;
}

/* Adds a line for each combination of settings that the software refuses. */
static void
add_refusals (struct writer *w, weft_interop_result *result)
{
  const struct weft_meanings *meanings = weft_target_meanings (w->target);

  for (unsigned i = 0; i < meanings->n; i++) {
    const struct weft_meaning *meaning = &meanings->at[i];
    if (meaning->key >= 0 || meaning->sets.n || !weft_reading_agrees (w->ours, &meaning->when))
      continue;
    struct weft_interop_line *line =
        weft_interop_line_add (result, meaning->row->when, NULL, NULL, WEFT_EXPORT_NOT);
    line->why = g_strdup (meaning->row->doc);
    line->instead = opposite (&meaning->when);
    result->n_not++;
  }
}

/* If two settings have the same meaning, keeps the one that other software has. */
static void
normalise (struct weft_job *job)
{
  union weft_strategy *k = &job->strategy;
  const union weft_strategy *def = weft_strategy_defaults ();

  k->data_parallel_sharding_strategy = weft_job_sharding (job);
  k->zero_dp_strategy = def->zero_dp_strategy;
  if (k->use_megatron_fsdp)
    k->distributed_config = WEFT_MEGATRON_FSDP;
  job->knob_set[WEFT_KNOB_zero_dp_strategy] = FALSE;
  if (k->make_vocab_size_divisible_by == WEFT_NONE)
    k->make_vocab_size_divisible_by = k->tensor_model_parallel_size > 1 ? WEFT_JOB_VOCAB_UNIT : 1;
  if (k->activation_checkpointing && !k->use_megatron_fsdp) {
    k->activation_checkpointing = FALSE;
    k->recompute_granularity = WEFT_RECOMPUTE_FULL;
    k->recompute_method = WEFT_RECOMPUTE_UNIFORM;
    k->recompute_num_layers = 1;
  }
}

/* Sets the padding unit of the vocabulary to that of the software if both give the same size. */
static void
adapt_padding (const struct weft_target *target, struct weft_job *job)
{
  g_autoptr (weft_reading) ours = weft_reading_of_job (target, job, NULL);
  g_autofree struct weft_job *there = g_memdup2 (job, sizeof *job);
  int setting = weft_texts_find ("make_vocab_size_divisible_by");
  g_autofree char *unit = weft_reading_absent (ours, (unsigned) setting);

  there->strategy.make_vocab_size_divisible_by = unit ? g_ascii_strtoll (unit, NULL, 10) : 0;
  if (there->strategy.make_vocab_size_divisible_by > 0 &&
      weft_job_padded_vocab (there) == weft_job_padded_vocab (job))
    job->strategy.make_vocab_size_divisible_by = there->strategy.make_vocab_size_divisible_by;
}

/* Sets bucket_size to the number that Megatron-Core uses by default, if the software has another
 * default. */
static void
adapt_buckets (const struct weft_target *target, struct weft_job *job)
{
  g_autoptr (weft_reading) ours = weft_reading_of_job (target, job, NULL);
  union weft_strategy *k = &job->strategy;
  g_autofree char *there = weft_reading_absent (ours, (unsigned) weft_texts_find ("bucket_size"));

  if (k->bucket_size == WEFT_NONE && g_strcmp0 (there, "none") != 0)
    k->bucket_size = (int64_t) weft_layout_default_threshold (
        (uint32_t) (weft_job_dp (job) * k->context_parallel_size));
}

/* Exports a job to a target whose keys are settings of Weft. */
static weft_interop_result *
export_settings (const struct weft_target *target, const struct weft_job *job)
{
  weft_interop_result *result = weft_interop_result_new (target);
  g_auto (GStrv) texts = weft_texts_of (job);

  for (unsigned i = 0; i < weft_texts_count (); i++) {
    const struct weft_field *field = weft_texts_field (i, NULL);
    if (field->type != WEFT_TYPE_METHOD)
      weft_interop_line_add (result, field->name, texts[i], field->name, WEFT_EXPORT_MAPPED);
  }
  result->text = target->write (target, NULL, job);
  result->launch = target->launch (job);
  return result;
}

weft_interop_result *
weft_export (const struct weft_target *target, const struct weft_job *job, GError **error)
{
  g_autofree struct weft_job *plain = g_memdup2 (job, sizeof *job);
  g_autoptr (weft_interop_result) result = weft_interop_result_new (target);
  g_autoptr (weft_keys_read) keys = weft_keys_read_new (), fixed = weft_keys_read_new ();
  g_autofree const char **theirs = g_new0 (const char *, weft_texts_count ());

  if (!target->write) {
    weft_bad_input (error, "%s is only read, by weft import", target->release);
    return NULL;
  }
  if (target->settings)
    return export_settings (target, job);
  normalise (plain);
  adapt_padding (target, plain);
  adapt_buckets (target, plain);
  add_always (target, keys, plain);
  add_always (target, fixed, plain);
  g_autoptr (weft_reading) ours = weft_reading_of_job (target, plain, fixed);
  g_autoptr (weft_reading) back = weft_reading_new (target, keys);
  struct writer w = { target, ours, keys, theirs };
  for (unsigned i = 0; i < weft_texts_count (); i++)
    add_setting (&w, i);
  weft_reading_share (back, ours);
  if (!weft_reading_apply (back, error))
    return NULL;
  for (unsigned i = 0; i < weft_texts_count (); i++)
    add_line (&w, result, back, i);
  add_refusals (&w, result);
  result->text = target->write (target, keys, plain);
  result->launch = target->launch ? target->launch (plain) : NULL;
  return g_steal_pointer (&result);
}

char *
weft_export_elsewhere (const weft_interop_result *result)
{
  g_autoptr (GString) text = g_string_new (NULL);
  const char *section;

  for (unsigned i = 0; i < result->lines->len; i++) {
    const struct weft_interop_line *line = result->lines->pdata[i];
    int setting = line->state == WEFT_EXPORT_ELSEWHERE ? weft_texts_find (line->ours) : -1;
    const struct weft_field *field =
        setting >= 0 ? weft_texts_field ((unsigned) setting, &section) : NULL;
    if (field && strcmp (section, "model") != 0 && strcmp (field->def, line->value) != 0)
      g_string_append_printf (text, "%s%s = %s", text->len ? ", " : "", line->ours, line->value);
  }
  return text->len ? g_string_free (g_steal_pointer (&text), FALSE) : NULL;
}

char *
weft_export_left_out (const weft_interop_result *result)
{
  g_autoptr (GString) text = g_string_new (NULL);

  for (unsigned i = 0; i < result->lines->len; i++) {
    const struct weft_interop_line *line = result->lines->pdata[i];
    if (line->state != WEFT_EXPORT_NOT)
      continue;
    g_string_append_printf (text, "%s%s", text->len ? "; " : "", line->ours);
    if (line->value)
      g_string_append_printf (text, " = %s", line->value);
    g_string_append_printf (text, " (%s)", line->why);
  }
  return text->len ? g_string_free (g_steal_pointer (&text), FALSE) : NULL;
}
