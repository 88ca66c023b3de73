#include "core/job/collectives.h"
#include "core/base/error.h"
#include <string.h>

static const char *
list_of (const struct weft_job *job)
{
  const char *text = g_quark_to_string ((GQuark) job->strategy.collective_algorithm_files);

  return text && *text && !g_str_equal (text, "none") ? text : NULL;
}

gboolean
weft_job_has_algorithms (const struct weft_job *job)
{
  return list_of (job) != NULL;
}

static void
algorithm_free (void *data)
{
  struct weft_job_algorithm *a = data;

  g_free (a->group);
  if (a->text)
    weft_algo_text_free (a->text);
  g_free (a);
}

/* Reads one GROUP:FILE of the list. */
static struct weft_job_algorithm *
read_one (const char *item, GError **error)
{
  const char *colon = strchr (item, ':');

  if (!colon || colon == item || !colon[1]) {
    weft_bad_input (error, "found \"%s\", wanted GROUP:FILE, as in dp:ring.txt", item);
    return NULL;
  }
  struct weft_job_algorithm *a = g_new0 (struct weft_job_algorithm, 1);
  a->group = g_strndup (item, colon - item);
  a->text = weft_algo_load (colon + 1, error);
  if (a->text)
    return a;
  algorithm_free (a);
  return NULL;
}

GPtrArray *
weft_job_algorithms (const struct weft_job *job, GError **error)
{
  g_autoptr (GPtrArray) all = g_ptr_array_new_with_free_func (algorithm_free);
  g_auto (GStrv) item = g_strsplit (list_of (job) ? list_of (job) : "", ",", -1);

  for (unsigned i = 0; item[i]; i++) {
    struct weft_job_algorithm *a = read_one (g_strstrip (item[i]), error);
    if (!a)
      return NULL;
    g_ptr_array_add (all, a);
  }
  return g_steal_pointer (&all);
}
