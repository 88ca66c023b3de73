/* Job files: a file from which a job can be built is printed as a job file again, and the printed
 * file must build the same job. */
#include "core/job/job.h"
#include "tests/fuzz/fuzz.h"
#include <string.h>

/* Collects the settings of a job file. Leaves out values that contain a slash, because such a value
 * may be a path, and a fuzzer must not open files of this machine. */
static weft_settings *
collect (const weft_conf *conf)
{
  weft_settings *settings = weft_settings_new ();

  for (unsigned i = 0; i < conf->n_entry; i++) {
    const struct weft_conf_entry *entry = &conf->entry[i];
    if (!strchr (entry->value, '/'))
      weft_settings_add (settings, entry->section, entry->key, entry->value, "fuzz");
  }
  return settings;
}

static gboolean
build (const char *text, gssize size, struct weft_job *job, GError **error)
{
  g_autoptr (weft_conf) conf = weft_conf_parse (text, size, "fuzz", error);

  if (!conf)
    return FALSE;
  g_autoptr (weft_settings) settings = collect (conf);
  return weft_job_build (settings, job, error);
}

int
LLVMFuzzerTestOneInput (const uint8_t *data, size_t size)
{
  struct weft_job job, again;
  g_autoptr (GError) error = NULL;

  if (!build ((const char *) data, size, &job, &error)) {
    g_assert_nonnull (error);
    g_assert_true (g_utf8_validate (error->message, -1, NULL));
    return 0;
  }
  g_assert_no_error (error);
  g_autofree char *first = weft_job_print (&job);
  build (first, -1, &again, &error);
  g_assert_no_error (error);
  g_autofree char *second = weft_job_print (&again);
  g_assert_cmpstr (first, ==, second);
  return 0;
}
