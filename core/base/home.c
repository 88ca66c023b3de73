/* Needed for dladdr() (GNU) and realpath() (POSIX). */
#define _GNU_SOURCE
#include "core/base/home.h"
#include <dlfcn.h>
#include <glib.h>
#include <stdint.h>
#include <stdlib.h>

/* Levels from a binary up to its prefix, at most: PREFIX/lib/x86_64-linux-gnu/libweft.so has 3,
 * PREFIX/bin/weft and PREFIX/lib/libweft.so have 2. */
enum { MOST_ABOVE = 3 };

/* The folder above `file` that contains share/weft/models, interned; NULL if there is none. */
static const char *
prefix_of (const char *file)
{
  g_autofree char *real = NULL;
  char *found = realpath (file, NULL);

  real = g_strdup (found);
  free (found);
  for (int i = 0; real && i < MOST_ABOVE; i++) {
    char *above = g_path_get_dirname (real);
    g_free (real);
    real = above;
    g_autofree char *data = g_build_filename (real, "share", "weft", "models", NULL);
    if (i > 0 && g_file_test (data, G_FILE_TEST_IS_DIR))
      return g_intern_string (real);
  }
  return NULL;
}

static const char here;

/* Finds the prefix from the path of the shared library, or of the program if Weft is linked
 * statically. dladdr() may return the name of the program as the user typed it, without a folder;
 * then /proc/self/exe gives the path. */
static void *
find_prefix (void *unused)
{
  Dl_info info;
  const char *prefix = dladdr (&here, &info) ? prefix_of (info.dli_fname) : NULL;

  (void) unused;
  return (void *) (uintptr_t) (prefix ? prefix : prefix_of ("/proc/self/exe"));
}

/* The result of the first call is stored: the prefix does not change during a run. */
const char *
weft_home_prefix (void)
{
  static GOnce once = G_ONCE_INIT;

  return g_once (&once, find_prefix, NULL);
}
