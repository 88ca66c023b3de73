#include "tests/runner/command.h"
#include <glib.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/wait.h>

#include <cmocka.h>

struct answer
weft_test_answer (const char *words)
{
  g_autofree char *line = g_strdup_printf ("%s %s", WEFT_BINARY, words);
  g_auto (GStrv) argv = g_strsplit (g_strchomp (line), " ", -1);
  g_autoptr (GError) error = NULL;
  struct answer a;

  if (!g_spawn_sync (NULL, argv, NULL, G_SPAWN_DEFAULT, NULL, NULL, &a.out, &a.err, &a.status,
                     &error))
    fail_msg ("%s", error->message);
  assert_true (WIFEXITED (a.status));
  a.status = WEXITSTATUS (a.status);
  return a;
}

void
weft_test_answer_free (struct answer *answer)
{
  g_free (answer->out);
  g_free (answer->err);
}

void
weft_test_refused (const char *words, int status, const char *part)
{
  struct answer a = weft_test_answer (words);

  if (a.status != status || *a.out || !g_str_has_prefix (a.err, "weft: ") || !strstr (a.err, part))
    fail_msg ("weft %s: status %d\n%s%s\nwanted %d and \"%s\"", words, a.status, a.out, a.err,
              status, part);
  weft_test_answer_free (&a);
}
