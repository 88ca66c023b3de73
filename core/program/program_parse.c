/* Parses the text that program_text.c prints. Every number is checked before the parser uses the
 * number. Any input therefore gives a program, or an error that names the line, and a small file
 * cannot cause a large allocation. */
#include "core/base/error.h"
#include "core/program/program.h"
#include "core/base/suggest.h"
#include <string.h>

/* Upper limit of bytes, offsets and dimensions in a program. The sum of two numbers below the limit
 * does not overflow, and JSON can represent it. */
#define HUGE_NUMBER (UINT64_C (1) << 60)

enum row { ROW_NAME, ROW_SHAPE, ROW_BUF, ROW_PARAM, ROW_OP, N_ROW };

struct reader {
  /* name: name of the text, for error messages; at: position of the cursor in the text */
  const char *name, *at;
  unsigned line;
  GString *string; /* string: the newest quoted string, with its escapes resolved */
  gboolean ended;
  uint32_t role, n_roles; /* n_roles is 0 until the header has been read */
  uint32_t n[N_ROW];
  uint32_t lane_n[WEFT_N_LANE];
  GPtrArray *names;
  GHashTable *name_index;
  GArray *shape, *buf, *param, *op, *deps, *uses;
};

static gboolean
complain (const struct reader *r, GError **error, const char *format, ...) G_GNUC_PRINTF (3, 4);
static gboolean
wanted (const struct reader *r, GError **error, const char *format, ...) G_GNUC_PRINTF (3, 4);

/* Sets *error to "NAME:LINE: ...". Always returns FALSE. */
static gboolean
complain (const struct reader *r, GError **error, const char *format, ...)
{
  va_list args;

  va_start (args, format);
  g_autofree char *what = g_strdup_vprintf (format, args);
  va_end (args);
  return weft_bad_input (error, "%s:%u: %s", r->name, r->line, what);
}

static gboolean
is_blank (char c)
{
  return c == ' ' || c == '\t' || c == '\r';
}

static gboolean
ends_row (char c)
{
  return c == '\0' || c == '\n' || c == '#';
}

static size_t
word_length (const char *at)
{
  size_t n = 0;

  while (!is_blank (at[n]) && at[n] != '\n' && at[n])
    n++;
  return n;
}

/* Moves the cursor to the next word. A backslash at the end of a line continues the row on the next
 * line. */
static void
skip_blanks (struct reader *r)
{
  for (;; r->at++) {
    gboolean goes_on = r->at[0] == '\\' && r->at[1] == '\n';
    if (!goes_on && !is_blank (*r->at))
      return;
    r->at += goes_on;
    r->line += goes_on;
  }
}

static gboolean
at_end (struct reader *r)
{
  skip_blanks (r);
  return ends_row (*r->at);
}

/* Returns the word at the cursor for an error message, shortened and without control characters.
 * The caller frees the word. */
static char *
quote_word (const char *at)
{
  while (is_blank (*at))
    at++;
  if (ends_row (*at))
    return g_strdup (*at ? "the end of the row" : "the end of the text");
  g_autofree char *word = g_utf8_make_valid (at, MIN (word_length (at), 40));
  for (char *c = word; *c; c++)
    if (g_ascii_iscntrl (*c))
      *c = '?';
  return *word == '"' ? g_steal_pointer (&word) : g_strdup_printf ("\"%s\"", word);
}

/* Sets "NAME:LINE: found ..., wanted ...". Always returns FALSE. */
static gboolean
wanted (const struct reader *r, GError **error, const char *format, ...)
{
  g_autofree char *found = quote_word (r->at);
  va_list args;

  va_start (args, format);
  g_autofree char *what = g_strdup_vprintf (format, args);
  va_end (args);
  return complain (r, error, "found %s, wanted %s", found, what);
}

static gboolean
accept (struct reader *r, const char *word)
{
  size_t n = strlen (word);

  skip_blanks (r);
  if (strncmp (r->at, word, n) != 0 || word_length (r->at) != n)
    return FALSE;
  r->at += n;
  return TRUE;
}

