/* invariant.h - conditions that hold unless Weft itself has a bug, whatever the input is.
 *
 * A condition that fails aborts the process and prints its place. Inside weft_guarded() it ends the
 * guarded call with an error instead, so that only one candidate of a search, or one call of the
 * library, fails. Memory that the call has allocated is then not freed. */
#pragma once
#include <glib.h>

#define WEFT_INVARIANT(condition)                                                                  \
  do {                                                                                             \
    if (G_UNLIKELY (!(condition)))                                                                 \
      weft_invariant_failed (#condition, __FILE__, __LINE__, G_STRFUNC);                           \
  } while (0)

#define WEFT_UNREACHABLE() weft_invariant_failed ("not reached", __FILE__, __LINE__, G_STRFUNC)

void weft_invariant_failed (const char *condition, const char *file, int line,
                            const char *function) G_GNUC_NORETURN;

/* Calls `call` with `data`. FALSE with WEFT_ERROR_BUG if an invariant fails in this thread during
 * the call. The call must hold no lock and start no thread that outlives the call. Guarded calls
 * may be nested. */
gboolean weft_guarded (void (*call) (void *data), void *data, GError **error);
