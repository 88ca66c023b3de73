#include "core/exec/timeline_file.h"
#include "core/base/error.h"
#include "core/base/file.h"
#include "core/base/json_scan.h"
#include "core/base/sink.h"
#include <json-glib/json-glib.h>
#include <math.h>
#include <string.h>

#define SCHEMA "weft.timeline/1"
/* bytes of one kind of reserved memory, so small that the sum of all kinds fits 64 bits */
#define MOST_RESERVED (UINT64_C (1) << 48)

/* ------------------------------------------------------------------------ times */

static gboolean
is_seconds (double value)
{
  return value >= 0 && value <= WEFT_TIMELINE_MOST_SECONDS;
}

/* Whether `begin` is not after `end`, or both are NaN. An op of length 0 may end slightly before it
 * begins, because the simulator rounds times. */
static gboolean
is_span (double begin, double end)
{
  return isnan (begin) == isnan (end) && !(begin - end > 1e-9 * end);
}

/* ---------------------------------------------------------------------- writing */

static void
append_seconds (GString *out, double seconds)
{
  char text[G_ASCII_DTOSTR_BUF_SIZE];
  g_string_append (out, isnan (seconds) ? "null" : g_ascii_dtostr (text, sizeof text, seconds));
}

static void
write_times (weft_sink *sink, const char *member, const double *seconds, uint32_t n)
{
  g_string_append_printf (sink->text, ",\"%s\":[", member);
  for (uint32_t op = 0; op < n; op++) {
    if (op)
      g_string_append_c (sink->text, ',');
    append_seconds (sink->text, seconds[op]);
    weft_sink_spill (sink);
  }
  g_string_append_c (sink->text, ']');
}

static void
write_row (weft_sink *sink, const weft_plan *plan, const weft_timeline *t, uint32_t row)
{
  uint32_t n_op = plan->role[t->role[row]]->n_op;

  g_string_append_printf (sink->text, "%s{\"rank\":%u,\"role\":%u,\"stands_for\":%u",
                          row ? ",\n" : "\n", t->rank[row], t->role[row], t->stands_for[row]);
  write_times (sink, "begin", t->begin[row], n_op);
  write_times (sink, "end", t->end[row], n_op);
  g_string_append_c (sink->text, '}');
}

static void
write_text (GString *out, const char *member, const char *text)
{
  g_string_append_printf (out, "\"%s\":", member);
  weft_sink_quote (out, text);
  g_string_append (out, ",\n");
}

static void
write_reserved (GString *out, const weft_timeline *t)
{
  g_string_append (out, ",\n\"reserved\":{");
  for (int i = 0; i < WEFT_N_RESERVED; i++)
    g_string_append_printf (out, "%s\"%s\":%" G_GUINT64_FORMAT, i ? "," : "",
                            weft_reserved_words[i], t->reserved[i]);
  g_string_append_c (out, '}');
}

static void
write_head (GString *out, const weft_plan *plan, const weft_timeline *t)
{
  g_autofree char *job = weft_job_print (&plan->job);

  g_string_append_c (out, '{');
  write_text (out, "schema", SCHEMA);
  write_text (out, "job", job);
  write_text (out, "executor", t->executor);
  write_text (out, "engine", t->engine);
  g_string_append (out, "\"seconds\":");
  append_seconds (out, t->seconds);
  g_string_append_printf (
      out, ",\n\"folded\":%s,\n\"contended\":%s,\n\"n_activities\":%" G_GUINT64_FORMAT,
      t->folded ? "true" : "false", t->contended ? "true" : "false", t->n_activities);
  g_string_append (out, ",\n\"wall_seconds\":");
  append_seconds (out, t->wall_seconds);
  if (t->knows_reserved)
    write_reserved (out, t);
  g_string_append (out, ",\n\"rows\":[");
}

static gboolean
check_size (const weft_timeline *t, GError **error)
{
  if (t->n_ops <= WEFT_TIMELINE_MOST_OPS)
    return TRUE;
  return weft_bad_input (
      error, "a timeline of %u ranks has %" G_GUINT64_FORMAT " ops, wanted at most %u ops%s", t->n,
      t->n_ops, WEFT_TIMELINE_MOST_OPS,
      t->folded ? "" : ": observe fewer ranks, or use fewer microbatches");
}

