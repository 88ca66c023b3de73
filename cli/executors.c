#include "cli/executors.h"
#include "core/base/error.h"
#include "core/base/suggest.h"
#include "exec_cpu/exec_cpu.h"
#include "exec_gpu/cuda/exec_cuda.h"
#include "exec_sim/exec_sim.h"

static const struct weft_exec_ops *const predicting[] = { &weft_exec_sim, &weft_exec_clock, NULL };
static const struct weft_exec_ops *const running[] = { &weft_exec_cpu, &weft_exec_cuda, NULL };

const struct weft_exec_ops *const *
weft_cli_executors (void)
{
  return predicting;
}

const struct weft_exec_ops *const *
weft_cli_real_executors (void)
{
  return running;
}

/* Joins words: `last` is put before the last word, `separator` between the others. */
static char *
join (const GPtrArray *word, const char *separator, const char *last)
{
  GString *text = g_string_new (NULL);

  for (guint i = 0; i < word->len; i++)
    g_string_append_printf (text, "%s%s",
                            i == 0              ? ""
                            : i + 1 < word->len ? separator
                                                : last,
                            (const char *) g_ptr_array_index (word, i));
  return g_string_free (text, FALSE);
}

static GPtrArray *
names_with (const struct weft_exec_ops *const *executors, weft_cli_has *has, const void *what)
{
  GPtrArray *names = g_ptr_array_new ();

  for (; *executors; executors++)
    if (!has || has (*executors, what))
      g_ptr_array_add (names, (gpointer) (*executors)->name);
  return names;
}

static GPtrArray *
names_of (gboolean real)
{
  GPtrArray *names = names_with (real ? running : predicting, NULL, NULL);

  if (real)
    g_ptr_array_add (names, (gpointer) "auto");
  return names;
}

gboolean
weft_cli_has_flags (const struct weft_exec_ops *ops, const void *what)
{
  uint32_t flags = *(const uint32_t *) what;

  return (ops->flags & flags) == flags;
}

char *
weft_cli_executors_with (const struct weft_exec_ops *const *executors, weft_cli_has *has,
                         const void *what)
{
  g_autoptr (GPtrArray) names = names_with (executors, has, what);

  return join (names, ", ", " or ");
}

char *
weft_cli_executors_about (const struct weft_exec_ops *const *executors, weft_cli_has *has,
                          const void *what)
{
  g_autofree char *names = weft_cli_executors_with (executors, has, what);

  for (; *executors; executors++)
    if (!has (*executors, what))
      return g_strdup_printf ("executor %s: ", names);
  return g_strdup ("");
}

static const struct weft_exec_ops *
find (const char *name, gboolean real, GError **error)
{
  const struct weft_exec_ops *const *all = real ? running : predicting;

  if (!name || (real && g_str_equal (name, "auto")))
    return all[0];
  for (; *all; all++)
    if (g_str_equal (name, (*all)->name))
      return *all;
  g_autoptr (GPtrArray) names = names_of (real);
  g_autofree char *wanted = join (names, ", ", " or ");
  g_ptr_array_add (names, NULL);
  const char *close = weft_suggest_strv (name, (const char *const *) names->pdata);
  weft_bad_input (error, "--executor: found \"%s\", wanted %s%s%s%s", name, wanted,
                  close ? "; did you mean " : "", close ? close : "", close ? "?" : "");
  return NULL;
}

const struct weft_exec_ops *
weft_cli_executor (const char *name, GError **error)
{
  return find (name, FALSE, error);
}

const struct weft_exec_ops *
weft_cli_real_executor (const char *name, GError **error)
{
  return find (name, TRUE, error);
}

static const char *
interned (gboolean real)
{
  g_autoptr (GPtrArray) names = names_of (real);
  g_autofree char *text = join (names, "|", "|");

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
