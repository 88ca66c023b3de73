/* open_job.h - jobs for tests of the search. */
#pragma once
#include "core/job/flags.h"
#include "tests/runner/runner.h"

/* Returns a job from pairs of flag and value, ended by NULL. Rules are not checked, because the
 * knobs that the search will set may break rules. */
static inline struct weft_job
open_job (const char *const *words)
{
  g_autoptr (weft_settings) settings = weft_settings_new ();
  g_autoptr (GError) error = NULL;
  struct weft_job job;

  for (unsigned i = 0; words[i]; i += 2) {
    const char *section, *key;
    gboolean boolean;
    assert_true (weft_job_flag (words[i], &section, &key, &boolean));
    weft_settings_add (settings, section, key, words[i + 1], words[i]);
  }
  if (!weft_job_assemble (settings, &job, &error))
    fail_msg ("%s", error->message);
  return job;
}
