#include "core/base/error.h"
#include "api/inside.h"
#include <string.h>

const char *
weft_version (void)
{
  return WEFT_VERSION;
}

/* Fills `error`. A message that is too long is cut in the middle. */
static void
fill (weft_error *error, weft_status status, const char *message)
{
  static const char gap[] = " ... ";
  const size_t room = sizeof error->message, length = strlen (message),
               half = room / 2 - sizeof gap;

  error->status = status;
  if (length < room)
    memcpy (error->message, message, length + 1);
  else
    g_snprintf (error->message, room, "%.*s%s%s", (int) half, message, gap,
                message + length - half);
}

bool
weft_api_fail (weft_error *error, GError *reason)
{
  if (error)
    fill (error, (weft_status) (reason ? weft_error_exit_status (reason) : WEFT_STATUS_FAILED),
          reason ? reason->message : "");
  g_clear_error (&reason);
  return false;
}

bool
weft_api_fail_with (weft_error *error, weft_status status, const char *format, ...)
{
  va_list args;

  va_start (args, format);
  g_autofree char *message = g_strdup_vprintf (format, args);
  va_end (args);
  if (error)
    fill (error, status, message);
  return false;
}

bool
weft_api_given (const char *call, const char *what, const void *pointer, weft_error *error)
{
  return pointer || weft_api_fail_with (error, WEFT_STATUS_BAD_INPUT,
                                        "%s: %s: found NULL, wanted a %s", call, what, what);
}

bool
weft_api_done (weft_error *error)
{
  if (error)
    fill (error, WEFT_STATUS_DONE, "");
  return true;
}
