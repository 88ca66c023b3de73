/* The random jobs of random_job.c must set every knob to a value other than its default, if a
 * legal job can have such a value. Otherwise tests with random jobs would not cover the knob. */
#include "tests/made/random_job.h"
#include "tests/runner/runner.h"
#include <string.h>

#define SEED 20261121
#define LEAST 2 /* number of jobs that must set each knob to another value than its default */
/* limit of drawn jobs, far above the number that test_random_jobs.c plans */
#define MOST_DRAWN 20000

/* Knobs that random jobs never set: no legal job has another value than the default, the knob
 * changes only prices and no program, or other tests set it (tests/passes/test_finetune.c,
 * tests/core/test_collective_files.c). */
static const char *const undrawn[] = {
  "attention_priced_in_fp8",
  "attention_priced_with_dropout",
  "collective_algorithm_files",
  "experts_priced_as_gpt_oss",
  "fp8_priced_as",
  "freeze",
  "lora_alpha",
  "lora_dim",
  "lora_dropout",
  "moe_flex_dispatcher_backend",
  "moe_priced_with_next_experts",
  "optimizer", /* a choice with only one value */
  "target_modules",
};

static gboolean
can_be_drawn (const struct weft_field *field)
{
  for (size_t i = 0; i < G_N_ELEMENTS (undrawn); i++)
    if (g_str_equal (field->name, undrawn[i]))
      return FALSE;
  return field->type != WEFT_TYPE_METHOD && !weft_field_is_pending (field);
}

static const union weft_value *
strategy_values (const struct weft_job *job)
{
  return job->strategy.at;
}

static const union weft_value *
train_values (const struct weft_job *job)
{
  return job->train.at;
}

/* Counts the jobs in which each knob of a table differs from its default. */
struct drawn {
  const struct weft_table *table;
  const union weft_value *(*values) (const struct weft_job *job);
  uint32_t *n;
};

static void
count (struct drawn *d, const struct weft_job *job)
{
  for (unsigned f = 0; f < d->table->n; f++)
    d->n[f] += !weft_field_is_default (&d->table->field[f], d->values (job)[f]);
}

static const char *
rarely_drawn (const struct drawn *d)
{
  for (unsigned f = 0; f < d->table->n; f++)
    if (d->n[f] < LEAST && can_be_drawn (&d->table->field[f]))
      return d->table->field[f].name;
  return NULL;
}

static void
draw_legal (GRand *rand, struct weft_job *job)
{
  for (;;) {
    g_autoptr (GError) error = NULL;
    g_autofree char *words = weft_random_job (rand);
    if (weft_test_job (words, job, &error))
      return;
    if (!strstr (error->message, "rule "))
      fail_msg ("%s: %s", words, error->message);
  }
}

/* Some knobs are rarely set, and any change of random_job.c changes which jobs set them. So the
 * test draws jobs until all knobs were set, up to a limit far above the usual number of jobs. */
static void
every_knob_is_drawn_away_from_its_default (void **state)
{
  g_autofree uint32_t *of_strategy = g_new0 (uint32_t, weft_strategy_table.n),
                      *of_train = g_new0 (uint32_t, weft_train_table.n);
  struct drawn strategy = { &weft_strategy_table, strategy_values, of_strategy },
               train = { &weft_train_table, train_values, of_train };
  g_autoptr (GRand) rand = g_rand_new_with_seed (SEED);
  const char *rare;
  uint32_t n = 0;

  (void) state;
  while ((rare = rarely_drawn (&strategy)) || (rare = rarely_drawn (&train))) {
    struct weft_job job;
    if (n++ == MOST_DRAWN)
      fail_msg ("less than %u of %u jobs have %s away from its default", LEAST, MOST_DRAWN, rare);
    draw_legal (rand, &job);
    count (&strategy, &job);
    count (&train, &job);
  }
  print_message ("every knob is drawn within %u jobs\n", n);
}

static const struct CMUnitTest tests[] = {
  cmocka_unit_test (every_knob_is_drawn_away_from_its_default),
};

WEFT_TESTS (tests)
