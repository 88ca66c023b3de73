#include "core/program/program_json.h"
#include "core/base/json.h"

/* Adds a JSON member. The value `none` prints as null. */
static void
add_int_or_null (JsonBuilder *b, const char *member, uint32_t value, uint32_t none)
{
  if (value == none)
    weft_json_null (b, member);
  else
    weft_json_int (b, member, value);
}

/* Adds an array with the name of every bit that is set in `flags`. */
static void
add_flags (JsonBuilder *b, uint32_t flags, const char *const *words)
{
  weft_json_array (b, "flags");
  for (int i = 0; words[i]; i++)
    if (flags >> i & 1)
      json_builder_add_string_value (b, words[i]);
  json_builder_end_array (b);
}

/* Adds the dtypes of a shape and its dimensions, up to the last dimension that is not 0. */
static void
add_shape (JsonBuilder *b, const struct weft_shape *shape)
{
  unsigned n = G_N_ELEMENTS (shape->dim);

  while (n && !shape->dim[n - 1])
    n--;
  weft_json_text (b, "dtype", weft_dtype_words[shape->dtype]);
  if (shape->out_dtype != shape->dtype)
    weft_json_text (b, "out_dtype", weft_dtype_words[shape->out_dtype]);
  weft_json_array (b, "shape");
  for (unsigned i = 0; i < n; i++)
    json_builder_add_int_value (b, shape->dim[i]);
  json_builder_end_array (b);
}

/* JSON integers have 63 bits. Only shapes too large for any machine exceed 62 bits; their bytes are
 * cut off at 2^62. */
static void
add_cost (JsonBuilder *b, const weft_program *p, uint32_t op)
{
  json_builder_set_member_name (b, "flops");
  json_builder_add_double_value (b, weft_op_flops (p, op));
  weft_json_int (b, "bytes", MIN (weft_op_bytes (p, op), 0x1p62));
}

static void
add_edges (JsonBuilder *b, const weft_program *p, const struct weft_op *op)
{
  weft_json_array (b, "after");
  for (uint32_t d = op->deps; d < op[1].deps; d++)
    json_builder_add_int_value (b, p->deps[d]);
  json_builder_end_array (b);
  weft_json_array (b, "uses");
  for (uint32_t u = op->uses; u < op[1].uses; u++) {
    json_builder_begin_object (b);
    add_int_or_null (b, "buffer", p->uses[u].buf, WEFT_NO_BUF);
    weft_json_bool (b, "read", p->uses[u].read);
    weft_json_bool (b, "write", p->uses[u].write);
    json_builder_end_object (b);
  }
  json_builder_end_array (b);
}

static void
add_communication (JsonBuilder *b, const struct weft_op *op)
{
  if (op->group == WEFT_GROUP_NONE)
    weft_json_null (b, "axis");
  else
    weft_json_text (b, "axis", weft_group_word (op->group));
  if (weft_op_info[op->kind].class == WEFT_CLASS_P2P)
    weft_json_int (b, "peer", op->peer);
  if (weft_op_info[op->kind].class == WEFT_CLASS_COLLECTIVE)
    weft_json_text (b, "reduce", weft_reduce_words[op->reduce]);
}

static void
add_op (JsonBuilder *b, const weft_program *p, uint32_t i)
{
  const struct weft_op *op = &p->op[i];
  g_autofree char *label = weft_op_label (p, i);

  json_builder_begin_object (b);
  weft_json_int (b, "op", i);
  weft_json_text (b, "kind", weft_op_info[op->kind].word);
  weft_json_text (b, "lane", weft_lane_words[op->lane]);
  add_communication (b, op);
  add_int_or_null (b, "layer", op->layer, WEFT_NO_LAYER);
  weft_json_int (b, "chunk", op->chunk);
  add_int_or_null (b, "micro", op->micro, WEFT_NO_MICRO);
  weft_json_text (b, "phase", weft_phase_words[op->phase]);
  weft_json_text (b, "label", label);
  add_cost (b, p, i);
  add_shape (b, weft_op_shape (p, i));
  add_flags (b, op->flags, weft_op_flag_words);
  add_edges (b, p, op);
  json_builder_end_object (b);
}