/* Refuses a timeline with times that weft_timeline_load() would refuse. */
static gboolean
check_times (const weft_plan *plan, const weft_timeline *t, GError **error)
{
  if (!is_seconds (t->seconds) || !is_seconds (t->wall_seconds))
    return weft_bad_input (error, "found a step of %.9g s, run in %.9g s, wanted 0 to 1e9 s",
                           t->seconds, t->wall_seconds);
  for (uint32_t row = 0; row < t->n; row++)
    for (uint32_t op = 0; op < plan->role[t->role[row]]->n_op; op++) {
      double begin = t->begin[row][op], end = t->end[row][op];
      if (!is_span (begin, end) || (!isnan (begin) && !(is_seconds (begin) && is_seconds (end))))
        return weft_bad_input (error,
                               "rank %u, op %u: found begin %.9g and end %.9g, wanted seconds from "
                               "0 to 1e9 in this order, or no number for both",
                               t->rank[row], op, begin, end);
    }
  return TRUE;
}

gboolean
weft_timeline_save (const weft_plan *plan, const weft_timeline *t, const char *path, GError **error)
{
  weft_sink sink;

  if (!check_size (t, error) || !check_times (plan, t, error)) {
    g_prefix_error (error, "%s: ", path);
    return FALSE;
  }
  if (!weft_sink_open (&sink, path, error))
    return FALSE;
  write_head (sink.text, plan, t);
  for (uint32_t row = 0; row < t->n && !sink.error; row++)
    write_row (&sink, plan, t, row);
  g_string_append (sink.text, "\n]}\n");
  return weft_sink_close (&sink, error);
}

/* ---------------------------------------------------------------------- members */

enum kind { TEXT, TRUTH, WHOLE, SECONDS, ARRAY };

static const char *const wanted[] = {
  [TEXT] = "text",
  [TRUTH] = "true or false",
  [WHOLE] = "a whole number from 0",
  [SECONDS] = "seconds from 0 to 1e9",
  [ARRAY] = "an array",
};

static gboolean
is_kind (JsonNode *node, enum kind kind)
{
  GType type = JSON_NODE_HOLDS_VALUE (node) ? json_node_get_value_type (node) : G_TYPE_INVALID;

  switch (kind) {
  case TEXT:
    return type == G_TYPE_STRING;
  case TRUTH:
    return type == G_TYPE_BOOLEAN;
  case WHOLE:
    return type == G_TYPE_INT64 && json_node_get_int (node) >= 0;
  case SECONDS:
    return (type == G_TYPE_INT64 || type == G_TYPE_DOUBLE) &&
           is_seconds (json_node_get_double (node));
  case ARRAY:
    return JSON_NODE_HOLDS_ARRAY (node);
  }
  return FALSE;
}

/* The member `name` of a JSON object; NULL with an error if it is missing or of another type. */
static JsonNode *
member (JsonObject *object, const char *name, enum kind kind, GError **error)
{
  JsonNode *node = json_object_get_member (object, name);

  if (node && is_kind (node, kind))
    return node;
  if (!node) {
    weft_bad_input (error, "found no \"%s\", wanted %s", name, wanted[kind]);
    return NULL;
  }
  g_autofree char *found = json_to_string (node, FALSE);
  weft_bad_input (error, "%s: found %.60s%s, wanted %s", name, found,
                  strlen (found) > 60 ? " ..." : "", wanted[kind]);
  return NULL;
}

static gboolean
read_text (JsonObject *object, const char *name, const char **text, GError **error)
{
  JsonNode *node = member (object, name, TEXT, error);

  *text = node ? json_node_get_string (node) : NULL;
  return node != NULL;
}

static gboolean
read_truth (JsonObject *object, const char *name, gboolean *truth, GError **error)
{
  JsonNode *node = member (object, name, TRUTH, error);

  *truth = node && json_node_get_boolean (node);
  return node != NULL;
}

static gboolean
read_seconds (JsonObject *object, const char *name, double *seconds, GError **error)
{
  JsonNode *node = member (object, name, SECONDS, error);

  *seconds = node ? json_node_get_double (node) : 0;
  return node != NULL;
}

static gboolean
read_whole (JsonObject *object, const char *name, uint64_t most, uint64_t *number, GError **error)
{
  JsonNode *node = member (object, name, WHOLE, error);

  *number = node ? (uint64_t) json_node_get_int (node) : 0;
  if (!node || *number <= most)
    return node != NULL;
  return weft_bad_input (error,
                         "%s: found %" G_GUINT64_FORMAT ", wanted at most %" G_GUINT64_FORMAT, name,
                         *number, most);
}