static gboolean
expect (struct reader *r, const char *word, GError **error)
{
  return accept (r, word) || wanted (r, error, "\"%s\"", word);
}

/* Reads `prefix` and directly after it a number below `limit` (at most HUGE_NUMBER). If the text
 * has no such prefix, returns FALSE and does not move the cursor. */
static gboolean
accept_number (struct reader *r, const char *prefix, uint64_t limit, uint64_t *out)
{
  size_t n = strlen (prefix);
  uint64_t value = 0;

  skip_blanks (r);
  if (strncmp (r->at, prefix, n) != 0)
    return FALSE;
  const char *first = r->at + n, *c = first;
  for (; g_ascii_isdigit (*c) && value < limit; c++)
    value = value * 10 + (*c - '0');
  if (c == first || value >= limit || !(is_blank (*c) || ends_row (*c)))
    return FALSE;
  r->at = c;
  *out = value;
  return TRUE;
}

/* Describes a number that the parser reads: meaning for error messages, prefix in the text, upper
 * limit. */
struct number {
  const char *what, *prefix;
  uint64_t limit;
};

static gboolean
read_number (struct reader *r, struct number number, uint64_t *out, GError **error)
{
  if (accept_number (r, number.prefix, number.limit, out))
    return TRUE;
  if (number.limit == 0)
    return wanted (r, error, "%s, but there is none so far", number.what);
  return wanted (r, error, "%s, %s0 to %s%" G_GUINT64_FORMAT, number.what, number.prefix,
                 number.prefix, number.limit - 1);
}

static gboolean
read_huge (struct reader *r, const char *word, uint64_t *out, GError **error)
{
  return expect (r, word, error) &&
         read_number (r, (struct number){ word, "", HUGE_NUMBER }, out, error);
}

static gboolean
read_word (struct reader *r, const char *what, const char *const *words, uint8_t *out,
           GError **error)
{
  skip_blanks (r);
  size_t n = word_length (r->at);
  for (uint8_t i = 0; words[i]; i++)
    if (n && *words[i] == *r->at && strncmp (r->at, words[i], n) == 0 && !words[i][n]) {
      r->at += n;
      *out = i;
      return TRUE;
    }
  g_autofree char *typed = g_strndup (r->at, n);
  const char *near = n ? weft_suggest_strv (typed, words) : NULL;
  if (near)
    return wanted (r, error, "%s; did you mean %s?", what, near);
  g_autofree char *all = g_strjoinv (", ", (char **) words);
  return wanted (r, error, "%s: %s", what, all);
}

/* Reads one character of a quoted string. A backslash escapes a quote or a backslash. */
static gboolean
read_character (struct reader *r, GError **error)
{
  const char *c = r->at;

  if (*c != '\\') {
    g_string_append_c (r->string, *c);
    r->at++;
  } else if (c[1] == '"' || c[1] == '\\') {
    g_string_append_c (r->string, c[1]);
    r->at += 2;
  } else if (c[1] == 'x' && g_ascii_isxdigit (c[2]) && g_ascii_isxdigit (c[3]) &&
             g_ascii_iscntrl (g_ascii_xdigit_value (c[2]) * 16 + g_ascii_xdigit_value (c[3])) &&
             !(c[2] == '0' && c[3] == '0')) {
    g_string_append_c (r->string, g_ascii_xdigit_value (c[2]) * 16 + g_ascii_xdigit_value (c[3]));
    r->at += 4;
  } else {
    return wanted (r, error, "one of the escapes \\\" \\\\ \\x01 to \\x1f \\x7f");
  }
  return TRUE;
}

static gboolean
read_string (struct reader *r, GError **error)
{
  skip_blanks (r);
  if (*r->at != '"')
    return wanted (r, error, "a name in double quotes");
  g_string_truncate (r->string, 0);
  for (r->at++; *r->at != '"';) {
    if (!*r->at || g_ascii_iscntrl (*r->at))
      return wanted (r, error, "the rest of a name and its closing quote");
    if (!read_character (r, error))
      return FALSE;
  }
  r->at++;
  if (!g_utf8_validate (r->string->str, r->string->len, NULL))
    return complain (r, error, "found a name that is not UTF-8, wanted UTF-8");
  return is_blank (*r->at) || ends_row (*r->at) || wanted (r, error, "a blank after a name");
}

