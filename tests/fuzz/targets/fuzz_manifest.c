/* Manifests of checkpoints: an accepted manifest is printed and read back, and must print the same
 * text. Its chunks must lie inside their tensors and files. */
#include "tests/fuzz/fuzz.h"
#include "train/manifest.h"
#include <string.h>

static void
check_chunks (const weft_manifest *m)
{
  for (uint32_t i = 0; i < m->chunks->len; i++) {
    const struct weft_manifest_chunk *c = weft_manifest_chunk (m, i);
    const struct weft_manifest_tensor *t = weft_manifest_tensor (m, c->tensor);
    g_autofree char *name = weft_manifest_chunk_name (m, c);
    g_assert_true (c->row + c->rows <= t->rows && c->column + c->columns <= t->columns);
    g_assert_true (c->offset + weft_manifest_chunk_bytes (c) <=
                   weft_manifest_file (m, c->file)->bytes);
    g_assert_true (g_str_has_prefix (name, t->name));
  }
}

int
LLVMFuzzerTestOneInput (const uint8_t *data, size_t size)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (weft_manifest) m = weft_manifest_parse ((const char *) data, size, &error);

  g_assert_true ((m == NULL) == (error != NULL));
  if (!m) {
    g_assert_true (g_utf8_validate (error->message, -1, NULL));
    return 0;
  }
  check_chunks (m);
  g_autofree char *first = weft_manifest_print (m);
  g_autoptr (weft_manifest) again = weft_manifest_parse (first, strlen (first), &error);
  g_assert_no_error (error);
  g_autofree char *second = weft_manifest_print (again);
  g_assert_cmpstr (first, ==, second);
  return 0;
}
