/* The text of JSON documents: what is printed is parsed as the same values. */
#include "core/base/json.h"
#include "tests/runner/runner.h"
#include <float.h>
#include <string.h>

static void
every_finite_number_is_printed_as_json_that_reads_the_same (void **state)
{
  const double numbers[] = { 1e-8, 1e18,    -1e-10,  2.5e17, 1e17,
                             0.1,  0,       -3,      1e300,  12345678901234500.0,
                             1e-6, 1 / 3.0, DBL_MIN, DBL_MAX };
  g_autoptr (JsonBuilder) b = json_builder_new ();

  (void) state;
  json_builder_begin_object (b);
  weft_json_array (b, "numbers");
  for (size_t i = 0; i < G_N_ELEMENTS (numbers); i++)
    json_builder_add_double_value (b, numbers[i]);
  json_builder_end_array (b);
  json_builder_end_object (b);
  g_autoptr (JsonNode) root = json_builder_get_root (b);
  for (int pretty = 0; pretty < 2; pretty++) {
    g_autofree char *text = weft_json_print (root, pretty);
    assert_null (strstr (text, "e-08."));
    assert_non_null (strstr (text, "1e-06"));
    assert_null (strstr (text, "99999999"));
    g_autoptr (JsonNode) read = json_from_string (text, NULL);
    assert_non_null (read);
    JsonArray *array = json_object_get_array_member (json_node_get_object (read), "numbers");
    for (guint i = 0; i < G_N_ELEMENTS (numbers); i++)
      assert_true (json_array_get_double_element (array, i) == numbers[i]);
  }
}

static void
texts_are_not_mended (void **state)
{
  static const char *const texts[] = { "1e-08.0", "\"1e5.0", "\\", "e.g. 3", "e3.0\\\"e3.0" };

  (void) state;
  for (size_t i = 0; i < G_N_ELEMENTS (texts); i++) {
    g_autoptr (JsonBuilder) b = json_builder_new ();
    json_builder_begin_object (b);
    weft_json_text (b, "text", texts[i]);
    weft_json_bool (b, "true", TRUE);
    weft_json_real (b, "half", 0.5);
    json_builder_end_object (b);
    g_autoptr (JsonNode) root = json_builder_get_root (b);
    g_autofree char *text = weft_json_print (root, FALSE);
    g_autoptr (JsonNode) read = json_from_string (text, NULL);
    assert_non_null (read);
    JsonObject *object = json_node_get_object (read);
    assert_string_equal (json_object_get_string_member (object, "text"), texts[i]);
    assert_true (json_object_get_double_member (object, "half") == 0.5);
  }
}

static const struct CMUnitTest tests[] = {
  cmocka_unit_test (every_finite_number_is_printed_as_json_that_reads_the_same),
  cmocka_unit_test (texts_are_not_mended),
};

WEFT_TESTS (tests)
