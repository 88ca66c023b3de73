#include "interop/own_job.h"
#include "core/base/conf.h"

static gboolean
own_settings (const char *text, const char *name, weft_settings *out, GPtrArray *unknown,
              GError **error)
{
  (void) unknown; /* weft_settings_check() refuses unknown keys */
  g_autoptr (weft_conf) conf = weft_conf_parse (text, -1, name, error);

  if (!conf)
    return FALSE;
  weft_settings_add_conf (out, conf);
  return weft_settings_check (out, error);
}

static char *
own_write (const struct weft_target *target, const weft_keys_read *keys, const struct weft_job *job)
{
  (void) target, (void) keys;
  return weft_job_print (job);
}

static char *
own_launch (const struct weft_job *job)
{
  (void) job;
  return g_strdup ("weft sim FILE.ini");
}

static const struct weft_schema schema = { NULL, 0, FALSE };

const struct weft_target weft_own_job = {
  .name = "weft",
  .release = "this release of Weft",
  .doc = "job file",
  .prefix = "",
  .schema = &schema,
  .settings = own_settings,
  .write = own_write,
  .launch = own_launch,
};
