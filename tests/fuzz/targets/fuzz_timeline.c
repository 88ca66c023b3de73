/* Timeline files: an accepted file must have a plan, and a comparison of the file with itself must
 * find no difference. */
#include "core/report/compare.h"
#include "core/exec/timeline_file.h"
#include "tests/fuzz/fuzz.h"
#include <math.h>
#include <string.h>

/* Whether the text may name a file, which a fuzzer must not open: a path with a slash, a text with
 * ".ini" or ".json", or a Unicode escape, which could hide one of these. */
static gboolean
names_a_file (const char *text)
{
  static const char schema[] = "weft.timeline/1";
  const ptrdiff_t before = strlen ("weft.timeline");

  for (const char *c = strchr (text, '/'); c; c = strchr (c + 1, '/'))
    if (c - text < before || !g_str_has_prefix (c - before, schema))
      return TRUE;
  return strstr (text, "\\u") || strstr (text, ".ini") || strstr (text, ".json");
}

static void
compare_with_itself (const weft_plan *plan, const weft_timeline *t)
{
  const struct weft_compare_side side = { "fuzz", plan, t };
  g_autoptr (weft_compare) c = weft_compare_new (&side, &side, 3);
  g_autoptr (JsonBuilder) b = json_builder_new ();
  g_autoptr (GString) text = g_string_new (NULL);

  g_assert_null (c->mismatch);
  g_assert_cmpuint (c->n_only[0] + c->n_only[1] + c->worst->len + c->setting->len, ==, 0);
  for (unsigned i = 0; i < c->sum->len; i++) {
    const struct weft_compare_sum *sum = &g_array_index (c->sum, struct weft_compare_sum, i);
    g_assert_true (isfinite (sum->seconds[0]) && sum->seconds[0] == sum->seconds[1]);
    g_assert_true (isfinite (sum->wait[0]) && sum->wait[0] == sum->wait[1]);
  }
  weft_compare_to_json (c, b);
  weft_compare_print (c, 80, text);
}

int
LLVMFuzzerTestOneInput (const uint8_t *data, size_t size)
{
  g_autofree char *text = g_strndup ((const char *) data, size);
  g_autoptr (GError) error = NULL;
  g_autoptr (weft_plan) plan = NULL;
  g_autoptr (weft_timeline) t = NULL;

  if (names_a_file (text))
    return 0;
  if (!weft_timeline_parse ((const char *) data, size, "fuzz", &plan, &t, &error)) {
    g_assert_nonnull (error);
    g_assert_true (g_utf8_validate (error->message, -1, NULL));
    g_assert_true (plan == NULL && t == NULL);
    return 0;
  }
  g_assert_no_error (error);
  compare_with_itself (plan, t);
  return 0;
}
