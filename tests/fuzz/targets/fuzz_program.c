/* Program text: an accepted program is printed and read back, and must print the same text. */
#include "core/program/program_json.h"
#include "tests/fuzz/fuzz.h"
#include <json-glib/json-glib.h>

static void
append_piece (const char *piece, void *json)
{
  g_string_append (json, piece);
}

static void
show (const weft_program *p)
{
  g_autoptr (GString) json = g_string_new (NULL);
  g_autofree char *dot = weft_program_dot (p);
  g_autofree uint32_t *before = weft_program_order (p);

  g_assert (g_utf8_validate (dot, -1, NULL));
  g_assert (before);
  weft_program_write_json (p, append_piece, json);
  g_autoptr (JsonNode) root = json_from_string (json->str, NULL);
  g_assert_nonnull (root);
}

int
LLVMFuzzerTestOneInput (const uint8_t *data, size_t size)
{
  g_autofree char *text = g_strndup ((const char *) data, size);
  g_autoptr (GError) error = NULL;
  g_autoptr (weft_program) p = weft_program_parse (text, "fuzz", &error);

  g_assert_true ((p == NULL) == (error != NULL));
  if (!p) {
    g_assert_true (g_utf8_validate (error->message, -1, NULL));
    return 0;
  }
  g_autofree char *first = weft_program_print (p);
  g_autoptr (weft_program) again = weft_program_parse (first, "printed", &error);
  g_assert_no_error (error);
  g_autofree char *second = weft_program_print (again);
  g_assert_cmpstr (first, ==, second);
  show (p);
  return 0;
}
