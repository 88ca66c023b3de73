/* import.h - feeds bytes to the import of other software, as `weft import --partial` does. */
#pragma once
#include "interop/interop.h"
#include "tests/fuzz/fuzz.h"
#include <string.h>

/* A text is imported, or refused with an error in UTF-8. Bytes that are no text are left out, as
 * weft_file_check_text() refuses them. */
static inline void
weft_fuzz_import (const struct weft_target *target, const uint8_t *data, size_t size)
{
  g_autofree char *text = g_strndup ((const char *) data, size);
  g_autoptr (GError) error = NULL;
  struct weft_import_options options = { .gpus = 16, .partial = TRUE };

  if (!g_utf8_validate ((const char *) data, (gssize) size, NULL))
    return;
  g_autoptr (weft_interop_result) result = weft_import (target, text, "fuzz", &options, &error);
  if (result) {
    g_assert_no_error (error);
    g_assert_nonnull (result->settings);
    return;
  }
  g_assert_nonnull (error);
  g_assert_true (g_utf8_validate (error->message, -1, NULL));
}