static JsonArray *
read_array (JsonObject *object, const char *name, GError **error)
{
  JsonNode *node = member (object, name, ARRAY, error);
  return node ? json_node_get_array (node) : NULL;
}

/* ------------------------------------------------------------------------- rows */

struct reader {
  JsonObject *root;
  JsonArray *rows;
  weft_plan *plan;
  /* rank, role and stands_for of each row; no other field of the timeline is set */
  weft_actors head;
  weft_timeline *t;
};

/* Prefixes an error with the number of the row. Always returns FALSE. */
static gboolean
blame_row (uint32_t row, GError **error)
{
  g_prefix_error (error, "rows[%u]: ", row);
  return FALSE;
}

static JsonObject *
row_at (const struct reader *r, uint32_t row)
{
  JsonNode *node = json_array_get_element (r->rows, row);
  return JSON_NODE_HOLDS_OBJECT (node) ? json_node_get_object (node) : NULL;
}

/* Checks that the file has one begin and one end for each op of the role (pipeline stage), before
 * memory is allocated for them. */
static gboolean
check_length (const struct reader *r, JsonObject *object, uint32_t role, const char *name,
              GError **error)
{
  JsonArray *times = read_array (object, name, error);
  uint32_t n_op = r->plan->role[role]->n_op;

  if (!times)
    return FALSE;
  if (json_array_get_length (times) == n_op)
    return TRUE;
  return weft_bad_input (error,
                         "%s: found %u times, wanted %u, the number of ops of role %u of this job "
                         "in this version",
                         name, json_array_get_length (times), n_op, role);
}

static gboolean
read_head (struct reader *r, uint32_t row, GError **error)
{
  JsonObject *object = row_at (r, row);
  uint64_t rank, role, stands_for;

  if (!object)
    return weft_bad_input (error, "wanted an object");
  if (!read_whole (object, "rank", r->plan->mesh.n_ranks - 1, &rank, error) ||
      !read_whole (object, "role", r->plan->n_roles - 1, &role, error) ||
      !read_whole (object, "stands_for", r->plan->mesh.n_ranks, &stands_for, error) ||
      !check_length (r, object, role, "begin", error) ||
      !check_length (r, object, role, "end", error))
    return FALSE;
  if (role != weft_mesh_stage (&r->plan->mesh, rank))
    return weft_bad_input (error, "role: found %u for rank %u, wanted %u", (uint32_t) role,
                           (uint32_t) rank, weft_mesh_stage (&r->plan->mesh, rank));
  r->head.rank[row] = rank;
  r->head.role[row] = role;
  r->head.stands_for[row] = stands_for;
  return TRUE;
}

/* Checks that every rank occurs in one row only, and that stands_for is the number of ranks that
 * folding lets the row represent; 1 without folding. */
static gboolean
check_folding (const struct reader *r, GError **error)
{
  g_autoptr (weft_actors) actors =
      r->head.folded ? weft_actors_new (&r->plan->fabric, &r->plan->mesh, TRUE) : NULL;
  g_autoptr (GHashTable) seen = g_hash_table_new (NULL, NULL);

  for (uint32_t row = 0; row < r->head.n; row++) {
    uint32_t rank = r->head.rank[row], actor = actors ? actors->actor_of[rank] : 0;
    uint32_t ranks = actors ? actors->stands_for[actor] : 1;
    if (!g_hash_table_add (seen, GUINT_TO_POINTER (rank)))
      weft_bad_input (error, "found rank %u a second time, wanted every rank once", rank);
    else if (actors && actors->rank[actor] != rank)
      weft_bad_input (error,
                      "found rank %u in a folded timeline, wanted rank %u, which represents "
                      "it",
                      rank, actors->rank[actor]);
    else if (r->head.stands_for[row] != ranks)
      weft_bad_input (error, "stands_for: found %u ranks, wanted %u ranks", r->head.stands_for[row],
                      ranks);
    else
      continue;
    return blame_row (row, error);
  }
  return TRUE;
}

