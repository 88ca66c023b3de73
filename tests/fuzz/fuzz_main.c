/* Feeds every file of the given folders to a fuzz target, so that the corpus is a
 * test with any compiler.
 *
 * tests/fuzz/run.sh builds the targets with clang's libFuzzer and searches for new inputs; one
 * target alone, after that:
 *
 *   build-fuzz/tests/fuzz/fuzz_program -max_total_time=120 new tests/fuzz/inputs/program
 *
 * Once a bug is fixed, its input is added to tests/fuzz/inputs/program under a name that describes
 * it. */
#include "tests/fuzz/fuzz.h"
#include <glib.h>
#include <stdio.h>
#include <string.h>

/* Feeds one file to the target. The target gets an exact copy of the bytes, so that the sanitizer
 * detects a read past the end. Returns FALSE if the file cannot be read. */
static gboolean
feed_file (const char *path)
{
  g_autofree char *data = NULL;
  g_autoptr (GError) error = NULL;
  gsize size;

  if (!g_file_get_contents (path, &data, &size, &error)) {
    fprintf (stderr, "%s\n", error->message);
    return FALSE;
  }
  /* allocates at least one byte, because malloc (0) may return NULL */
  g_autofree uint8_t *exact = g_malloc (size + !size);
  memcpy (exact, data, size);
  fprintf (stderr, "%s\n", path);
  LLVMFuzzerTestOneInput (exact, size);
  return TRUE;
}

/* Feeds all files of a folder to the target. Returns the number of files, or -1 if a file cannot be
 * read. */
static int
feed_folder (const char *folder)
{
  g_autoptr (GError) error = NULL;
  g_autoptr (GDir) dir = g_dir_open (folder, 0, &error);
  const char *file;
  int n = 0;

  if (!dir) {
    fprintf (stderr, "%s\n", error->message);
    return -1;
  }
  for (; (file = g_dir_read_name (dir)); n++) {
    g_autofree char *path = g_build_filename (folder, file, NULL);
    if (!feed_file (path))
      return -1;
  }
  return n;
}

int
main (int argc, char **argv)
{
  int total = 0;

  for (int i = 1; i < argc; i++) {
    int n = feed_folder (argv[i]);
    if (n <= 0) {
      fprintf (stderr, "%s: found no inputs, wanted a folder of them\n", argv[i]);
      return 1;
    }
    total += n;
  }
  printf ("%d inputs\n", total);
  return total ? 0 : 2;
}
