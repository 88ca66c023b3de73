#include "core/base/error.h"
#include <string.h>

/* Longest message, in bytes.  A longer one is cut, since it may quote a whole file. */
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

static void
set_error (GError **error, enum weft_error code, const char *format, va_list args)
{
  g_autofree char *message = g_strdup_vprintf (format, args);

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
