#include "cli/op_facts_page.h"
#include "cli/ask.h"
#include "cli/cli.h"
#include "cli/sheets.h"
#include "core/base/json.h"
#include "core/base/units.h"
#include "core/cluster/platform.h"
#include <stdio.h>
#include <string.h>

/* ------------------------------------------------------------------------- sources */

struct weft_cli_sources {
  const struct weft_job *job;
  weft_sheet_file *topology, *stack; /* NULL: it cannot be read */
};

weft_cli_sources *
weft_cli_sources_new (const struct weft_job *job)
{
  weft_cli_sources *sources = g_new0 (weft_cli_sources, 1);
  const char *topology = g_quark_to_string (job->cluster.topology);
  const struct weft_platform *platform =
      topology && weft_platform_is_file (topology) ? weft_platform_get (topology, NULL) : NULL;

  sources->job = job;
  if (platform)
    topology = platform->topology;
  sources->topology = topology ? weft_sheet_file_load (&weft_cluster_sheet, topology, NULL) : NULL;
  sources->stack =
      weft_sheet_file_load (&weft_stack_sheet, g_quark_to_string (job->stack.name), NULL);
  return sources;
}

void
weft_cli_sources_free (weft_cli_sources *sources)
{
  g_clear_pointer (&sources->topology, weft_sheet_file_free);
  g_clear_pointer (&sources->stack, weft_sheet_file_free);
  g_free (sources);
}

/* What is said of a value: the comment of its file, or that it is not the value of the file. The
 * caller frees the text. */
static char *
origin_of (const weft_sheet_file *file, unsigned row, union weft_value value)
{
  g_autoptr (GError) error = NULL;

  if (!file)
    return g_strdup ("its file is not here");
  if (file->values[row].i != value.i)
    return g_strdup ("set by the job");
  const weft_conf *conf = file->from[row].conf;
  if (!conf)
    return g_strdup ("the default");
  g_autofree char *source = weft_cli_field_source (file, row, &error);
  g_autofree char *name = g_path_get_basename (conf->name);
  return g_strdup_printf ("%s: %s", name, source && *source ? source : "no comment");
}

char *
weft_cli_source_text (const weft_cli_sources *sources, const struct weft_cost_field *at)
{
  const struct weft_field *field = &at->sheet->table->field[at->row];
  gboolean stack = at->sheet == &weft_stack_sheet;
  union weft_value value =
      (stack ? sources->job->stack.at : sources->job->cluster.f.at)[at->row];
  g_autofree char *human = g_strstrip (weft_cli_field_human (field, value));
  g_autofree char *origin = origin_of (stack ? sources->stack : sources->topology, at->row, value);

  return g_strdup_printf ("%s = %s (%s)", field->name, human, origin);
}

/* -------------------------------------------------------------------- one op, as text */

static void
print_fact (const char *what, const char *text, const char *doc)
{
  int used = printf ("  %-22s  ", what);
  g_autofree char *both = doc ? g_strdup_printf ("%s  (%s)", text, doc) : g_strdup (text);

  weft_cli_print_beside (both, used, weft_cli_columns ());
}

void
weft_cli_op_facts_print (const weft_plan *plan, uint32_t role, uint32_t op)
{
  const weft_program *p = plan->role[role];
  g_autoptr (weft_op_facts) facts = weft_op_facts_new (plan, role, op);
  g_autoptr (weft_cli_sources) sources = weft_cli_sources_new (&plan->job);
  g_autofree char *label = weft_op_label (p, op);
  g_autofree char *seconds = g_strchomp (weft_units_human (plan->seconds[role][op], "s"));

  printf ("%s: op %u of stage %u, %s on lane %s, %s alone\n%s\n\n", label, op, role,
          weft_op_info[p->op[op].kind].word, weft_lane_words[p->op[op].lane], seconds,
          weft_op_info[p->op[op].kind].doc);
  for (guint i = 0; i < facts->fact->len; i++) {
    const struct weft_op_fact *fact = &g_array_index (facts->fact, struct weft_op_fact, i);
    print_fact (fact->what, fact->text, fact->doc);
  }
  for (unsigned i = 0; i < facts->n_field; i++) {
    g_autofree char *text = weft_cli_source_text (sources, &facts->field[i]);
    print_fact (i ? "" : "rates and latencies", text, NULL);
  }
}

/* -------------------------------------------------------------------- one op, as JSON */

static void
add_fact (JsonBuilder *b, const struct weft_op_fact *fact)
{
  json_builder_begin_object (b);
  weft_json_text (b, "what", fact->what);
  weft_json_text (b, "text", fact->text);
  if (fact->doc)
    weft_json_text (b, "source", fact->doc);
  json_builder_end_object (b);
}

