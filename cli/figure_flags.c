#include "cli/figure_flags.h"
#include "cli/figures/figures.h"
#include "core/base/error.h"
#include <string.h>

gboolean
weft_cli_figure_check (const struct weft_cli_figure_ask *ask, GError **error)
{
  if (!ask->path)
    return !ask->monochrome || weft_bad_input (error, "--monochrome needs --figure");
  if (weft_figure_check (ask->path, error))
    return TRUE;
  g_prefix_error (error, "--figure ");
  return FALSE;
}

gboolean
weft_cli_figure_write (const struct weft_cli_figure_ask *ask, const weft_figure *figure,
                       GError **error)
{
  return !ask->path || weft_figure_write (figure, ask->path, ask->monochrome, error);
}

/* ----------------------------------------------------------------- figures of a step */

#define FIGURE_WORD(word, doc) #word,
static const char *const words[] = { WEFT_CLI_STEP_FIGURE_LIST (FIGURE_WORD) NULL };

#define FIGURE_DOC(word, doc) "; " #word ": " doc
static const char about[] =
    "draw figures of the step into files that end with .svg or .pdf"
    WEFT_CLI_STEP_FIGURE_LIST (FIGURE_DOC);

const char *
weft_cli_step_figures_doc (void)
{
  return about;
}

static void
clear (void *figure)
{
  g_free (((struct weft_cli_step_figure *) figure)->path);
}

static gboolean
read_one (const char *text, struct weft_cli_step_figure *figure, GError **error)
{
  const char *path = strchr (text, '=');
  g_autofree char *word = g_strndup (text, path ? (gsize) (path - text) : strlen (text));

  for (figure->kind = 0; words[figure->kind]; figure->kind++)
    if (g_str_equal (words[figure->kind], word))
      break;
  if (!path || !words[figure->kind]) {
    g_autofree char *known = g_strjoinv (", ", (char **) words);
    return weft_bad_input (error,
                           "--figure: found \"%s\", wanted KIND=FILE, where KIND is one of %s",
                           text, known);
  }
  if (!weft_figure_check (path + 1, error)) {
    g_prefix_error (error, "--figure %s=", word);
    return FALSE;
  }
  figure->path = g_strdup (path + 1);
  return TRUE;
}

GArray *
weft_cli_step_figures_read (const char *text, GError **error)
{
  g_autoptr (GArray) figures = g_array_new (FALSE, FALSE, sizeof (struct weft_cli_step_figure));
  g_auto (GStrv) part = g_strsplit (text ? text : "", ",", -1);

  g_array_set_clear_func (figures, clear);
  for (unsigned i = 0; part[i]; i++) {
    struct weft_cli_step_figure figure;
    if (!read_one (part[i], &figure, error))
      return NULL;
    g_array_append_val (figures, figure);
  }
  return g_steal_pointer (&figures);
}
