/* Runs `weft plan` with one knob fixed ("pinned") to a value, for all knobs and many values of
 * their ranges. Every search must end with a ranking or with a message that says why there is
 * none. Arguments: SEED [SEARCHES]. With more searches than pairs of knob and value, the pairs
 * are repeated with other models. */
#include "core/job/strategy.h"
#include "tests/attack/attack.h"
#include "tests/runner/folder.h"
#include "tests/runner/runner.h"

#define SEARCHES 15
#define MOST_SECONDS 120

/* Appends a flag that fixes ("pins") a knob to a value. The array `pins` frees the text. */
static void
add_pin (GPtrArray *pins, const struct weft_field *field, const char *value)
{
  g_autofree char *dashed = g_strdelimit (g_strdup (field->name), "_", '-');
  g_ptr_array_add (pins, g_strdup_printf ("--%s=%s", dashed, value));
}

/* Adds flags that fix a numeric knob: to the lower end of its range and the next number, to the
 * upper end, and to 2, 3, 4, 8 and 16. */
static void
add_numbers (GPtrArray *pins, const struct weft_field *field)
{
  double lo = field->lo ? g_ascii_strtod (field->lo, NULL) : 0;
  double hi = field->hi ? g_ascii_strtod (field->hi, NULL) : 1e9;
  const double numbers[] = { lo, lo + 1, 2, 3, 4, 8, 16, hi };

  for (unsigned i = 0; i < G_N_ELEMENTS (numbers); i++) {
    g_autofree char *value = g_strdup_printf ("%.17g", numbers[i]);
    if (numbers[i] >= lo && numbers[i] <= hi)
      add_pin (pins, field, value);
  }
}

static void
add_pins (GPtrArray *pins, const struct weft_field *field)
{
  if (field->type == WEFT_TYPE_METHOD || weft_field_is_pending (field))
    return;
  add_pin (pins, field, field->def);
  if (field->type == WEFT_TYPE_INT || field->type == WEFT_TYPE_REAL)
    add_numbers (pins, field);
  else if (field->type == WEFT_TYPE_TEXT)
    add_pin (pins, field, "2,2");
  else if (field->type == WEFT_TYPE_BOOL)
    add_pin (pins, field, "true"), add_pin (pins, field, "false");
  else
    for (const char *const *word = field->words; *word; word++)
      add_pin (pins, field, *word);
}

/* Returns the flags that fix one knob each ("pins") in random order, so that the first n pins are a
 * sample. The caller unrefs the array. */
static GPtrArray *
all_pins (GRand *rand)
{
  GPtrArray *pins = g_ptr_array_new_with_free_func (g_free);

  for (unsigned i = 0; i < weft_strategy_table.n; i++)
    add_pins (pins, &weft_strategy_table.field[i]);
  for (guint i = pins->len; i > 1; i--) {
    guint j = (guint) g_rand_int_range (rand, 0, (gint32) i);
    gpointer last = pins->pdata[i - 1];
    pins->pdata[i - 1] = pins->pdata[j];
    pins->pdata[j] = last;
  }
  return pins;
}

/* Draws a job with a real model (1 to 30 billion parameters) on 1 to 8 nodes. The search of such
 * a job takes seconds, so these jobs are drawn only if SEARCHES is given. */
static char *
draw_large_job (GRand *rand)
{
  static const char *const models[] = { "deepseek-v2-lite", "llama3-8b", "qwen3-30b-a3b",
                                        "gpt-oss-20b", "gemma3-1b" };

  return g_strdup_printf ("--model %s --topology dgx-h100 --nodes %d --global-batch-size 64",
                          models[g_rand_int_range (rand, 0, G_N_ELEMENTS (models))],
                          1 << g_rand_int_range (rand, 0, 4));
}

/* Draws the job of a search: a small model on 2 to 8 GPUs or on several nodes, or a large job. */
static char *
draw_job (GRand *rand)
{
  static const char *const models[] = { "gpt2-nano",     "llama-nano", "mixtral-nano",
                                        "deepseek-nano", "neox-nano",  "gemma2-nano" };
  static const char *const sizes[] = { "--gpus 2", "--gpus 6", "--gpus 8", "--nodes 2" };
  static const char *const clusters[] = { "dgx-h100", "l40s-pcie", "v100-4x" };

  if (attack_drawn.jobs && attack_one_in (rand, 4))
    return draw_large_job (rand);
  return g_strdup_printf ("--model %s --topology %s %s --global-batch-size %d",
                          models[g_rand_int_range (rand, 0, G_N_ELEMENTS (models))],
                          clusters[g_rand_int_range (rand, 0, G_N_ELEMENTS (clusters))],
                          sizes[g_rand_int_range (rand, 0, G_N_ELEMENTS (sizes))],
                          8 << g_rand_int_range (rand, 0, 3));
}

static void
a_search_with_any_pinned_knob_ends_well (void **state)
{
  g_autoptr (GRand) rand = g_rand_new_with_seed (attack_drawn.seed);
  g_autoptr (GPtrArray) pins = all_pins (rand);
  uint32_t n[ATTACK_N_END] = { 0 }, count = attack_count (SEARCHES);

  attack_folder_fill (*state);
  for (uint32_t i = 0; i < count; i++) {
    g_autofree char *job = draw_job (rand);
    g_autofree char *line =
        g_strdup_printf ("plan %s --finalists 1 %s", job, (char *) pins->pdata[i % pins->len]);
    struct attack_run run = attack_words (*state, MOST_SECONDS, "%s", line);
    n[run.end]++;
    if (run.end == ATTACK_FAULT || run.end == ATTACK_SLOW)
      attack_print (&run, line);
    attack_run_clear (&run);
  }
  print_message ("seed %u, %u of %u pins: %u ranked, %u refused, %u slow, %u faults\n",
                 attack_drawn.seed, count, pins->len, n[ATTACK_DONE], n[ATTACK_REFUSED],
                 n[ATTACK_SLOW], n[ATTACK_FAULT]);
  assert_int_equal (n[ATTACK_FAULT], 0);
  assert_true (n[ATTACK_DONE] > count / 4);
}

static const struct CMUnitTest tests[] = {
  cmocka_unit_test_setup_teardown (a_search_with_any_pinned_knob_ends_well, weft_test_folder_make,
                                   weft_test_folder_remove),
};

WEFT_TESTS (tests, .begin = attack_begin, .seconds = 10)
