/* json_scan.h - a check of JSON text before json-glib parses it.
 *
 * json-glib accepts more than JSON ('quotes', octal numbers, a second value after the first), wraps
 * integers at 64 bits, lets escapes produce bytes that are not UTF-8, and recurses without limit.
 * This scan refuses all of these; json-glib checks the rest of the grammar. */
#pragma once
#include <json-glib/json-glib.h>

/* Scans a text of `length` bytes.  Errors begin with "LINE:COLUMN: ". */
gboolean weft_json_scan (const char *json, gsize length, GError **error);

/* Scans a JSON text for what json-glib would accept wrongly, then parses it. Refuses an object with
 * a duplicate key. Errors begin with "LINE:COLUMN: ". The parser owns the root node, which is NULL
 * for an empty text. The caller unrefs the parser. */
JsonParser *weft_json_load (const char *json, gsize length, GError **error);

/* The kind of a JSON node as words for messages: "an array", "a number"; "nothing" for NULL. */
const char *weft_json_kind (JsonNode *node);
