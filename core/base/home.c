/* For dladdr() (GNU) and realpath() (POSIX). */
#define _GNU_SOURCE
#include "core/base/home.h"
#include <dlfcn.h>
#include <glib.h>
#include <stdint.h>
#include <stdlib.h>

/* PREFIX/bin/weft, PREFIX/lib/libweft.so, PREFIX/lib/x86_64-linux-gnu/libweft.so. */
enum { MOST_ABOVE = 3 };

/* The folder above `file` that has share/weft, interned; or NULL. */
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

/* The shared library; or, where Weft is part of a program, that program, which dladdr() may know by
 * the bare name it was called by. */
static void *
find_prefix (void *unused)
{
  Dl_info info;
  const char *prefix = dladdr (&here, &info) ? prefix_of (info.dli_fname) : NULL;

  (void) unused;
  return (void *) (uintptr_t) (prefix ? prefix : prefix_of ("/proc/self/exe"));
}

/* Cached: the prefix does not change during a run. */
const char *
weft_home_prefix (void)
{
  static GOnce once = G_ONCE_INIT;

  return g_once (&once, find_prefix, NULL);
}