static gboolean
read_name (struct reader *r, uint16_t *out, GError **error)
{
  gpointer index;

  skip_blanks (r);
  const char *start = r->at;
  if (!read_string (r, error))
    return FALSE;
  if (!g_hash_table_lookup_extended (r->name_index, r->string->str, NULL, &index)) {
    r->at = start;
    return wanted (r, error, "a name of one of the %u name rows above", r->n[ROW_NAME]);
  }
  *out = GPOINTER_TO_UINT (index);
  return TRUE;
}

/* "L3" or "m5"; optional. */
static gboolean
read_place (struct reader *r, struct number number, uint16_t *out, GError **error)
{
  uint64_t value = number.limit;

  skip_blanks (r);
  if (*r->at == *number.prefix && !read_number (r, number, &value, error))
    return FALSE;
  *out = value;
  return TRUE;
}

static gboolean
read_layer (struct reader *r, uint16_t *out, GError **error)
{
  return read_place (r, (struct number){ "a layer", "L", WEFT_NO_LAYER }, out, error);
}

static gboolean
read_micro (struct reader *r, uint16_t *out, GError **error)
{
  return read_place (r, (struct number){ "a microbatch", "m", WEFT_NO_MICRO }, out, error);
}

static gboolean
read_chunk (struct reader *r, uint8_t *out, GError **error)
{
  uint64_t chunk;

  if (!read_number (r, (struct number){ "a chunk", "c", UINT8_MAX + 1 }, &chunk, error))
    return FALSE;
  *out = chunk;
  return TRUE;
}

static gboolean
read_header (struct reader *r, GError **error)
{
  uint64_t version, role, n_roles;
  const struct number any = { "a version", "", UINT32_MAX };

  if (r->n_roles)
    return complain (r, error, "found a second header, wanted one");
  if (!read_number (r, any, &version, error))
    return FALSE;
  if (version != WEFT_PROGRAM_TEXT_VERSION)
    return complain (r, error, "found version %u of this text, wanted %u", (unsigned) version,
                     WEFT_PROGRAM_TEXT_VERSION);
  if (!expect (r, "role", error) ||
      !read_number (r, (struct number){ "a role", "", UINT32_MAX }, &role, error) ||
      !expect (r, "of", error) ||
      !read_number (r, (struct number){ "a number of roles", "", UINT32_MAX }, &n_roles, error))
    return FALSE;
  r->role = role;
  r->n_roles = n_roles;
  return role < n_roles ||
         complain (r, error, "found role %u of %u, wanted a role below their number", r->role,
                   r->n_roles);
}

static gboolean
read_name_row (struct reader *r, GError **error)
{
  if (!read_string (r, error))
    return FALSE;
  char *name = g_strdup (r->string->str);
  g_ptr_array_add (r->names, name);
  return g_hash_table_insert (r->name_index, name, GUINT_TO_POINTER (r->n[ROW_NAME])) ||
         complain (r, error, "this name is given twice, wanted every name once");
}

static gboolean
read_shape_row (struct reader *r, GError **error)
{
  struct weft_shape shape = { .dtype = 0 };
  const struct number dimension = { "a dimension", "", HUGE_NUMBER };

  if (!read_word (r, "a type", weft_dtype_words, &shape.dtype, error))
    return FALSE;
  shape.out_dtype = shape.dtype;
  for (unsigned i = 0; i < G_N_ELEMENTS (shape.dim) && !at_end (r) && *r->at != 'o'; i++)
    if (!read_number (r, dimension, &shape.dim[i], error))
      return FALSE;
  if (accept (r, "out") && !read_word (r, "a type", weft_dtype_words, &shape.out_dtype, error))
    return FALSE;
  g_array_append_val (r->shape, shape);
  return TRUE;
}

