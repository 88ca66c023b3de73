/* Prints a program as text: one row per line, in the order names, shapes, buffers, parameters, ops.
 * A row therefore refers only to rows above it. `#` begins a comment.
 *
 *   program 1 role 0 of 4
 *   name 0 "qkv"
 *   shape 0 bf16 4096 12288 4096 out fp32
 *   buf 1 gradients device fp32 L3 m0 "qkv" bytes 4096 at 128 in 0 permanent
 *   param 0 L3 c0 "qkv" 12288 x 4096 at 0 bucket 2 weight 0 grad 1 decay tied duplicate
 *   op 12 tp all_reduce F L3 m0 c0 "qkv" s0 over tp reduce avg peer +1 grouped recompute fused uses
 *     rw0 r- after 5 9      (one line in the file)
 *   end
 *
 * A field that a row omits is none or zero. L precedes the layer, m the microbatch, c the model
 * chunk, s the shape number. A buffer use is r (read), w (write) or rw before the buffer number;
 * `-` marks an absent operand. `end` marks that the text is complete. Buffer lifetimes and the
 * order of lanes are not printed, because they follow from the order of ops. */
#include "core/program/program.h"
#include <string.h>

static void
put_number (GString *text, const char *before, uint64_t value)
{
  char digits[20], *c = digits + sizeof digits;

  do
    *--c = '0' + value % 10;
  while (value /= 10);
  g_string_append (text, before);
  g_string_append_len (text, c, digits + sizeof digits - c);
}

static void
put_word (GString *text, const char *word)
{
  g_string_append_c (text, ' ');
  g_string_append (text, word);
}

static void
put_string (GString *text, const char *string)
{
  g_string_append (text, " \"");
  for (; *string; string++)
    if (*string == '"' || *string == '\\') {
      g_string_append_c (text, '\\');
      g_string_append_c (text, *string);
    } else if (g_ascii_iscntrl (*string)) {
      g_string_append_printf (text, "\\x%02x", (unsigned char) *string);
    } else {
      g_string_append_c (text, *string);
    }
  g_string_append_c (text, '"');
}

static void
put_place (GString *text, uint16_t layer, uint16_t micro)
{
  if (layer != WEFT_NO_LAYER)
    put_number (text, " L", layer);
  if (micro != WEFT_NO_MICRO)
    put_number (text, " m", micro);
}

static void
put_shape (GString *text, const struct weft_shape *shape)
{
  int n = G_N_ELEMENTS (shape->dim);

  while (n && !shape->dim[n - 1])
    n--;
  put_word (text, weft_dtype_words[shape->dtype]);
  for (int i = 0; i < n; i++)
    put_number (text, " ", shape->dim[i]);
  if (shape->out_dtype != shape->dtype) {
    put_word (text, "out");
    put_word (text, weft_dtype_words[shape->out_dtype]);
  }
}

static void
put_buf (GString *text, const weft_program *p, const struct weft_buf *buf)
{
  put_word (text, weft_buf_kind_words[buf->kind]);
  put_word (text, weft_pool_words[buf->pool]);
  put_word (text, weft_dtype_words[buf->dtype]);
  put_place (text, buf->layer, buf->micro);
  put_string (text, p->name[buf->name]);
  put_number (text, " bytes ", buf->bytes);
  put_number (text, " at ", buf->offset);
  if (buf->base != WEFT_NO_BUF)
    put_number (text, " in ", buf->base);
  if (buf->permanent)
    put_word (text, "permanent");
  if (buf->slice) {
    put_word (text, "slice");
    put_word (text, weft_group_words[buf->slice]);
  }
  if (buf->shard) {
    put_word (text, "shard");
    put_word (text, weft_group_words[buf->shard]);
  }
}

static void
put_buf_number (GString *text, const char *before, uint32_t buf)
{
  if (buf == WEFT_NO_BUF) {
    g_string_append (text, before);
    g_string_append_c (text, '-');
  } else {
    put_number (text, before, buf);
  }
}

