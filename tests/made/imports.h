/* imports.h - imports of configuration texts of other software, checked setting by setting. */
#pragma once
#include "interop/interop.h"

/* How a test imports texts: the software, the name of the file in messages, the number of GPUs of
 * the cluster (0: the text says it), and text that stands before the text of each check. */
struct weft_test_import {
  const struct weft_target *target;
  const char *file;
  unsigned gpus;
  const char *before;
};

/* The text of a setting after an import of `text` alone. The caller frees it. */
char *weft_test_imported (const struct weft_test_import *how, const char *text,
                          const char *setting);

/* Fails unless the import of `before` and `text` gives this value to the setting. */
void weft_test_means (const struct weft_test_import *how, const char *text, const char *setting,
                      const char *value);

/* Fails unless the import of `text` alone, without a number of GPUs, is refused as bad input by a
 * message that contains `part`. */
void weft_test_import_refused (const struct weft_test_import *how, const char *text,
                               const char *part);