/* Checks that a view lies inside its base, and that the base is not a view. */
static gboolean
check_view (struct reader *r, const struct weft_buf *view, GError **error)
{
  const struct weft_buf *base = &g_array_index (r->buf, struct weft_buf, view->base);

  if (base->base != WEFT_NO_BUF)
    return complain (r, error, "buffer %u is itself a view, wanted one that owns memory",
                     view->base);
  if (base->pool != view->pool)
    return complain (r, error, "found pool %s, wanted %s, that of buffer %u",
                     weft_pool_words[view->pool], weft_pool_words[base->pool], view->base);
  return view->offset + view->bytes <= base->bytes ||
         complain (r, error,
                   "this view ends at byte %" G_GUINT64_FORMAT ", wanted at most %" G_GUINT64_FORMAT
                   ", the size of buffer %u",
                   view->offset + view->bytes, base->bytes, view->base);
}

static gboolean
read_base (struct reader *r, struct weft_buf *buf, GError **error)
{
  uint64_t base;

  buf->base = WEFT_NO_BUF;
  if (!accept (r, "in"))
    return TRUE;
  if (!read_number (r, (struct number){ "a buffer above", "", r->n[ROW_BUF] }, &base, error))
    return FALSE;
  buf->base = base;
  return check_view (r, buf, error);
}

static gboolean
read_buf_row (struct reader *r, GError **error)
{
  struct weft_buf buf = { .bytes = 0 };

  if (!read_word (r, "a kind of buffer", weft_buf_kind_words, &buf.kind, error) ||
      !read_word (r, "a pool", weft_pool_words, &buf.pool, error) ||
      !read_word (r, "a type", weft_dtype_words, &buf.dtype, error) ||
      !read_layer (r, &buf.layer, error) || !read_micro (r, &buf.micro, error) ||
      !read_name (r, &buf.name, error) || !read_huge (r, "bytes", &buf.bytes, error) ||
      !read_huge (r, "at", &buf.offset, error) || !read_base (r, &buf, error))
    return FALSE;
  buf.permanent = accept (r, "permanent");
  if (accept (r, "slice") && !read_word (r, "a group", weft_group_words, &buf.slice, error))
    return FALSE;
  if (accept (r, "shard") && !read_word (r, "a group", weft_group_words, &buf.shard, error))
    return FALSE;
  g_array_append_val (r->buf, buf);
  return TRUE;
}

static gboolean
read_buf_number (struct reader *r, uint32_t *out, GError **error)
{
  uint64_t buf = WEFT_NO_BUF;

  if (!accept (r, "-") &&
      !read_number (r, (struct number){ "a buffer or -", "", r->n[ROW_BUF] }, &buf, error))
    return FALSE;
  *out = buf;
  return TRUE;
}

static gboolean
read_matrix (struct reader *r, struct weft_param *param, GError **error)
{
  uint64_t elements;

  if (!read_number (r, (struct number){ "rows", "", HUGE_NUMBER }, &param->rows, error) ||
      !read_huge (r, "x", &param->columns, error))
    return FALSE;
  return (!__builtin_mul_overflow (param->rows, param->columns, &elements) &&
          elements < HUGE_NUMBER) ||
         complain (r, error,
                   "found %" G_GUINT64_FORMAT " x %" G_GUINT64_FORMAT
                   " elements, wanted fewer than 2^60",
                   param->rows, param->columns);
}

/* Checks the blocks (rows of one expert) of an expert weight. A rank's rows must be a whole number
 * of blocks, and the ranks that divide a block must divide the whole tensor evenly. */
static gboolean
check_blocks (struct reader *r, const struct weft_param *param, GError **error)
{
  gboolean by_rows = param->cut == WEFT_CUT_ROWS;
  uint64_t inner = param->inner, outer = inner ? param->ways / inner : 0;
  gboolean fits = inner && param->ways <= UINT16_MAX && outer * inner == param->ways &&
                  param->rows % param->block == 0 && 2 * param->tail <= param->block &&
                  param->whole_rows == param->rows * (by_rows ? param->ways : outer) &&
                  param->whole_columns == param->columns * (by_rows ? 1 : inner);

  return fits || complain (r, error,
                           "found %u parts, %u inner, of %" G_GUINT64_FORMAT " x %" G_GUINT64_FORMAT
                           " in blocks of %" G_GUINT64_FORMAT " rows, wanted parts of the whole",
                           param->ways, param->inner, param->rows, param->columns, param->block);
}

