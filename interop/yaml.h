/* yaml.h - the scalars of a YAML document with their places, read by libyaml. */
#pragma once
#include <glib.h>

struct weft_yaml_value {
  char *path; /* "MODEL_ARGS.--num-layers"; items of a list: "names.0" */
  char *text;
  unsigned line;
};

/* All scalars in the order of the file: an array of struct weft_yaml_value, which the caller
 * unrefs.  An empty mapping or list has the text "".  Anchors and aliases are followed.  NULL and
 * an error "name:line: ..." if libyaml refuses the text, or if it has more than one document or a
 * key that is no scalar. */
GArray *weft_yaml_values (const char *text, const char *name, GError **error);
