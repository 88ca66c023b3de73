/* tree.h - configurations that are trees of names, in JSON or YAML.
 *
 * A key of the schema is a path: "zero_optimization.stage".  A key "optimizer.params.*" stands for
 * every path below "optimizer.params". */
#pragma once
#include "interop/target.h"

/* The scalars of a JSON document with their places, as weft_yaml_values() returns them: JSON is
 * YAML, too.  json-glib checks the text before libyaml reads it. */
GArray *weft_json_values (const char *text, const char *name, GError **error);

/* Adds the values of a tree (struct weft_yaml_value, as weft_yaml_values() returns them) as keys of
 * a target. Items of a list become one text, separated by commas. A number that is null has its
 * default, as if it were not given. A path with one of the prefixes `skipped` (closed by NULL; may
 * be NULL) is left out. */
gboolean weft_tree_keys (const GArray *values, const char *name, const struct weft_target *target,
                         const char *const *skipped, weft_keys_read *out, GError **error);

/* The keys as a tree: a JSON document, or YAML. The caller frees the text. */
char *weft_tree_json (const struct weft_target *target, const weft_keys_read *keys);
char *weft_tree_yaml (const struct weft_target *target, const weft_keys_read *keys);