static gboolean
check_cut (struct reader *r, const struct weft_param *param, GError **error)
{
  gboolean by_rows = param->cut == WEFT_CUT_ROWS;
  uint64_t mine = by_rows ? param->rows : param->columns,
           all = by_rows ? param->whole_rows : param->whole_columns;

  if (2 * param->tail > param->rows || 2 * param->tail * param->ways > param->whole_rows)
    return complain (r, error, "found two tails of %" G_GUINT64_FORMAT " rows, wanted fewer",
                     param->tail);
  return (param->ways && param->ways <= UINT16_MAX && all <= mine * param->ways &&
          (by_rows ? param->columns == param->whole_columns : param->rows == param->whole_rows)) ||
         complain (r, error,
                   "found %u parts of %" G_GUINT64_FORMAT " x %" G_GUINT64_FORMAT
                   " elements, wanted parts of the whole",
                   param->ways, param->rows, param->columns);
}

static gboolean
read_cut (struct reader *r, struct weft_param *param, GError **error)
{
  uint64_t n;

  param->whole_rows = param->rows;
  param->whole_columns = param->columns;
  param->ways = 1;
  if (!accept (r, "cut"))
    return TRUE;
  if (!read_word (r, "a way of cutting", weft_cut_words, &param->cut, error) ||
      !read_huge (r, "of", &param->whole_rows, error) ||
      !read_huge (r, "x", &param->whole_columns, error) ||
      !read_huge (r, "tail", &param->tail, error) || !read_huge (r, "ways", &n, error) ||
      !read_word (r, "a group", weft_group_words, &param->group, error))
    return FALSE;
  param->ways = MIN (n, UINT32_MAX);
  if (!accept (r, "blocks"))
    return check_cut (r, param, error);
  if (!read_huge (r, "of", &param->block, error) || !read_huge (r, "inner", &n, error))
    return FALSE;
  param->inner = MIN (n, UINT32_MAX);
  return param->block ? check_blocks (r, param, error)
                      : complain (r, error, "found blocks of 0 rows, wanted more");
}

/* Reads "bucket 3", or "frozen" for a parameter without a bucket. */
static gboolean
read_bucket (struct reader *r, struct weft_param *param, GError **error)
{
  const struct number any = { "a bucket", "", UINT64_C (1) << 32 };
  uint64_t bucket = WEFT_NO_BUCKET;

  param->frozen = accept (r, "frozen");
  if (!param->frozen && (!expect (r, "bucket", error) || !read_number (r, any, &bucket, error)))
    return FALSE;
  param->bucket = bucket;
  return TRUE;
}

static gboolean
read_param_row (struct reader *r, GError **error)
{
  struct weft_param param = { .scale = WEFT_NO_BUF };

  if (!read_layer (r, &param.layer, error) || !read_chunk (r, &param.chunk, error) ||
      !read_name (r, &param.name, error) || !read_matrix (r, &param, error) ||
      !read_huge (r, "at", &param.start, error) || !read_bucket (r, &param, error) ||
      !expect (r, "weight", error) || !read_buf_number (r, &param.weight, error) ||
      !expect (r, "grad", error) || !read_buf_number (r, &param.grad, error) ||
      (accept (r, "scale") && !read_buf_number (r, &param.scale, error)))
    return FALSE;
  if (accept (r, "pieces") &&
      (!read_huge (r, "of", &param.piece, error) || !read_huge (r, "every", &param.stride, error)))
    return FALSE;
  if (!read_cut (r, &param, error))
    return FALSE;
  param.decay = accept (r, "decay");
  param.tied = accept (r, "tied");
  param.duplicate = accept (r, "duplicate");
  g_array_append_val (r->param, param);
  return TRUE;
}

static gboolean
read_peer (struct reader *r, int8_t *out, GError **error)
{
  uint64_t distance;

  if (accept_number (r, "+", INT8_MAX + 1, &distance))
    *out = distance;
  else if (accept_number (r, "-", INT8_MAX + 2, &distance))
    *out = -(int) distance;
  else
    return wanted (r, error, "a distance in stages, -128 to +127");
  return TRUE;
}

