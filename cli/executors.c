#include "cli/executors.h"
#include "core/base/error.h"
#include "core/base/suggest.h"
#include "exec_cpu/exec_cpu.h"
#include "exec_gpu/cuda/exec_cuda.h"
#include "exec_sim/exec_sim.h"

static gboolean
load_cuda (GError **error)
{
  return weft_cuda_load (error) != NULL;
}

/* The executors. The flags of their ops say whether an executor predicts times or runs a job. The
 * first executor of each of these kinds is the default. */
static const struct executor {
  const struct weft_exec_ops *ops;
  gboolean (*load) (GError **error); /* NULL: nothing to load */
} executors[] = {
  { &weft_exec_sim, NULL },
  { &weft_exec_clock, NULL },
  { &weft_exec_cpu, NULL },
  { &weft_exec_cuda, load_cuda },
};

static gboolean
is_real (const struct executor *e)
{
  return (e->ops->flags & WEFT_EXEC_NUMBERS) != 0;
}

/* The names of the executors that run (`real`) or predict, joined by `separator`, with `last`
 * before the last name. */
static char *
names (gboolean real, const char *separator, const char *last)
{
  g_autoptr (GPtrArray) word = g_ptr_array_new ();
  GString *text = g_string_new (NULL);

  for (unsigned i = 0; i < G_N_ELEMENTS (executors); i++)
    if (is_real (&executors[i]) == real)
      g_ptr_array_add (word, (gpointer) executors[i].ops->name);
  if (real)
    g_ptr_array_add (word, (gpointer) "auto");
  for (guint i = 0; i < word->len; i++)
    g_string_append_printf (text, "%s%s",
                            i == 0              ? ""
                            : i + 1 < word->len ? separator
                                                : last,
                            (const char *) g_ptr_array_index (word, i));
  return g_string_free (text, FALSE);
}

static const struct executor *
find (const char *name, gboolean real, GError **error)
{
  const char *known[G_N_ELEMENTS (executors) + 2];
  unsigned n = 0;

  for (unsigned i = 0; i < G_N_ELEMENTS (executors); i++) {
    if (is_real (&executors[i]) != real)
      continue;
    if (!name || g_str_equal (name, executors[i].ops->name) || (real && g_str_equal (name, "auto")))
      return &executors[i];
    known[n++] = executors[i].ops->name;
  }
  known[n] = NULL;
  g_autofree char *wanted = names (real, ", ", " or ");
  const char *close = weft_suggest_strv (name, known);
  weft_bad_input (error, "--executor: found \"%s\", wanted %s%s%s%s", name, wanted,
                  close ? "; did you mean " : "", close ? close : "", close ? "?" : "");
  return NULL;
}

const struct weft_exec_ops *
weft_cli_executor (const char *name, GError **error)
{
  const struct executor *e = find (name, FALSE, error);

  return e ? e->ops : NULL;
}

const struct weft_exec_ops *
weft_cli_real_executor (const char *name, GError **error)
{
  const struct executor *e = find (name, TRUE, error);

  return e && (!e->load || e->load (error)) ? e->ops : NULL;
}

static const char *
interned (gboolean real)
{
  g_autofree char *text = names (real, "|", "|");
  return g_intern_string (text);
}

const char *
weft_cli_executor_names (void)
{
  return interned (FALSE);
}

const char *
weft_cli_real_executor_names (void)
{
  return interned (TRUE);
}
