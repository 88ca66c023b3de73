#include "cli/accuracy_fit.h"
#include "cli/sheets.h"
#include "core/base/conf.h"
#include "core/base/error.h"
#include "planner/constants.h"
#include <json-glib/json-glib.h>
#include <math.h>
#include <string.h>

/* ------------------------------------------------------------------------- the last fit */

/* The JSON document of the last fit; NULL without an error if there is none. */
static gboolean
load_fit (JsonNode **fit, GError **error)
{
  g_autofree char *path = g_build_filename (weft_data_dir (), "validation", "fit.json", NULL);
  g_autofree char *text = NULL;

  *fit = NULL;
  if (!g_file_test (path, G_FILE_TEST_EXISTS))
    return TRUE;
  if (!g_file_get_contents (path, &text, NULL, error))
    return FALSE;
  *fit = json_from_string (text, NULL);
  if (*fit && JSON_NODE_HOLDS_OBJECT (*fit) &&
      json_object_has_member (json_node_get_object (*fit), "constants"))
    return TRUE;
  g_clear_pointer (fit, json_node_unref);
  return weft_bad_input (error, "%s: found no fit, wanted the output of weft fit --json", path);
}

/* The number in a member; NaN if the member is null or missing. */
static double
number (JsonObject *object, const char *member)
{
  JsonNode *node = object ? json_object_get_member (object, member) : NULL;
  return node && JSON_NODE_HOLDS_VALUE (node) ? json_node_get_double (node) : NAN;
}

static JsonObject *
object (JsonObject *parent, const char *member)
{
  JsonNode *node = parent ? json_object_get_member (parent, member) : NULL;
  return node && JSON_NODE_HOLDS_OBJECT (node) ? json_node_get_object (node) : NULL;
}

/* The result of the last fit for a constant; NULL: none. */
static JsonObject *
fitted_of (JsonNode *fit, const char *name)
{
  JsonArray *all =
      fit ? json_object_get_array_member (json_node_get_object (fit), "constants") : NULL;

  for (guint i = 0; all && i < json_array_get_length (all); i++) {
    JsonObject *one = json_array_get_object_element (all, i);
    if (g_strcmp0 (json_object_get_string_member (one, "constant"), name) == 0)
      return one;
  }
  return NULL;
}

/* --------------------------------------------------------------------------- constants */

static void
append_number (GString *text, double value, double scale, const char *format)
{
  if (isfinite (value))
    g_string_append_printf (text, format, scale * value);
  g_string_append (text, " | ");
}

static char *
human (const struct weft_field *field, double value)
{
  return g_strstrip (weft_cli_field_human (field, (union weft_value){ .r = value }));
}

static gboolean
append_constant (GString *text, const struct weft_constant *c, JsonNode *fit, GError **error)
{
  const struct weft_field *field = &c->sheet->table->field[c->row];
  const weft_sheet_file *file = g_ptr_array_index (c->sheets, 0);
  g_autofree char *name = weft_constant_name (c);
  g_autofree char *source = weft_cli_field_source (file, c->row, error);
  JsonObject *fitted = fitted_of (fit, name);

  if (!source)
    return FALSE;
  g_strdelimit (source, "|", '/');
  g_strdelimit (name, "|", ',');
  g_autofree char *prior = human (field, c->prior), *low = human (field, c->low);
  g_autofree char *high = human (field, c->high), *today = human (field, file->values[c->row].r);
  g_string_append_printf (text, "| %s | %s | %s..%s | %s | ", name, prior, low, high, today);
  append_number (text, number (fitted, "standard_error"), 100, "%.1f");
  append_number (text, number (fitted, "time_rows"), 1, "%.0f");
  append_number (text, number (fitted, "memory_rows"), 1, "%.0f");
  append_number (text, number (fitted, "time_without"), 100, "%.1f");
  append_number (text, number (fitted, "memory_without"), 100, "%.1f");
  g_string_append_printf (text, "%s |\n", source);
  return TRUE;
}

static gboolean
append_constants (GString *text, JsonNode *fit, GError **error)
{
  g_autoptr (weft_constants) constants = weft_constants_load (NULL, error);

  if (!constants)
    return FALSE;
  g_string_append_printf (
      text,
      "## Constants\n\n"
      "The %u constants that `weft fit` adjusts ([validation/fit.ini](../validation/fit.ini)): "
      "the prior value,\nthe range, the value in the files of today, and where it comes from. %s"
      "\n\n"
      "| constant | prior | range | today | +- %% | times | memories | time without | memory "
      "without | origin |\n|---|---|---|---|---|---|---|---|---|---|\n",
      constants->n,
      fit ? "Of the last fit: the\nstandard error, the rows that depend on the constant, and the "
            "mean error by source in % if this\nconstant kept its prior value."
          : "No fit is\nrecorded (validation/fit.json): the cells about it are blank.");
  for (uint32_t i = 0; i < constants->n; i++)
    if (!append_constant (text, &constants->constant[i], fit, error))
      return FALSE;
  g_string_append_c (text, '\n');
  return TRUE;
}

/* ----------------------------------------------------------------------------- sources */

static const char *const states[] = { "prior", "fitted", "left_out" };

static void
append_source (GString *text, JsonObject *source, const char *quantity)
{
  JsonObject *errors = object (source, quantity);

  if (!(number (errors, "n") > 0))
    return;
  g_string_append_printf (text, "| %s | %s | %.0f | ",
                          json_object_get_string_member (source, "source"), quantity,
                          number (errors, "n"));
  for (unsigned i = 0; i < G_N_ELEMENTS (states); i++)
    append_number (text, number (object (errors, states[i]), "mean"), 100, "%.1f");
  g_string_truncate (text, text->len - 1);
  g_string_append_c (text, '\n');
}

static void
append_left_out (GString *text, JsonNode *fit)
{
  JsonObject *root = json_node_get_object (fit);
  JsonArray *sources = json_object_get_array_member (root, "sources");
  static const char *const quantities[] = { "time", "memory" };

  g_string_append (text,
                   "Mean error of each source with the prior values, after the fit, and *left "
                   "out*: with constants\nthat were fitted without its rows, which is the error "
                   "to expect for a cluster that is not in the table.\n\n"
                   "| source | | rows | prior | fitted | left out |\n"
                   "|---|---|---|---|---|---|\n");
  for (unsigned q = 0; q < G_N_ELEMENTS (quantities); q++) {
    g_autofree char *means = g_strconcat (quantities[q], "_by_source", NULL);
    for (guint i = 0; i < json_array_get_length (sources); i++)
      append_source (text, json_array_get_object_element (sources, i), quantities[q]);
    g_string_append_printf (text, "| mean by source | %s | | ", quantities[q]);
    for (unsigned i = 0; i < G_N_ELEMENTS (states); i++)
      append_number (text, number (object (root, means), states[i]), 100, "**%.1f**");
    g_string_truncate (text, text->len - 1);
    g_string_append_c (text, '\n');
  }
  g_string_append_c (text, '\n');
}

gboolean
weft_cli_accuracy_fit (GString *text, GError **error)
{
  g_autoptr (JsonNode) fit = NULL;

  if (!load_fit (&fit, error) || !append_constants (text, fit, error))
    return FALSE;
  if (fit)
    append_left_out (text, fit);
  return TRUE;
}