static void
add_buffer (JsonBuilder *b, const weft_program *p, uint32_t i)
{
  static const char *const flags[] = { "permanent", NULL };
  const struct weft_buf *buf = &p->buf[i];
  gboolean used = buf->first != WEFT_NO_OP;
  g_autofree char *label = weft_buf_label (p, i);

  json_builder_begin_object (b);
  weft_json_int (b, "buffer", i);
  weft_json_text (b, "kind", weft_buf_kind_words[buf->kind]);
  weft_json_text (b, "pool", weft_pool_words[buf->pool]);
  weft_json_int (b, "bytes", buf->bytes);
  weft_json_int (b, "offset", buf->offset);
  add_int_or_null (b, "first", buf->first, WEFT_NO_OP);
  add_int_or_null (b, "last", used ? buf->last : WEFT_NO_OP, WEFT_NO_OP);
  weft_json_text (b, "label", label);
  add_int_or_null (b, "layer", buf->layer, WEFT_NO_LAYER);
  add_int_or_null (b, "micro", buf->micro, WEFT_NO_MICRO);
  weft_json_text (b, "dtype", weft_dtype_words[buf->dtype]);
  add_int_or_null (b, "base", buf->base, WEFT_NO_BUF);
  if (buf->shard)
    weft_json_text (b, "shard", weft_group_word (buf->shard));
  if (buf->slice)
    weft_json_text (b, "slice", weft_group_word (buf->slice));
  add_flags (b, buf->permanent, flags);
  json_builder_end_object (b);
}

/* Writes a JSON array of n rows of the program, one row per line. */
static void
write_rows (const weft_program *p, uint32_t n,
            void (*add) (JsonBuilder *b, const weft_program *p, uint32_t i), weft_text_sink sink,
            void *user)
{
  g_autoptr (JsonBuilder) b = json_builder_new ();

  sink ("[", user);
  for (uint32_t i = 0; i < n; i++) {
    add (b, p, i);
    g_autoptr (JsonNode) row = json_builder_get_root (b);
    g_autofree char *text = weft_json_print (row, FALSE);
    sink (i ? ",\n    " : "\n    ", user);
    sink (text, user);
    json_builder_reset (b);
  }
  sink ("\n  ]", user);
}

void
weft_program_write_json (const weft_program *p, weft_text_sink sink, void *user)
{
  g_autofree char *head = g_strdup_printf (
      "{\n  \"schema\" : \"weft.program/1\",\n  \"role\" : %u,\n  \"n_roles\" : %u,\n  \"ops\" : ",
      p->role, p->n_roles);

  sink (head, user);
  write_rows (p, p->n_op, add_op, sink, user);
  sink (",\n  \"buffers\" : ", user);
  write_rows (p, p->n_buf, add_buffer, sink, user);
  sink ("\n}\n", user);
}

/* --------------------------------------------------------------------- Graphviz */

/* Appends a string, with quotes and backslashes escaped for DOT. */
static void
dot_text (GString *text, const char *string)
{
  for (; *string; string++) {
    if (*string == '"' || *string == '\\')
      g_string_append_c (text, '\\');
    g_string_append_c (text, *string);
  }
}

static void
dot_node (GString *text, const weft_program *p, uint32_t op)
{
  g_autofree char *label = weft_op_label (p, op);
  const char *kind = weft_op_info[p->op[op].kind].word;

  g_string_append_printf (text, "    %u [label=\"%u %s\\n", op, op, kind);
  dot_text (text, label);
  g_string_append_printf (text, "\" fillcolor=\"%s\"];\n", weft_phase_looks[p->op[op].phase].light);
}

static void
dot_lane (GString *text, const weft_program *p, enum weft_lane lane)
{
  const uint32_t *op = p->lane_ops[lane];
  uint32_t n = p->lane_n[lane];

  if (!n)
    return;
  g_string_append_printf (text, "  subgraph cluster_%s {\n    label=\"%s\";\n",
                          weft_lane_words[lane], weft_lane_words[lane]);
  for (uint32_t i = 0; i < n; i++)
    dot_node (text, p, op[i]);
  for (uint32_t i = 1; i < n; i++)
    g_string_append_printf (text, "    %u -> %u [color=gray60%s];\n", op[i - 1], op[i],
                            p->op[op[i]].flags & WEFT_OP_GROUPED ? " dir=none style=bold" : "");
  g_string_append (text, "  }\n");
}

char *
weft_program_dot (const weft_program *p)
{
  GString *text =
      g_string_new ("digraph program {\n"
                    "  rankdir=LR;\n"
                    "  fontname=\"sans-serif\";\n"
                    "  node [shape=box style=filled fontname=\"sans-serif\" fontsize=10];\n");

  for (int lane = 0; lane < WEFT_N_LANE; lane++)
    dot_lane (text, p, lane);
  for (uint32_t op = 0; op < p->n_op; op++)
    for (uint32_t d = p->op[op].deps; d < p->op[op + 1].deps; d++)
      g_string_append_printf (text, "  %u -> %u;\n", p->deps[d], op);
  g_string_append (text, "}\n");
  return g_string_free (text, FALSE);
}
