/* Jobs and plans that tests make from flags as text. */
#include "tests/made/random_job.h"
#include "core/job/flags.h"
#include "core/plan/cost_table.h"
#include <glib/gstdio.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <unistd.h>

#include <cmocka.h>

/* A test draws random jobs until one is legal. If this many jobs in a row are refused, the test
 * fails, because then probably no job is legal. */
enum { MOST_REFUSED = 20000 };

static gboolean
build_job (const char *words, struct weft_job *job, GError **error)
{
  g_autoptr (weft_settings) settings = weft_settings_new ();

  return weft_flags_words (words, settings, error) && weft_job_build (settings, job, error);
}

gboolean
weft_test_job (const char *words, struct weft_job *job, GError **error)
{
  static int refused;
  g_autoptr (GError) why = NULL;

  if (build_job (words, job, &why)) {
    g_atomic_int_set (&refused, 0);
    return TRUE;
  }
  if (g_atomic_int_add (&refused, 1) + 1 >= MOST_REFUSED)
    fail_msg ("%d jobs in a row are refused; is this executable older than topologies/, models/ "
              "or stacks/? The newest: %s; in %s",
              MOST_REFUSED, why->message, words);
  g_propagate_error (error, g_steal_pointer (&why));
  return FALSE;
}

weft_plan *
weft_test_plan (const char *words, ...)
{
  g_autoptr (GError) error = NULL;
  struct weft_job job;
  va_list args;

  va_start (args, words);
  g_autofree char *all = g_strdup_vprintf (words, args);
  va_end (args);
  weft_plan *plan = weft_test_job (all, &job, &error) ? weft_plan_new (&job, &error) : NULL;
  if (!plan)
    fail_msg ("%s; in %s", error->message, all);
  return plan;
}

weft_plan *
weft_test_plan_priced (const char *words, const GArray *rows)
{
  g_autoptr (GString) text = g_string_new ("# made by a test\n");
  g_autofree char *path = NULL;
  int file = g_file_open_tmp ("weft-measure-XXXXXX", &path, NULL);

  assert_true (file >= 0);
  close (file);
  for (guint i = 0; i < rows->len; i++)
    weft_cost_table_print (text, &g_array_index (rows, struct weft_measurement, i));
  assert_true (g_file_set_contents (path, text->str, -1, NULL));
  weft_plan *plan = weft_test_plan ("%s cost_table=%s", words, path);
  g_unlink (path);
  return plan;
}
