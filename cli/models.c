#include "cli/ask.h"
#include "cli/cli.h"
#include "cli/completion.h"
#include "core/base/json.h"
#include "core/job/model.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

static const struct weft_table *const table = &weft_model_table;

/* A number of parameters as text, "8.03B" or "427k", where B means billions. The caller frees the
 * text. */
static char *
count_text (uint64_t n)
{
  static const struct {
    double size;
    const char *letter;
  } steps[] = { { 1e12, "T" }, { 1e9, "B" }, { 1e6, "M" }, { 1e3, "k" } };

  for (unsigned i = 0; i < G_N_ELEMENTS (steps); i++)
    if (n >= 0.9995 * steps[i].size) {
      double shown = n / steps[i].size;
      int places = shown < 9.995 ? 2 : shown < 99.95 ? 1 : 0;
      return g_strdup_printf ("%.*f%s", places, shown, steps[i].letter);
    }
  return g_strdup_printf ("%" G_GUINT64_FORMAT, n);
}

/* The width of the MLP as text; for experts "128 x 768, top 8". The caller frees the text. */
static char *
ffn_text (const union weft_model *m)
{
  if (!m->num_moe_experts)
    return g_strdup_printf ("%" G_GINT64_FORMAT, m->ffn_hidden_size);
  return g_strdup_printf ("%" G_GINT64_FORMAT " x %" G_GINT64_FORMAT ", top %" G_GINT64_FORMAT,
                          m->num_moe_experts, m->moe_ffn_hidden_size, m->moe_router_topk);
}

static char *
heads_text (const union weft_model *m)
{
  if (m->kv_lora_rank)
    return g_strdup_printf ("%" G_GINT64_FORMAT "/latent", m->num_attention_heads);
  return g_strdup_printf ("%" G_GINT64_FORMAT "/%" G_GINT64_FORMAT, m->num_attention_heads,
                          m->num_query_groups);
}

static char *
int_text (int64_t n)
{
  return g_strdup_printf ("%" G_GINT64_FORMAT, n);
}

/* The source of the model's shape as text. The parameter count, which follows a semicolon in the
 * file, is cut off. The caller frees the text. */
static char *
source_text (const union weft_model *m)
{
  const char *source = g_quark_to_string (m->source);
  return g_strndup (source, strcspn (source, ";"));
}

/* Columns of the table: X(head, width, text of the cell from `m`). A negative width aligns the cell
 * left. */
#define COLUMN_LIST(X)                                                                             \
  X ("name", -15, g_strdup (g_quark_to_string (m->name)))                                          \
  X ("layers", 6, int_text (m->num_layers))                                                        \
  X ("width", 6, int_text (m->hidden_size))                                                        \
  X ("heads/kv", 10, heads_text (m))                                                               \
  X ("ffn", 17, ffn_text (m))                                                                      \
  X ("vocab", 7, int_text (m->vocab_size))                                                         \
  X ("context", 7, int_text (m->max_position_embeddings))                                          \
  X ("params", 7, count_text (weft_model_parameters (m)))                                          \
  X ("active", 7, count_text (weft_model_active_parameters (m)))                                   \
  X ("family", -11, g_strdup (g_quark_to_string (m->family)))                                      \
  X ("source", 0, source_text (m))

#define COLUMN_HEAD(head, width, text) { head, width },
static const struct {
  const char *head;
  int width;
} columns[] = { COLUMN_LIST (COLUMN_HEAD) };

#define COLUMN_CELL(head, width, text) g_ptr_array_add (cells, text);
static GPtrArray *
cells_of (const union weft_model *m)
{
  GPtrArray *cells = g_ptr_array_new_with_free_func (g_free);
  COLUMN_LIST (COLUMN_CELL)
  return cells;
}

/* Prints one row of the table, or the heads of the columns if `cells` is NULL. Columns on the right
 * that do not fit the terminal are left out, and the last column that is printed may be cut. */
static void
print_row (GPtrArray *cells)
{
  const unsigned last = G_N_ELEMENTS (columns) - 1;
  const int most = weft_cli_columns ();
  unsigned i;
  int used = 0;

  for (i = 0; i < last && ABS (columns[i].width) + 2 <= most - used; i++)
    used += printf ("%*s  ", columns[i].width, cells ? (char *) cells->pdata[i] : columns[i].head);
  if (i == last)
    weft_cli_print_rest (cells ? cells->pdata[last] : columns[last].head, used, most);
  else
    printf ("\n");
}

/* Numbers that are computed from the shape of a model, for the page of one model and for JSON. */
#define RESULT_LIST(X)                                                                             \
  X ("parameters", weft_model_parameters (m), "all parameters, as their authors count them")       \
  X ("active_parameters", weft_model_active_parameters (m), "parameters that one token uses")      \
  X ("matmul_parameters", weft_model_matmul_parameters (m), "parameters in matmuls: the N of 6N")  \
  X ("mtp_parameters", weft_model_mtp_parameters (m), "more, in multi-token prediction layers")    \
  X ("flops_per_token_causal", llround (weft_model_flops_per_token (m, TRUE)),                     \
     "FLOPs to train one token, causal half of attention")                                         \
  X ("flops_per_token_palm", llround (weft_model_flops_per_token (m, FALSE)),                      \
     "FLOPs to train one token, whole attention")

