#include "core/base/invariant.h"
#include "core/base/error.h"
#include <setjmp.h>

/* The innermost call of weft_guarded() that the thread is in. */
struct guard {
  struct guard *outer;
  jmp_buf back;
  GError *error;
};
static _Thread_local struct guard *innermost;

void
weft_invariant_failed (const char *condition, const char *file, int line, const char *function)
{
  if (!innermost)
    g_assertion_message_expr (NULL, file, line, function, condition);
  g_set_error (&innermost->error, WEFT_ERROR, WEFT_ERROR_BUG,
               "internal error at %s:%d, %s: %s does not hold; please report it with this input",
               file, line, function, condition);
  longjmp (innermost->back, 1);
}

gboolean
weft_guarded (void (*call) (void *data), void *data, GError **error)
{
  struct guard here = { .outer = innermost };

  innermost = &here;
  if (setjmp (here.back) == 0)
    call (data);
  innermost = here.outer;
  if (here.error)
    g_propagate_error (error, here.error);
  return !here.error;
}
