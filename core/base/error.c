#include "core/base/error.h"
#include <string.h>

/* Longest message, in bytes. A longer message is cut, because it may quote a whole file. */
#define MOST_MESSAGE 4000

GQuark
weft_error_quark (void)
{
  return g_quark_from_static_string ("weft_error");
}

int
weft_error_exit_status (const GError *error)
{
  static const int status[] = {
#define WEFT_ERROR_ROW(id, exit_status, doc) [id] = exit_status,
    WEFT_ERROR_LIST (WEFT_ERROR_ROW)
#undef WEFT_ERROR_ROW
  };
  if (error->domain != WEFT_ERROR)
    return 1;
  return status[error->code];
}

/* Whether a character may be printed as it is: all but controls (C0 except line feed and tab, DEL,
 * C1), which could change what a terminal shows. */
static gboolean
is_printable (gunichar c)
{
  return (c >= 0x20 && c != 0x7f && (c < 0x80 || c >= 0xa0)) || c == '\n' || c == '\t';
}

/* A copy of a message in which bytes that are not UTF-8 and control characters are written as \xff:
 * a message quotes words that somebody typed. The caller frees it. */
static char *
escape (const char *message)
{
  GString *text = g_string_new (NULL);

  for (const char *at = message; *at;) {
    gunichar c = g_utf8_get_char_validated (at, -1);
    gboolean valid = c != (gunichar) -1 && c != (gunichar) -2;
    const char *next = valid ? g_utf8_next_char (at) : at + 1;
    if (valid && is_printable (c))
      g_string_append_len (text, at, next - at);
    else
      for (; at < next; at++)
        g_string_append_printf (text, "\\x%02x", (guint8) *at);
    at = next;
  }
  return g_string_free (text, FALSE);
}

static void
set_error (GError **error, enum weft_error code, const char *format, va_list args)
{
  g_autofree char *raw = g_strdup_vprintf (format, args), *message = escape (raw);

  if (strlen (message) > MOST_MESSAGE)
    memcpy (g_utf8_find_prev_char (message, message + MOST_MESSAGE), "...", sizeof "...");
  g_set_error_literal (error, WEFT_ERROR, code, message);
}

gboolean
weft_bad_input (GError **error, const char *format, ...)
{
  va_list args;
  va_start (args, format);
  set_error (error, WEFT_ERROR_INPUT, format, args);
  va_end (args);
  return FALSE;
}

gboolean
weft_run_error (GError **error, const char *format, ...)
{
  va_list args;
  va_start (args, format);
  set_error (error, WEFT_ERROR_RUN, format, args);
  va_end (args);
  return FALSE;
}
