/* json.h - functions that add one member to the open JSON object of a builder, and the text of a
 * document. */
#pragma once
#include "core/base/field.h"
#include <json-glib/json-glib.h>

void weft_json_text (JsonBuilder *b, const char *member, const char *text);
void weft_json_int (JsonBuilder *b, const char *member, int64_t value);
void weft_json_real (JsonBuilder *b, const char *member, double value);

/* Adds a number to an object, or null if the number is not finite: JSON has no NaN and no
 * infinity. */
void weft_json_real_or_null (JsonBuilder *b, const char *member, double value);
void weft_json_bool (JsonBuilder *b, const char *member, gboolean value);
void weft_json_null (JsonBuilder *b, const char *member);

/* Opens an array or an object as a member; json_builder_end_array() or _end_object() ends it. */
void weft_json_array (JsonBuilder *b, const char *member);
void weft_json_object (JsonBuilder *b, const char *member);

/* Adds a value to an object in the JSON type of its field; WEFT_NONE becomes null. */
void weft_json_value (JsonBuilder *b, const char *member, const struct weft_field *field,
                      union weft_value value);

/* Prints a JSON document as text, on one line or indented. The caller frees the text. Unlike
 * json_to_string(), it is valid JSON for every finite number (json-glib 1.6 prints 1e-08 as
 * 1e-08.0), and a real number has as few digits as give its value back. */
char *weft_json_print (JsonNode *root, gboolean pretty);