static void
print_line (const char *name, const char *value, const char *doc)
{
  int used = printf ("  %-36s %14s  ", name, value);
  weft_cli_print_rest (doc, used, weft_cli_columns ());
}

static void
print_result (const char *name, uint64_t value, const char *doc)
{
  g_autofree char *text = g_strdup_printf ("%" G_GUINT64_FORMAT, value);
  print_line (name, text, doc);
}

#define RESULT_PRINT(name, value, doc) print_result (name, value, doc);
static void
print_page (const union weft_model *m)
{
  const char *source = g_quark_to_string (m->source);

  int used = printf ("%s%s", g_quark_to_string (m->name), *source ? ": " : "");
  weft_cli_print_beside (source, used, weft_cli_columns ());
  putchar ('\n');
  for (unsigned i = 0; i < table->n; i++) {
    g_autofree char *value = weft_field_print (&table->field[i], m->at[i]);
    if (i != WEFT_MODEL_name && i != WEFT_MODEL_source)
      print_line (table->field[i].name, value, table->field[i].doc);
  }
  printf ("\n");
  RESULT_LIST (RESULT_PRINT)
}

#define RESULT_BUILD(name, value, doc)                                                             \
  json_builder_set_member_name (builder, name);                                                    \
  json_builder_add_int_value (builder, value);
static void
build_page (JsonBuilder *builder, const union weft_model *m)
{
  json_builder_begin_object (builder);
  for (unsigned i = 0; i < table->n; i++)
    weft_json_value (builder, (&table->field[i])->name, &table->field[i], m->at[i]);
  RESULT_LIST (RESULT_BUILD)
  json_builder_end_object (builder);
}

static gboolean
load_all (GArray *models, GError **error)
{
  g_auto (GStrv) names = weft_model_names ();

  for (unsigned i = 0; names[i]; i++) {
    union weft_model model;
    if (!weft_model_load (names[i], &model, NULL, error))
      return FALSE;
    g_array_append_val (models, model);
  }
  return TRUE;
}

static void
print_list (const GArray *models)
{
  print_row (NULL);
  for (unsigned i = 0; i < models->len; i++) {
    g_autoptr (GPtrArray) cells = cells_of (&g_array_index (models, union weft_model, i));
    print_row (cells);
  }
  printf ("\nffn of experts: routed experts x width of an expert, experts per token.\n"
          "`weft models NAME` shows the fields of one; NAME may be the path of a\n"
          "config.json.\n");
}

static int
show_all (gboolean json)
{
  g_autoptr (GArray) models = g_array_new (FALSE, FALSE, sizeof (union weft_model));
  g_autoptr (GError) error = NULL;

  if (!load_all (models, &error))
    return weft_cli_fail (error);
  if (!json) {
    print_list (models);
    return 0;
  }
  g_autoptr (JsonBuilder) builder = json_builder_new ();
  json_builder_begin_array (builder);
  for (unsigned i = 0; i < models->len; i++)
    build_page (builder, &g_array_index (models, union weft_model, i));
  json_builder_end_array (builder);
  weft_cli_print_json (builder);
  return 0;
}

static int
show_one (const char *name, gboolean json)
{
  g_autoptr (GPtrArray) unknown = g_ptr_array_new_with_free_func (g_free);
  g_autoptr (GError) error = NULL;
  union weft_model model;

  if (!weft_model_load (name, &model, unknown, &error))
    return weft_cli_fail (error);
  for (unsigned i = 0; i < unknown->len; i++)
    fprintf (stderr, "weft: %s: unknown key %s was ignored\n", name,
             (char *) unknown->pdata[i]);
  if (!json) {
    print_page (&model);
    return 0;
  }
  g_autoptr (JsonBuilder) builder = json_builder_new ();
  build_page (builder, &model);
  weft_cli_print_json (builder);
  return 0;
}

static int
show_help (void)
{
  if (weft_cli_form == WEFT_CLI_FORM_FLAGS)
    return 0;
  printf ("usage: weft models [NAME] [--json]\n\n"
          "Lists the bundled models, or shows every field of one.  NAME is a bundled name (case,\n"
          "dashes, dots and underscores are ignored), or the path of a Hugging Face config.json\n"
          "or of its folder.\n\n"
          "examples:\n  weft models\n  weft models llama3-8b\n"
          "  weft models ./config.json --json\n");
  return 0;
}

int
weft_cli_models (int argc, char **argv)
{
  struct weft_cli_ask ask;
  g_autoptr (GError) error = NULL;

  if (!weft_cli_ask (argc, argv, FALSE, &ask, &error))
    return weft_cli_fail (error);
  if (ask.help)
    return show_help ();
  return ask.name ? show_one (ask.name, ask.json) : show_all (ask.json);
}
