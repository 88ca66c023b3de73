/* json_scan.h - a walk over a JSON text before json-glib sees it.
 *
 * json-glib takes more than JSON ('quotes', octal numbers, a second value after the first), wraps
 * integers at 64 bits, lets escapes make bytes that are not UTF-8, and recurses without end.  What
 * passes here has none of that; whether it is JSON in every detail is still the parser's to say. */
#pragma once
#include <json-glib/json-glib.h>

/* Errors begin with "LINE:COLUMN: ". */
gboolean weft_json_scan (const char *json, gsize length, GError **error);

/* Scans, then parses; refuses an object with the same key twice.  The parser owns the root, which
 * may be NULL.  Errors as above.  Caller unrefs. */
JsonParser *weft_json_load (const char *json, gsize length, GError **error);

/* What a message says was found: "an array", "a number"; "nothing" for NULL. */
const char *weft_json_kind (JsonNode *node);