static gboolean
read_op_options (struct reader *r, struct weft_op *op, GError **error)
{
  if (accept (r, "over") && !read_word (r, "a group", weft_group_words, &op->group, error))
    return FALSE;
  if (accept (r, "reduce") && !read_word (r, "a reduction", weft_reduce_words, &op->reduce, error))
    return FALSE;
  if (accept (r, "peer") && !read_peer (r, &op->peer, error))
    return FALSE;
  for (unsigned i = 0; weft_op_flag_words[i]; i++)
    if (accept (r, weft_op_flag_words[i]))
      op->flags |= (uint8_t) (1u << i);
  if (op->flags & WEFT_OP_GROUPED && r->lane_n[op->lane] == 0)
    return complain (r, error, "op %u is grouped, wanted an op before it on lane %s", r->n[ROW_OP],
                     weft_lane_words[op->lane]);
  return TRUE;
}

static gboolean
read_use (struct reader *r, GError **error)
{
  const char *start = r->at;
  gboolean read = *r->at == 'r', write = r->at[read] == 'w';
  uint32_t buf;

  r->at += read + write;
  if (is_blank (*r->at) || !read_buf_number (r, &buf, NULL)) {
    r->at = start;
    return wanted (r, error, "a use like r0, w0, rw0 or r-, of a buffer below %u", r->n[ROW_BUF]);
  }
  struct weft_use use = { .buf = buf, .read = read, .write = write };
  g_array_append_val (r->uses, use);
  return TRUE;
}

static gboolean
read_edges (struct reader *r, GError **error)
{
  gboolean after = accept (r, "after");
  const struct number dependency = { "an op above", "", r->n[ROW_OP] };
  uint64_t dep;

  if (!after && accept (r, "uses"))
    while (!at_end (r) && !(after = accept (r, "after")))
      if (!read_use (r, error))
        return FALSE;
  while (after && !at_end (r)) {
    if (!read_number (r, dependency, &dep, error))
      return FALSE;
    g_array_append_vals (r->deps, &(uint32_t){ dep }, 1);
  }
  return TRUE;
}

static gboolean
read_op_row (struct reader *r, GError **error)
{
  struct weft_op op = { .deps = r->deps->len, .uses = r->uses->len };
  const struct number shapes = { "a shape", "s", r->n[ROW_SHAPE] };
  uint64_t shape;

  if (!read_word (r, "a lane", weft_lane_words, &op.lane, error) ||
      !read_word (r, "a kind of op", weft_op_words, &op.kind, error) ||
      !read_word (r, "a phase", weft_phase_words, &op.phase, error) ||
      !read_layer (r, &op.layer, error) || !read_micro (r, &op.micro, error) ||
      !read_chunk (r, &op.chunk, error) || !read_name (r, &op.name, error) ||
      !read_number (r, shapes, &shape, error) || !read_op_options (r, &op, error))
    return FALSE;
  op.shape = shape;
  r->lane_n[op.lane]++;
  g_array_append_val (r->op, op);
  return read_edges (r, error);
}

/* For each kind of numbered row (name, shape, buf, param, op): the largest number of such rows in a
 * program, and the function that reads a row. */
static const struct {
  uint32_t limit;
  gboolean (*read) (struct reader *r, GError **error);
} rows[N_ROW] = {
  [ROW_NAME] = { UINT16_MAX, read_name_row }, [ROW_SHAPE] = { UINT16_MAX, read_shape_row },
  [ROW_BUF] = { WEFT_NO_BUF, read_buf_row },  [ROW_PARAM] = { UINT32_MAX, read_param_row },
  [ROW_OP] = { WEFT_NO_OP, read_op_row },
};
static const char *const row_words[] = { "name", "shape", "buf", "param", "op", NULL };

