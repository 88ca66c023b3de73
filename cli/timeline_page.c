#include "cli/timeline_page.h"
#include "charts/looks.h"
#include "cli/figures/figures.h"
#include "core/base/json.h"
#include "page.h"
#include <gio/gio.h>
#include <string.h>

/* The arrays of a page, and the list that describes them. */
struct block {
  GByteArray *bytes;
  JsonBuilder *head;
};

/* ------------------------------------------------------------------------- arrays */

/* Adds an array of `n` elements, of which the caller fills the returned memory before it adds
 * another one. */
static void *
add (struct block *block, const char *name, const char *type, size_t n, size_t size)
{
  guint at = block->bytes->len, whole = (guint) (n * size + 7) / 8 * 8;

  json_builder_begin_object (block->head);
  weft_json_text (block->head, "name", name);
  weft_json_text (block->head, "type", type);
  weft_json_int (block->head, "n", (int64_t) n);
  json_builder_end_object (block->head);
  g_byte_array_set_size (block->bytes, at + whole);
  memset (block->bytes->data + at, 0, whole);
  return block->bytes->data + at;
}

#define FILL(type, name, text, n, value)                                                           \
  do {                                                                                             \
    type *array_ = add (block, name, text, n, sizeof (type));                                      \
    for (uint32_t i = 0; i < (n); i++)                                                             \
      array_[i] = (type) (value);                                                                  \
  } while (0)
#define BYTES(name, n, value) FILL (uint8_t, name, "u8", n, value)
#define SHORTS(name, n, value) FILL (uint16_t, name, "u16", n, value)
#define WORDS(name, n, value) FILL (uint32_t, name, "u32", n, value)
#define FLOATS(name, n, value) FILL (float, name, "f32", n, value)
#define REALS(name, n, value) FILL (double, name, "f64", n, value)

static void
add_ops (struct block *block, const weft_program *p)
{
  BYTES ("kind", p->n_op, p->op[i].kind);
  BYTES ("lane", p->n_op, p->op[i].lane);
  BYTES ("phase", p->n_op, p->op[i].phase);
  SHORTS ("layer", p->n_op, p->op[i].layer);
  SHORTS ("micro", p->n_op, p->op[i].micro);
  SHORTS ("name", p->n_op, p->op[i].name);
  FLOATS ("bytes", p->n_op, weft_op_bytes (p, i));
  FLOATS ("flops", p->n_op, weft_op_flops (p, i));
  WORDS ("deps", p->n_op + 1, p->op[i].deps);
  WORDS ("after", p->op[p->n_op].deps, p->deps[i]);
}

gboolean
weft_cli_takes_memory (const struct weft_buf *buf)
{
  return buf->base == WEFT_NO_BUF && buf->pool != WEFT_POOL_HOST && buf->first != WEFT_NO_OP;
}

static void
add_buffers (struct block *block, const weft_program *p)
{
  g_autofree uint32_t *own = g_new (uint32_t, p->n_buf);
  uint32_t n = 0;

  for (uint32_t i = 0; i < p->n_buf; i++)
    if (weft_cli_takes_memory (&p->buf[i]))
      own[n++] = i;
  BYTES ("part", n, p->buf[own[i]].kind);
  REALS ("size", n, p->buf[own[i]].bytes);
  WORDS ("first", n, p->buf[own[i]].permanent ? 0 : p->buf[own[i]].first);
  WORDS ("last", n, p->buf[own[i]].permanent ? p->n_op - 1 : p->buf[own[i]].last);
}

static void
add_path (struct block *block, const weft_critical *critical)
{
  const GArray *path = critical->path;

  WORDS ("path_row", path->len, g_array_index (path, struct weft_critical_op, i).row);
  WORDS ("path_op", path->len, g_array_index (path, struct weft_critical_op, i).op);
}

/* --------------------------------------------------------------------------- head */

static void
add_words (JsonBuilder *b, const char *member, const char *const *words, unsigned n)
{
  weft_json_array (b, member);
  for (unsigned i = 0; i < n; i++)
    json_builder_add_string_value (b, words[i]);
  json_builder_end_array (b);
}

static void
add_looks (JsonBuilder *b)
{
  weft_json_array (b, "phases");
  for (int i = 0; i < WEFT_N_PHASE; i++) {
    json_builder_begin_object (b);
    weft_json_text (b, "word", weft_phase_looks[i].legend);
    weft_json_text (b, "colour", weft_look_css (weft_phase_looks[i].look));
    json_builder_end_object (b);
  }
  json_builder_end_array (b);
  weft_json_array (b, "parts");
  for (int i = 0; i < WEFT_N_BUF_KIND; i++) {
    json_builder_begin_object (b);
    weft_json_text (b, "word", weft_report_parts[i].word);
    weft_json_text (b, "colour", weft_look_css (weft_report_parts[i].look));
    json_builder_end_object (b);
  }
  json_builder_end_array (b);
  weft_json_array (b, "kinds");
  for (int i = 0; i < WEFT_N_OP; i++) {
    json_builder_begin_object (b);
    weft_json_text (b, "word", weft_op_info[i].word);
    weft_json_text (b, "doc", weft_op_info[i].doc);
    json_builder_end_object (b);
  }
  json_builder_end_array (b);
  weft_json_text (b, "transfer", weft_look_css (WEFT_CLI_TRANSFER_LOOK));
  weft_json_array (b, "palette");
  for (unsigned i = 0; weft_look_css (i); i++)
    json_builder_add_string_value (b, weft_look_css (i));
  json_builder_end_array (b);
}

