#include "cli/outputs.h"
#include "core/base/error.h"
#include "core/base/output.h"
#include <sys/stat.h>

static gboolean
is_same_file (const char *a, const char *b)
{
  struct stat x, y;

  return stat (a, &x) == 0 && stat (b, &y) == 0 && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

static gboolean
check_inputs (const struct weft_cli_output *o, const char *const *inputs, GError **error)
{
  for (; inputs && *inputs; inputs++)
    if (is_same_file (o->path, *inputs))
      return weft_bad_input (error, "--%s %s: is an input of this command (expected another file)",
                             o->flag, o->path);
  return TRUE;
}

/* Checks that no other output is the same file; the file may not exist yet. `target`: the file of
 * this output; NULL: a device or pipe, which may have several outputs. */
static gboolean
check_others (const struct weft_cli_output *o, const char *target,
              const struct weft_cli_output *others, unsigned n, GError **error)
{
  g_autofree char *name = target ? g_canonicalize_filename (target, NULL) : NULL;

  for (unsigned i = 0; name && i < n; i++) {
    g_autofree char *other =
        others[i].path ? g_canonicalize_filename (others[i].path, NULL) : g_strdup ("");
    if (g_str_equal (name, other) || (*other && is_same_file (name, other)))
      return weft_bad_input (error, "--%s %s: is also the file of --%s (expected another file)",
                             o->flag, o->path, others[i].flag);
  }
  return TRUE;
}

gboolean
weft_cli_check_outputs (const struct weft_cli_output *outputs, unsigned n,
                        const char *const *inputs, GError **error)
{
  for (unsigned i = 0; i < n; i++) {
    g_autofree char *target = NULL;
    if (!outputs[i].path)
      continue;
    if (!weft_output_find (outputs[i].path, &target, error)) {
      g_prefix_error (error, "--%s ", outputs[i].flag);
      return FALSE;
    }
    if (!check_inputs (&outputs[i], inputs, error) ||
        !check_others (&outputs[i], target, outputs, i, error))
      return FALSE;
  }
  return TRUE;
}