static gboolean
read_numbered_row (struct reader *r, GError **error)
{
  uint64_t number;
  uint8_t row;

  if (!read_word (r, "a row", row_words, &row, error))
    return FALSE;
  const char *start = r->at;
  if (r->n[row] == rows[row].limit)
    return complain (r, error, "found more than %u %s rows", rows[row].limit, row_words[row]);
  if (!accept_number (r, "", UINT32_MAX, &number) || number != r->n[row]) {
    r->at = start;
    return wanted (r, error, "%u, the number of this %s row", r->n[row], row_words[row]);
  }
  if (!rows[row].read (r, error))
    return FALSE;
  r->n[row]++;
  return TRUE;
}

static gboolean
read_row (struct reader *r, GError **error)
{
  if (r->ended)
    return wanted (r, error, "nothing after \"end\"");
  if (accept (r, "program"))
    return read_header (r, error);
  if (!r->n_roles)
    return wanted (r, error, "the header \"program %u role N of N\"", WEFT_PROGRAM_TEXT_VERSION);
  if (accept (r, "end"))
    return r->ended = TRUE;
  return read_numbered_row (r, error);
}

static gboolean
read_rows (struct reader *r, GError **error)
{
  for (;; r->at++, r->line++) {
    if (!at_end (r) &&
        !(read_row (r, error) && (at_end (r) || wanted (r, error, "the end of the row"))))
      return FALSE;
    while (*r->at && *r->at != '\n')
      r->at++;
    if (!*r->at)
      return r->ended || wanted (r, error, "the row \"end\", which shows that a program is whole");
  }
}

/* Creates a program from the arrays of the reader. The program owns the arrays afterwards. */
static weft_program *
assemble (struct reader *r)
{
  weft_program *p = g_new0 (weft_program, 1);
  struct weft_op close = { .deps = r->deps->len, .uses = r->uses->len };

  p->role = r->role;
  p->n_roles = r->n_roles;
  p->n_op = r->n[ROW_OP];
  p->n_buf = r->n[ROW_BUF];
  p->n_shape = r->n[ROW_SHAPE];
  p->n_name = r->n[ROW_NAME];
  p->n_param = r->n[ROW_PARAM];
  g_array_append_val (r->op, close);
  p->op = g_array_steal (r->op, NULL);
  p->deps = g_array_steal (r->deps, NULL);
  p->uses = g_array_steal (r->uses, NULL);
  p->buf = g_array_steal (r->buf, NULL);
  p->shape = g_array_steal (r->shape, NULL);
  p->param = g_array_steal (r->param, NULL);
  g_ptr_array_add (r->names, NULL);
  p->name = (char **) g_ptr_array_steal (r->names, NULL);
  weft_program_index (p);
  return p;
}

weft_program *
weft_program_parse (const char *text, const char *name, GError **error)
{
  g_autoptr (GString) string = g_string_new (NULL);
  g_autoptr (GPtrArray) names = g_ptr_array_new_with_free_func (g_free);
  g_autoptr (GHashTable) name_index = g_hash_table_new (g_str_hash, g_str_equal);
  g_autoptr (GArray) shape = g_array_new (FALSE, FALSE, sizeof (struct weft_shape));
  g_autoptr (GArray) buf = g_array_new (FALSE, FALSE, sizeof (struct weft_buf));
  g_autoptr (GArray) param = g_array_new (FALSE, FALSE, sizeof (struct weft_param));
  g_autoptr (GArray) op = g_array_new (FALSE, FALSE, sizeof (struct weft_op));
  g_autoptr (GArray) deps = g_array_new (FALSE, FALSE, sizeof (uint32_t));
  g_autoptr (GArray) uses = g_array_new (FALSE, FALSE, sizeof (struct weft_use));
  struct reader r = { .name = name,
                      .at = text,
                      .line = 1,
                      .string = string,
                      .names = names,
                      .name_index = name_index,
                      .shape = shape,
                      .buf = buf,
                      .param = param,
                      .op = op,
                      .deps = deps,
                      .uses = uses };

  /* Every row and every edge takes at least two bytes of text. Texts up to this length therefore
   * cannot overflow a 32-bit count. */
  if (strlen (text) > UINT32_MAX) {
    weft_bad_input (error, "%s: found more than 4 GiB of text, wanted less", name);
    return NULL;
  }
  return read_rows (&r, error) ? assemble (&r) : NULL;
}