void
weft_cli_op_facts_json (const weft_plan *plan, uint32_t role, uint32_t op)
{
  const weft_program *p = plan->role[role];
  g_autoptr (JsonBuilder) b = json_builder_new ();
  g_autoptr (weft_op_facts) facts = weft_op_facts_new (plan, role, op);
  g_autoptr (weft_cli_sources) sources = weft_cli_sources_new (&plan->job);
  g_autofree char *label = weft_op_label (p, op);

  json_builder_begin_object (b);
  weft_json_text (b, "schema", "weft.explain_op/1");
  weft_json_int (b, "role", role);
  weft_json_int (b, "op", op);
  weft_json_text (b, "label", label);
  weft_json_text (b, "kind", weft_op_info[p->op[op].kind].word);
  weft_json_text (b, "lane", weft_lane_words[p->op[op].lane]);
  weft_json_real (b, "alone_s", plan->seconds[role][op]);
  weft_json_real (b, "flops", weft_op_flops (p, op));
  weft_json_real (b, "bytes", weft_op_bytes (p, op));
  weft_json_array (b, "facts");
  for (guint i = 0; i < facts->fact->len; i++)
    add_fact (b, &g_array_index (facts->fact, struct weft_op_fact, i));
  json_builder_end_array (b);
  weft_json_array (b, "fields");
  for (unsigned i = 0; i < facts->n_field; i++) {
    g_autofree char *text = weft_cli_source_text (sources, &facts->field[i]);
    json_builder_add_string_value (b, text);
  }
  json_builder_end_array (b);
  json_builder_end_object (b);
  weft_cli_print_json (b);
}

/* ----------------------------------------------------------------------------- page */

/* What ops have in common if their texts are the same. */
static char *
key_of (const weft_program *p, uint32_t op)
{
  const struct weft_op *row = &p->op[op];

  return g_strdup_printf ("%u %u %u %u %u %u %d", row->kind, row->shape, row->name, row->group,
                          row->flags, row->lane, row->peer);
}

/* The fields that the page has, in the order of their first use. */
struct fields {
  GArray *at; /* struct weft_cost_field */
};

static unsigned
field_number (struct fields *fields, const struct weft_cost_field *field)
{
  for (guint i = 0; i < fields->at->len; i++) {
    const struct weft_cost_field *known = &g_array_index (fields->at, struct weft_cost_field, i);
    if (known->sheet == field->sheet && known->row == field->row)
      return i;
  }
  g_array_append_vals (fields->at, field, 1);
  return fields->at->len - 1;
}

/* Adds a text: facts as [what, text, source], and the numbers of its fields. */
static void
add_text (JsonBuilder *b, const weft_op_facts *facts, struct fields *fields)
{
  json_builder_begin_object (b);
  weft_json_array (b, "facts");
  for (guint i = 0; i < facts->fact->len; i++) {
    const struct weft_op_fact *fact = &g_array_index (facts->fact, struct weft_op_fact, i);
    json_builder_begin_array (b);
    json_builder_add_string_value (b, fact->what);
    json_builder_add_string_value (b, fact->text);
    json_builder_add_string_value (b, fact->doc ? fact->doc : "");
    json_builder_end_array (b);
  }
  json_builder_end_array (b);
  weft_json_array (b, "fields");
  for (unsigned i = 0; i < facts->n_field; i++)
    json_builder_add_int_value (b, field_number (fields, &facts->field[i]));
  json_builder_end_array (b);
  json_builder_end_object (b);
}

/* The number of an op without a text. A role has fewer texts. */
enum { NO_TEXT = G_MAXUINT16 };

static uint16_t *
add_role (JsonBuilder *b, const weft_plan *plan, uint32_t role, struct fields *fields)
{
  const weft_program *p = plan->role[role];
  g_autoptr (GHashTable) known = g_hash_table_new_full (g_str_hash, g_str_equal, g_free, NULL);
  uint16_t *text = g_new0 (uint16_t, p->n_op + 1);

  json_builder_begin_array (b);
  for (uint32_t op = 0; op < p->n_op; op++) {
    char *key = key_of (p, op);
    gpointer number = g_hash_table_lookup (known, key);
    if (!number && g_hash_table_size (known) < NO_TEXT) {
      g_autoptr (weft_op_facts) facts = weft_op_facts_new (plan, role, op);
      add_text (b, facts, fields);
      number = GUINT_TO_POINTER (g_hash_table_size (known) + 1);
      g_hash_table_insert (known, g_strdup (key), number);
    }
    text[op] = number ? (uint16_t) (GPOINTER_TO_UINT (number) - 1) : NO_TEXT;
    g_free (key);
  }
  json_builder_end_array (b);
  return text;
}

GPtrArray *
weft_cli_op_facts_add (JsonBuilder *b, const weft_plan *plan)
{
  GPtrArray *texts = g_ptr_array_new_with_free_func (g_free);
  g_autoptr (weft_cli_sources) sources = weft_cli_sources_new (&plan->job);
  struct fields fields = { g_array_new (FALSE, FALSE, sizeof (struct weft_cost_field)) };

  weft_json_array (b, "texts");
  for (uint32_t role = 0; role < plan->n_roles; role++)
    g_ptr_array_add (texts, add_role (b, plan, role, &fields));
  json_builder_end_array (b);
  weft_json_array (b, "fields");
  for (guint i = 0; i < fields.at->len; i++) {
    g_autofree char *text =
        weft_cli_source_text (sources, &g_array_index (fields.at, struct weft_cost_field, i));
    json_builder_add_string_value (b, text);
  }
  json_builder_end_array (b);
  g_array_unref (fields.at);
  return texts;
}