static gboolean
read_heads (struct reader *r, GError **error)
{
  uint32_t n = json_array_get_length (r->rows);

  if (n == 0 || n > r->plan->mesh.n_ranks)
    return weft_bad_input (error, "rows: found %u rows, wanted 1 to %u rows, the ranks of the job",
                           n, r->plan->mesh.n_ranks);
  r->head.n = n;
  r->head.rank = g_new (uint32_t, n);
  r->head.role = g_new (uint32_t, n);
  r->head.stands_for = g_new (uint32_t, n);
  for (uint32_t row = 0; row < n; row++)
    if (!read_head (r, row, error))
      return blame_row (row, error);
  return check_folding (r, error);
}

static gboolean
read_time (JsonArray *times, uint32_t op, double *seconds)
{
  JsonNode *node = json_array_get_element (times, op);

  *seconds = NAN;
  if (JSON_NODE_HOLDS_NULL (node))
    return TRUE;
  if (!is_kind (node, SECONDS))
    return FALSE;
  *seconds = json_node_get_double (node);
  return TRUE;
}

static gboolean
read_times (struct reader *r, uint32_t row, GError **error)
{
  JsonArray *begins = json_object_get_array_member (row_at (r, row), "begin");
  JsonArray *ends = json_object_get_array_member (row_at (r, row), "end");

  for (uint32_t op = 0; op < json_array_get_length (begins); op++) {
    double *begin = &r->t->begin[row][op], *end = &r->t->end[row][op];
    if (!read_time (begins, op, begin) || !read_time (ends, op, end))
      return weft_bad_input (error, "op %u: wanted %s, or null", op, wanted[SECONDS]);
    if (!is_span (*begin, *end))
      return weft_bad_input (error,
                             "op %u: found begin %.9g and end %.9g, wanted begin first, or null "
                             "for both",
                             op, *begin, *end);
  }
  return TRUE;
}

/* ------------------------------------------------------------------------ whole */

static gboolean
read_job (struct reader *r, struct weft_job *job, GError **error)
{
  g_autoptr (weft_settings) settings = weft_settings_new ();
  const char *text;

  if (!read_text (r->root, "job", &text, error))
    return FALSE;
  g_autoptr (weft_conf) conf = weft_conf_parse (text, -1, "job", error);
  if (conf)
    weft_settings_add_conf (settings, conf);
  if (conf && weft_job_build (settings, job, error))
    return TRUE;
  g_prefix_error (error, "the job of the timeline cannot be built: ");
  return FALSE;
}

/* Reads the kinds of reserved memory that this version of Weft defines; ignores the others, which
 * other versions of Weft may define. */
static gboolean
read_reserved (struct reader *r, GError **error)
{
  JsonNode *node = json_object_get_member (r->root, "reserved");

  if (!node)
    return TRUE;
  if (!JSON_NODE_HOLDS_OBJECT (node))
    return weft_bad_input (error, "reserved: wanted an object of bytes by name");
  r->t->knows_reserved = TRUE;
  for (int i = 0; i < WEFT_N_RESERVED; i++)
    if (json_object_has_member (json_node_get_object (node), weft_reserved_words[i]) &&
        !read_whole (json_node_get_object (node), weft_reserved_words[i], MOST_RESERVED,
                     &r->t->reserved[i], error)) {
      g_prefix_error (error, "reserved: ");
      return FALSE;
    }
  return TRUE;
}

static gboolean
read_rows (struct reader *r, GError **error)
{
  const char *executor, *engine;

  if (!read_text (r->root, "executor", &executor, error) ||
      !read_text (r->root, "engine", &engine, error) ||
      !read_truth (r->root, "folded", &r->head.folded, error) || !read_heads (r, error))
    return FALSE;
  r->t = weft_timeline_new (r->plan, &r->head, g_intern_string (executor));
  r->t->engine = g_intern_string (engine);
  for (uint32_t row = 0; row < r->t->n; row++)
    if (!read_times (r, row, error))
      return blame_row (row, error);
  return read_seconds (r->root, "seconds", &r->t->seconds, error) &&
         read_seconds (r->root, "wall_seconds", &r->t->wall_seconds, error) &&
         read_whole (r->root, "n_activities", G_MAXINT64, &r->t->n_activities, error) &&
         read_truth (r->root, "contended", &r->t->contended, error) && read_reserved (r, error);
}