static void
add_rows (JsonBuilder *b, const weft_report *r)
{
  const weft_timeline *t = r->timeline;

  weft_json_array (b, "roles");
  for (uint32_t i = 0; i < r->plan->n_roles; i++) {
    json_builder_begin_object (b);
    weft_json_int (b, "ops", r->plan->role[i]->n_op);
    weft_json_int (b, "reserved", (int64_t) r->role[i].reserved_bytes);
    add_words (b, "names", (const char *const *) r->plan->role[i]->name, r->plan->role[i]->n_name);
    json_builder_end_object (b);
  }
  json_builder_end_array (b);
  weft_json_array (b, "rows");
  for (uint32_t i = 0; i < t->n; i++) {
    json_builder_begin_object (b);
    weft_json_int (b, "rank", t->rank[i]);
    weft_json_int (b, "role", t->role[i]);
    weft_json_int (b, "ranks", t->stands_for[i]);
    json_builder_end_object (b);
  }
  json_builder_end_array (b);
}

/* The head as JSON, with the list of sections that `block` has collected. The caller frees it. */
static char *
print_head (const weft_report *r, struct block *block)
{
  g_autoptr (JsonBuilder) b = json_builder_new ();
  g_autoptr (JsonNode) sections = json_builder_get_root (block->head);

  json_builder_begin_object (b);
  weft_json_real (b, "seconds", r->timeline->seconds);
  weft_json_real (b, "capacity", (double) r->capacity_bytes);
  add_words (b, "lanes", weft_lane_words, WEFT_N_LANE);
  add_looks (b);
  add_rows (b, r);
  json_builder_set_member_name (b, "sections");
  json_builder_add_value (b, json_node_copy (sections));
  json_builder_end_object (b);
  g_autoptr (JsonNode) root = json_builder_get_root (b);
  return weft_json_print (root, FALSE);
}

/* ----------------------------------------------------------------------------- page */

static char *
compress (const GByteArray *bytes)
{
  g_autoptr (GZlibCompressor) zip = g_zlib_compressor_new (G_ZLIB_COMPRESSOR_FORMAT_GZIP, 6);
  g_autoptr (GInputStream) plain =
      g_memory_input_stream_new_from_data (bytes->data, bytes->len, NULL);
  g_autoptr (GInputStream) packed = g_converter_input_stream_new (plain, G_CONVERTER (zip));
  g_autoptr (GByteArray) all = g_byte_array_new ();
  guint8 part[1 << 16];
  gssize n;

  while ((n = g_input_stream_read (packed, part, sizeof part, NULL, NULL)) > 0)
    g_byte_array_append (all, part, (guint) n);
  return g_base64_encode (all->data, all->len);
}

static void
append_resource (GString *page, const char *name)
{
  g_autofree char *path = g_strconcat ("/weft/", name, NULL);
  g_autoptr (GBytes) text =
      g_resource_lookup_data (weft_page_get_resource (), path, G_RESOURCE_LOOKUP_FLAGS_NONE, NULL);

  g_string_append (page, g_bytes_get_data (text, NULL));
}

void
weft_cli_timeline_page (GString *page, const weft_report *r, const weft_critical *critical)
{
  struct block all = { g_byte_array_new (), json_builder_new () }, *block = &all;
  const weft_timeline *t = r->timeline;

  json_builder_begin_array (block->head);
  for (uint32_t role = 0; role < r->plan->n_roles; role++) {
    add_ops (block, r->plan->role[role]);
    add_buffers (block, r->plan->role[role]);
  }
  for (uint32_t row = 0; row < t->n; row++) {
    uint32_t n = r->plan->role[t->role[row]]->n_op;
    REALS ("begin", n, t->begin[row][i]);
    REALS ("end", n, t->end[row][i]);
  }
  if (critical)
    add_path (block, critical);
  json_builder_end_array (block->head);
  g_autofree char *head = print_head (r, block);
  g_autofree char *data = compress (block->bytes);
  g_string_append (page, "<style>\n");
  append_resource (page, "timeline.css");
  g_string_append (page, "</style>\n");
  append_resource (page, "timeline.html");
  g_string_append_printf (page, "<script type=\"application/json\" id=\"weft-head\">%s</script>\n",
                          head);
  g_string_append_printf (page,
                          "<script type=\"application/octet-stream\" id=\"weft-data\">%s</script>\n"
                          "<script>\n",
                          data);
  append_resource (page, "timeline.js");
  g_string_append (page, "</script>\n");
  g_byte_array_unref (block->bytes);
  g_object_unref (block->head);
}
