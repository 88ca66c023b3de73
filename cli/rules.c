#include "cli/ask.h"
#include "cli/cli.h"
#include "cli/completion.h"
#include "core/base/json.h"
#include "core/base/error.h"
#include "core/job/job.h"
#include "core/base/suggest.h"
#include <stdio.h>

static const char *
kind_of (const struct weft_rule *rule)
{
  return rule->warning ? "warning" : "rule";
}

static const char *
name_at (const void *rules, unsigned i)
{
  return ((const struct weft_rule *) rules)[i].name;
}

static int
find_rule (const char *name, GError **error)
{
  for (unsigned i = 0; i < weft_n_rules; i++)
    if (weft_same_name (weft_rules[i].name, name))
      return i;
  const char *near = weft_suggest (name, name_at, weft_rules, weft_n_rules);
  if (near)
    weft_bad_input (error, "unknown rule \"%s\"; did you mean %s?", name, near);
  else
    weft_bad_input (error, "unknown rule \"%s\"", name);
  return -1;
}

static void
print_rule (const struct weft_rule *rule)
{
  int used = printf ("%-22s %-8s ", rule->name, kind_of (rule));
  weft_cli_print_rest (rule->doc, used, weft_cli_columns ());
}

static void
build_rule (JsonBuilder *builder, const struct weft_rule *rule)
{
  json_builder_begin_object (builder);
  weft_json_text (builder, "name", rule->name);
  weft_json_text (builder, "kind", kind_of (rule));
  weft_json_text (builder, "doc", rule->doc);
  json_builder_end_object (builder);
}

static int
print_help (void)
{
  if (weft_cli_form == WEFT_CLI_FORM_FLAGS)
    return 0;
  printf ("usage: weft rules [NAME] [--json]\n\n"
          "Lists the rules that the settings of a job must fulfil.  A job that breaks a rule is\n"
          "refused, with the name of the rule; a warning is only printed.\n\n"
          "examples:\n  weft rules\n  weft rules world\n  weft rules --json\n");
  return 0;
}

/* Prints the rule with number `only`, or all rules if `only` is negative. */
static void
print_rules (int only, gboolean json)
{
  g_autoptr (JsonBuilder) builder = json_builder_new ();

  json_builder_begin_array (builder);
  for (unsigned i = 0; i < weft_n_rules; i++) {
    if (only >= 0 && (unsigned) only != i)
      continue;
    if (json)
      build_rule (builder, &weft_rules[i]);
    else
      print_rule (&weft_rules[i]);
  }
  json_builder_end_array (builder);
  if (json)
    weft_cli_print_json (builder);
}

int
weft_cli_rules (int argc, char **argv)
{
  struct weft_cli_ask ask;
  g_autoptr (GError) error = NULL;
  int only = -1;

  if (!weft_cli_ask (argc, argv, FALSE, &ask, &error))
    return weft_cli_fail (error);
  if (ask.help)
    return print_help ();
  if (ask.name && (only = find_rule (ask.name, &error)) < 0)
    return weft_cli_fail (error);
  print_rules (only, ask.json);
  return 0;
}