static gboolean
read_document (struct reader *r, GError **error)
{
  const char *schema;
  struct weft_job job;

  if (!read_text (r->root, "schema", &schema, error))
    return FALSE;
  if (strcmp (schema, SCHEMA) != 0)
    return weft_bad_input (error, "schema: found \"%.60s\", wanted \"" SCHEMA "\"", schema);
  r->rows = read_array (r->root, "rows", error);
  if (!r->rows || !read_job (r, &job, error))
    return FALSE;
  r->plan = weft_plan_new (&job, error);
  return r->plan && read_rows (r, error);
}

static gboolean
parse_json (JsonParser *parser, const char *text, gsize length, const char *name, GError **error)
{
  g_autoptr (GError) found = NULL;

  if (length == 0)
    return weft_bad_input (error, "%s: found nothing, wanted a timeline", name);
  if (length > WEFT_TIMELINE_MOST_BYTES)
    return weft_bad_input (error, "%s: found more than %u MiB, wanted a timeline of at most that",
                           name, WEFT_TIMELINE_MOST_BYTES >> 20);
  if (!g_utf8_validate (text, length, NULL))
    return weft_bad_input (error, "%s: found bytes that are not UTF-8, wanted JSON", name);
  if (!weft_json_scan (text, length, error)) {
    g_prefix_error (error, "%s:", name);
    return FALSE;
  }
  if (!json_parser_load_from_data (parser, text, length, &found))
    return weft_bad_input (error, "%s: %s", name, found->message);
  JsonNode *root = json_parser_get_root (parser);
  return (root && JSON_NODE_HOLDS_OBJECT (root)) ||
         weft_bad_input (error, "%s: wanted one object", name);
}

gboolean
weft_timeline_parse (const char *text, gsize length, const char *name, weft_plan **plan,
                     weft_timeline **timeline, GError **error)
{
  g_autoptr (JsonParser) parser = json_parser_new_immutable ();
  struct reader r = { 0 };

  if (!parse_json (parser, text, length, name, error))
    return FALSE;
  r.root = json_node_get_object (json_parser_get_root (parser));
  gboolean ok = read_document (&r, error);
  g_free (r.head.rank);
  g_free (r.head.role);
  g_free (r.head.stands_for);
  if (!ok) {
    g_prefix_error (error, "%s: ", name);
    g_clear_pointer (&r.t, weft_timeline_free);
    g_clear_pointer (&r.plan, weft_plan_free);
    return FALSE;
  }
  *plan = r.plan;
  *timeline = r.t;
  return TRUE;
}

/* ------------------------------------------------------------------------- file */

enum { CHUNK = 1 << 20 };

static GByteArray *
decompress (const char *gzip, gsize length, const char *path, GError **error)
{
  g_autoptr (GInputStream) packed = g_memory_input_stream_new_from_data (gzip, length, NULL);
  g_autoptr (GConverter) converter =
      G_CONVERTER (g_zlib_decompressor_new (G_ZLIB_COMPRESSOR_FORMAT_GZIP));
  g_autoptr (GInputStream) plain = g_converter_input_stream_new (packed, converter);
  g_autoptr (GByteArray) bytes = g_byte_array_new ();
  g_autofree uint8_t *chunk = g_malloc (CHUNK);
  g_autoptr (GError) found = NULL;
  gssize n = 0;

  while (bytes->len <= WEFT_TIMELINE_MOST_BYTES &&
         (n = g_input_stream_read (plain, chunk, CHUNK, NULL, &found)) > 0)
    g_byte_array_append (bytes, chunk, n);
  if (n >= 0)
    return g_steal_pointer (&bytes);
  weft_bad_input (error, "%s: found a damaged gzip file: %s", path, found->message);
  return NULL;
}

gboolean
weft_timeline_load (const char *path, weft_plan **plan, weft_timeline **timeline, GError **error)
{
  static const uint8_t magic[] = { 0x1f, 0x8b }; /* RFC 1952 */
  gsize length;
  g_autofree char *text = weft_file_read (path, WEFT_TIMELINE_MOST_BYTES, &length, error);

  if (!text)
    return FALSE;
  if (length < sizeof magic || memcmp (text, magic, sizeof magic) != 0)
    return weft_timeline_parse (text, length, path, plan, timeline, error);
  g_autoptr (GByteArray) plain = decompress (text, length, path, error);
  return plain &&
         weft_timeline_parse ((const char *) plain->data, plain->len, path, plan, timeline, error);
}