static void
put_cut (GString *text, const struct weft_param *param)
{
  put_word (text, "cut");
  put_word (text, weft_cut_words[param->cut]);
  put_number (text, " of ", param->whole_rows);
  put_number (text, " x ", param->whole_columns);
  put_number (text, " tail ", param->tail);
  put_number (text, " ways ", param->ways);
  put_word (text, weft_group_words[param->group]);
  if (param->block) {
    put_number (text, " blocks of ", param->block);
    put_number (text, " inner ", param->inner);
  }
}

static void
put_param (GString *text, const weft_program *p, const struct weft_param *param)
{
  put_place (text, param->layer, WEFT_NO_MICRO);
  put_number (text, " c", param->chunk);
  put_string (text, p->name[param->name]);
  put_number (text, " ", param->rows);
  put_number (text, " x ", param->columns);
  put_number (text, " at ", param->start);
  if (param->frozen)
    put_word (text, "frozen");
  else
    put_number (text, " bucket ", param->bucket);
  put_buf_number (text, " weight ", param->weight);
  put_buf_number (text, " grad ", param->grad);
  if (param->piece) {
    put_number (text, " pieces of ", param->piece);
    put_number (text, " every ", param->stride);
  }
  if (param->scale != WEFT_NO_BUF)
    put_number (text, " scale ", param->scale);
  if (param->cut)
    put_cut (text, param);
  if (param->decay)
    put_word (text, "decay");
  if (param->tied)
    put_word (text, "tied");
  if (param->duplicate)
    put_word (text, "duplicate");
}

static void
put_op_options (GString *text, const struct weft_op *op)
{
  if (op->group != WEFT_GROUP_NONE) {
    put_word (text, "over");
    put_word (text, weft_group_words[op->group]);
  }
  if (op->reduce != WEFT_REDUCE_SUM) {
    put_word (text, "reduce");
    put_word (text, weft_reduce_words[op->reduce]);
  }
  if (op->peer)
    put_number (text, op->peer > 0 ? " peer +" : " peer -", ABS (op->peer));
  for (unsigned i = 0; weft_op_flag_words[i]; i++)
    if (op->flags >> i & 1)
      put_word (text, weft_op_flag_words[i]);
}

static void
put_edges (GString *text, const weft_program *p, const struct weft_op *op)
{
  static const char *const access[] = { " ", " r", " w", " rw" };

  if (op[1].uses > op->uses)
    put_word (text, "uses");
  for (uint32_t u = op->uses; u < op[1].uses; u++)
    put_buf_number (text, access[p->uses[u].read + 2 * p->uses[u].write], p->uses[u].buf);
  if (op[1].deps > op->deps)
    put_word (text, "after");
  for (uint32_t d = op->deps; d < op[1].deps; d++)
    put_number (text, " ", p->deps[d]);
}

static void
put_op (GString *text, const weft_program *p, const struct weft_op *op)
{
  put_word (text, weft_lane_words[op->lane]);
  put_word (text, weft_op_words[op->kind]);
  put_word (text, weft_phase_words[op->phase]);
  put_place (text, op->layer, op->micro);
  put_number (text, " c", op->chunk);
  put_string (text, p->name[op->name]);
  put_number (text, " s", op->shape);
  put_op_options (text, op);
  put_edges (text, p, op);
}

char *
weft_program_print (const weft_program *p)
{
  GString *text = g_string_new (NULL);

  put_number (text, "program ", WEFT_PROGRAM_TEXT_VERSION);
  put_number (text, " role ", p->role);
  put_number (text, " of ", p->n_roles);
  for (uint32_t i = 0; i < p->n_name; i++) {
    put_number (text, "\nname ", i);
    put_string (text, p->name[i]);
  }
  for (uint32_t i = 0; i < p->n_shape; i++) {
    put_number (text, "\nshape ", i);
    put_shape (text, &p->shape[i]);
  }
  for (uint32_t i = 0; i < p->n_buf; i++) {
    put_number (text, "\nbuf ", i);
    put_buf (text, p, &p->buf[i]);
  }
  for (uint32_t i = 0; i < p->n_param; i++) {
    put_number (text, "\nparam ", i);
    put_param (text, p, &p->param[i]);
  }
  for (uint32_t i = 0; i < p->n_op; i++) {
    put_number (text, "\nop ", i);
    put_op (text, p, &p->op[i]);
  }
  g_string_append (text, "\nend\n");
  return g_string_free (text, FALSE);
}
