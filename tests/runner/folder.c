#include "tests/runner/folder.h"
#include <glib/gstdio.h>

int
weft_test_folder_make (void **state)
{
  *state = g_dir_make_tmp ("weft-test-XXXXXX", NULL);
  return *state ? 0 : -1;
}

void
weft_test_remove (const char *path)
{
  g_autoptr (GDir) dir = g_dir_open (path, 0, NULL);
  const char *name;

  while (dir && (name = g_dir_read_name (dir))) {
    g_autofree char *inner = g_build_filename (path, name, NULL);
    weft_test_remove (inner);
  }
  g_remove (path);
}

int
weft_test_folder_remove (void **state)
{
  weft_test_remove (*state);
  g_free (*state);
  return 0;
}

int
weft_test_enter_tree (void **state)
{
  (void) state;
  return g_chdir (WEFT_SOURCE_DIR);
}
